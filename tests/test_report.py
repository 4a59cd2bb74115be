"""`agentload report`: what it prints and writes."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from run_rows import MS, agent_session, failed_row, turn_row, write_run

from agentload._cli import main
from agentload_analysis import summarise, write_csv, write_html
from agentload_traces import AgentloadError, RequestRow, RunDirectoryError


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def without_scripts(html: str) -> str:
    """The page without its JavaScript; the data of the plots stay."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.S)


def specs(page: Path) -> dict[str, dict[str, object]]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page.read_text(), re.S)
    assert found
    loaded: dict[str, dict[str, object]] = json.loads(found[1])
    return loaded


def data_of(spec: dict[str, object]) -> list[dict[str, object]]:
    datasets = spec["datasets"]
    assert isinstance(datasets, dict)
    return [row for rows in datasets.values() for row in rows]


def sub_agent_session() -> list[RequestRow]:
    first = turn_row("s", "m0", 0, None, phases_ns=(0, 5 * MS, 1 * MS, 50 * MS, 1 * MS), output_tokens=50)
    child = turn_row("s", "c0", 0, first, agent_id="explore", phases_ns=(0, 5 * MS, 0, 80 * MS, 0))
    last = turn_row("s", "m1", 1, child, phases_ns=(0, 5 * MS, 1 * MS, 50 * MS, 1 * MS), output_tokens=50)
    return [first, child, last]


def test_the_text_has_the_headline_its_conditions_and_all_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [row for s in range(12) for row in agent_session(s, 40)])
    summary = summarise(run)
    out = report(capsys, run)
    text = words(out)
    assert "12 sessions, 480 turns" in text
    assert f"{summary['output_tokens_per_s_per_user']['p50']:,.0f} tokens/s at the median" in text
    assert "gemma4-31b/pd (mode pd); virtual time (simulated)" in text
    assert "concurrency 2" in text
    assert "The hand-off link is an estimate." in text
    assert "Sessions, the slowest 10 of 12 (seconds)" in text
    assert text.count("session-") == 10
    assert "Until the first token, by turn" in text
    assert "From token to token, by context" in text
    for name in ("queue", "prefill", "hand-off", "decode", "tools", "think", "net + client"):
        assert name in text
    assert "ITL here is TPOT" in text
    assert "INCOMPLETE" not in text
    assert max(map(len, out.splitlines())) <= 120
    assert "\x1b" not in out
    assert report(capsys, run) == out


def test_long_foreign_names_do_not_widen_or_style_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = agent_session(1, 30)
    for row in rows:
        row.session_id = "[red]" + "/very/long" * 30
    out = report(capsys, write_run(tmp_path / "run", rows))
    assert max(map(len, out.splitlines())) <= 120
    assert "[red]/very" in out


def test_an_incomplete_run_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 5), status="running", turns_planned=201)
    first = report(capsys, run).splitlines()[0]
    assert first.startswith("INCOMPLETE")
    assert "5 of 201 planned turns" in first
    stopped = write_run(tmp_path / "stopped", agent_session(1, 5), status="interrupted")
    assert "INCOMPLETE: the run was interrupted" in report(capsys, stopped)


def test_failures_are_told_with_their_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = agent_session(1, 5)
    rows.append(failed_row("session-1", "t5", 5, rows[-1], "HTTP 429: [slow] down"))
    text = words(report(capsys, write_run(tmp_path / "run", rows)))
    assert "1 turn failed, 0 skipped" in text
    assert "HTTP 429: [slow] down (1x)" in text
    assert "No session was answered whole" in text


def test_percentiles_of_few_values_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = report(capsys, write_run(tmp_path / "run", agent_session(1, 60))).splitlines()
    first_turn = next(line for line in lines if line.startswith("0 "))
    assert first_turn.count("~") == 4
    range_of_five = next(line for line in lines if line.startswith("1-5 "))
    assert range_of_five.count("~") == 4
    buckets = [line for line in lines if line.startswith("16K-32K")]
    assert buckets
    assert all(line.count("~") == 2 for line in buckets)


def test_recorded_arrivals_bring_an_itl_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = report(capsys, write_run(tmp_path / "run", agent_session(1, 5, arrivals=True)))
    assert "ITL ms" in out
    assert "ITL here is TPOT" not in out


def test_an_endpoint_that_tells_no_phases_has_a_first_token_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = report(capsys, write_run(tmp_path / "run", agent_session(1, 5, told=False), mode="endpoint"))
    assert "first-token wait" in out
    assert "Queue ms" not in out
    assert "prefill and hand-off apart" in words(out)


def test_a_run_without_rows_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [], status="running")
    assert "0 sessions, 0 turns" in report(
        capsys, run, "--csv", tmp_path / "t", "--html", tmp_path / "p.html"
    )
    assert specs(tmp_path / "p.html") == {}


def test_json_is_the_summary_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 20))
    assert json.loads(report(capsys, run, "--json", "--html", tmp_path / "p.html")) == summarise(run)
    assert (tmp_path / "p.html").exists()


def test_csv_has_the_rows_of_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [row for s in range(3) for row in agent_session(s, 20, told=s > 0)])
    report(capsys, run, "--csv", tmp_path / "tables")
    summary = summarise(run)
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        *("per_context.csv", "per_session.csv", "per_turn.csv")
    ]
    for table in ("per_session", "per_turn", "per_context"):
        with (tmp_path / "tables" / f"{table}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(summary[table])
        for row, expected in zip(rows, summary[table], strict=True):
            for name, value in expected.items():
                text = "" if value is None else row[name]
                assert row[name] == text
                if isinstance(value, int | float) and not isinstance(value, bool):
                    assert float(text) == pytest.approx(value)


@pytest.mark.parametrize("name", ["missing", "foreign"])
def test_a_directory_that_is_no_run_gives_one_line_and_exit_code_2(tmp_path: Path, name: str) -> None:
    (tmp_path / "foreign").mkdir()
    command = [sys.executable, "-m", "agentload", "report", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: .*run directory.*\n", done.stderr)


def test_the_page_holds_words_tables_and_plots(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [row for s in range(12) for row in agent_session(s, 60)])
    page = write_html(run, tmp_path / "page.html")
    html = page.read_text(encoding="utf-8")
    assert list(specs(page)) == ["timeline", "ttft", "tpot", "speed"]
    assert all(f'id="plot-{name}"' in html for name in specs(page))
    assert "A session took" in html
    assert without_scripts(html).count("<table>") == 5
    assert "prefers-color-scheme: dark" in html
    assert "vegaEmbed" in html
    median = summarise(run)["output_tokens_per_s_per_user"]["p50"]
    assert f"{median:,.0f} tokens/s at the median" in unescape(html)
    bars = data_of(specs(page)["timeline"])
    assert {bar["part"] for bar in bars} >= {"queue", "prefill", "hand-off", "decode", "tools", "think"}
    assert len({bar["lane"] for bar in bars}) == 10
    assert not list(tmp_path.glob("*.tmp"))


def test_the_page_loads_nothing_from_anywhere(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 60))
    html = write_html(run, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy\" content=\"default-src 'none'" in html
    ours = without_scripts(html)
    assert not re.search(r"""(?:src|href|action|poster|data)\s*=\s*["']""", ours)
    assert "http:" not in ours
    assert "https:" not in ours
    assert "@import" not in html
    assert not re.search(r"""(?:import|fetch|importScripts|url)\s*\(\s*["'`]?https?:""", html)
    assert not re.search(r"""\.(?:src|href)\s*=\s*["'`]https?:""", html)


def test_names_in_a_trace_cannot_break_the_page(tmp_path: Path) -> None:
    rows = agent_session(1, 3)
    for row in rows:
        row.session_id = "</script><script>alert(1)</script>"
    page = write_html(write_run(tmp_path / "run", rows, target="<b>x"), tmp_path / "page.html")
    html = page.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in html
    assert "<b>x" not in html
    assert any("</script>" in str(bar["lane"]) for bar in data_of(specs(page)["timeline"]))


def test_a_short_timeline_shows_every_part_where_it_was(tmp_path: Path) -> None:
    page = write_html(write_run(tmp_path / "run", sub_agent_session()), tmp_path / "page.html")
    bars = [
        (bar["lane"], bar["part"], round(float(str(bar["from"])) * 1e3), round(float(str(bar["to"])) * 1e3))
        for bar in data_of(specs(page)["timeline"])
    ]
    assert bars == [
        ("s", "prefill", 0, 5),
        ("s", "hand-off", 5, 6),
        ("s", "decode", 6, 56),
        ("s", "network + client", 56, 57),
        ("s", "prefill", 142, 147),
        ("s", "hand-off", 147, 148),
        ("s", "decode", 148, 198),
        ("s", "network + client", 198, 199),
        ("s › explore", "prefill", 57, 62),
        ("s › explore", "decode", 62, 142),
    ]


def test_a_long_timeline_is_summed_up_without_losing_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [row for s in range(10) for row in agent_session(s, 250)])
    bars = data_of(specs(write_html(run, tmp_path / "page.html"))["timeline"])
    assert len(bars) < 5_000
    minutes: dict[object, float] = {}
    for bar in bars:
        length = float(str(bar["to"])) - float(str(bar["from"]))
        minutes[bar["part"]] = minutes.get(bar["part"], 0.0) + length
    split = summarise(run)["session_split_s"]
    assert minutes["tools"] == pytest.approx(split["tool"]["sum"] / 60, rel=1e-3)
    assert minutes["decode"] == pytest.approx(split["decode"]["sum"] / 60, rel=1e-3)


@pytest.mark.slow
def test_the_page_of_a_large_run_stays_small(tmp_path: Path) -> None:
    rows = [row for s in range(100) for row in agent_session(s, 300)]
    page = write_html(write_run(tmp_path / "run", rows), tmp_path / "page.html")
    assert page.stat().st_size < 3_000_000
    assert len(data_of(specs(page)["speed"])) <= 61


def test_bad_places_to_write_to_give_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3))
    with pytest.raises(AgentloadError, match="cannot be written"):
        write_html(run, tmp_path / "no" / "such" / "page.html")
    (tmp_path / "file").write_text("x")
    with pytest.raises(AgentloadError, match="cannot be written"):
        write_csv(summarise(run), tmp_path / "file")
    with pytest.raises(RunDirectoryError):
        write_html(tmp_path / "nowhere", tmp_path / "page.html")


def test_importing_the_analysis_or_the_command_imports_nothing_slow() -> None:
    script = (
        "import sys, agentload_analysis, agentload._cli._report\n"
        "sys.exit(bool({'polars', 'altair', 'vl_convert', 'aiohttp'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
