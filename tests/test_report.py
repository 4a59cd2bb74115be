"""`agentload report`: what it prints and writes."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_output import report, specs, without_scripts, words
from run_rows import MS, agent_session, failed_row, turn_row, write_run

from agentload_analysis import summarise, write_csv, write_html
from agentload_analysis._words import basis
from agentload_simbackend import load_deployment
from agentload_traces import AgentloadError, RunDirectoryError


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
    assert "closed loop, 2 sessions at a time" in text
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
    assert first.startswith("INCOMPLETE: the run was cut short or still goes on; ")
    assert "5 of 201 planned turns" in first
    stopped = write_run(tmp_path / "stopped", agent_session(1, 5), status="interrupted")
    assert "INCOMPLETE: the run was cut short; it holds 5 turns." in report(capsys, stopped)


def test_sessions_that_were_cut_off_are_named_and_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*agent_session(1, 5), *agent_session(2, 5)]
    for row in rows:
        row.session_turns = 201 if row.session_id == "session-1" else 5
    run = write_run(tmp_path / "run", rows, status="interrupted", turns_planned=206)
    out = report(capsys, run)
    text = words(out)
    assert (
        "10 of 206 planned turns. Not played to the end, and so not in the session times: 1 session." in text
    )
    assert "The one session answered whole took" in text
    assert re.search(r"^session-1 +5 of 201 ", out, re.M)
    assert re.search(r"^session-2 +5 ", out, re.M)
    assert re.search(r"^sum of 1 whole +5 ", out, re.M)
    for row in rows:
        row.session_turns = 201
    none_whole = words(report(capsys, write_run(tmp_path / "none", rows, status="interrupted")))
    assert "No session was answered whole" in none_whole
    assert "A session took" not in none_whole


def test_an_unfinished_run_whose_rows_do_not_tell_how_long_its_sessions_are_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = agent_session(1, 5)
    for row in rows:
        row.session_turns = None
    run = write_run(tmp_path / "run", rows, status="interrupted")
    assert "Of 1 session it is unknown whether they were cut off" in words(report(capsys, run))


def test_damaged_lines_are_told_in_the_headline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 5), status="running")
    with (run / "requests.jsonl").open("ab") as journal:
        journal.write(b'{"session_id": "s')
    assert "Not in it: 1 line of its files, cut off or damaged." in words(report(capsys, run))


@pytest.mark.parametrize(
    ("options", "loop"),
    [
        ({"concurrency": None, "speed": 1.0}, "; open loop: sessions start as recorded; speed 1.0"),
        ({"concurrency": 1}, "closed loop, 1 session at a time"),
        ({"concurrency": 12}, "closed loop, 12 sessions at a time"),
        ({"speed": 2.0, "strict": False, "arrivals": True, "trace_format": "weka"}, "speed 2.0; seed 7"),
    ],
)
def test_the_conditions_tell_which_loop_was_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], loop: str
) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3), options=options)
    text = words(report(capsys, run))
    assert loop in text
    assert ("loop" in text) == ("concurrency" in options)
    assert "strict" not in text


def test_fitted_and_estimated_numbers_stand_below_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    above = (
        "A calibration, no validation.",
        "Its speeds hang on: o = 65 us a layer (fitted).",
        "Decode layer overhead = 65 us is a fact.",
        "Tools run in 8 slots; further calls wait.",
        "With the faults of an estimate.toml: stall at 1 s.",
    )
    below = ("Memory = 0.9 is fitted: to 12.", "Replicas = 2 is an estimate.", "Also estimates: link 5 us.")
    given = (*above[:3], *below, *above[3:])
    run = write_run(tmp_path / "run", agent_session(1, 3), conditions=given)
    out = report(capsys, run, "--html", tmp_path / "page.html")
    html = without_scripts((tmp_path / "page.html").read_text(encoding="utf-8"))
    for text, table in ((out, "From token to token, by context"), (html, "</table>")):
        assert max(map(text.index, above)) < text.index(table) < min(map(text.index, below))
        assert text.index("3 sentences below the tables") < text.index(table)
        assert text.rindex("What these numbers rest on") > text.rindex(table)
        assert all(text.count(sentence) == 1 for sentence in given)


def test_every_fitted_and_estimated_number_of_a_deployment_stands_below(tmp_path: Path) -> None:
    for name in ("gemma4-31b/pd-spill", "gemma4-31b/rubin", "deepseek-r1/afd", "gpt-oss-120b/drafter"):
        deployment = load_deployment(name)
        given = tuple(deployment.conditions())
        run = write_run(tmp_path / name.replace("/", "-"), agent_session(1, 3), conditions=given)
        below = basis(summarise(run))
        assert set(given[:2]).isdisjoint(below)
        fitted = sum(quantity.kind == "fitted" for _, quantity in deployment.numbers())
        assert sum(" is fitted" in sentence for sentence in below) == fitted
        others = [sentence for sentence in given if sentence not in below]
        assert not [
            sentence for sentence in others if "Also estimates" in sentence or " is an est" in sentence
        ]


def test_a_run_against_an_endpoint_says_what_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = agent_session(1, 5, told=False)
    for row in rows:
        row.cached_tokens = None
    changes: dict[str, Any] = {"mode": "endpoint", "target": "http://host:1/v1", "conditions": ()}
    text = words(report(capsys, write_run(tmp_path / "run", rows, **changes)))
    unknown = re.search(r"Unknown: (.*?)\. Conditions:", text)
    assert unknown
    for part in ("hardware", "batch size", "other load", "queue, prefill and hand-off", "prefix cache"):
        assert part in unknown[1]
    assert "rest on" not in text
    told = words(report(capsys, write_run(tmp_path / "told", agent_session(1, 5), **changes)))
    assert "Unknown: the endpoint's hardware, batch size and other load. Conditions" in told
    simulated = words(report(capsys, write_run(tmp_path / "simulated", agent_session(1, 5))))
    assert "Unknown" not in simulated


def test_answers_in_one_arrival_have_no_speed_and_the_report_says_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = agent_session(1, 4, arrivals=True)
    for row in rows:
        row.output_tokens, row.arrival_dt_us, row.arrival_tokens = 3, [5], [3]
    text = words(report(capsys, write_run(tmp_path / "run", rows)))
    assert "4 answers came whole in one arrival" in text
    assert "Output speed per user unknown" in text
    assert "contexts of 6.10K to" in text
    assert "tokens/s at the median" not in text


def test_a_session_of_nearly_an_hour_is_rounded_to_an_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def took(name: str, ms: int) -> str:
        row = turn_row("s", "t", 0, None, phases_ns=(0, 0, 0, ms * MS, 0))
        found = re.search(r"The session took (.*?)\.\n", report(capsys, write_run(tmp_path / name, [row])))
        assert found
        return found[1]

    assert took("over", 3_599_600) == "1 h 0 min"
    assert took("under", 3_599_400) == "59 min 59 s"


def test_paths_with_wildcards_are_names_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a[1] b*c ?"
    folder.mkdir()
    for name, status in (("done", "complete"), ("going", "running")):
        run = write_run(folder / name, agent_session(1, 5), status=status)
        out = report(capsys, run, "--csv", folder / f"csv-{name}", "--html", folder / f"{name}.html")
        assert "1 session, 5 turns" in out
        assert len(list((folder / f"csv-{name}").iterdir())) == 3
        assert (folder / f"{name}.html").exists()


def test_failures_are_told_with_their_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = agent_session(1, 5)
    rows.append(failed_row("session-1", "t5", 5, rows[-1], "HTTP 429: [slow] down"))
    text = words(report(capsys, write_run(tmp_path / "run", rows)))
    assert "1 turn failed, 0 not sent" in text
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


def test_a_run_of_failures_only_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [failed_row(f"s{n}", "t", 0, None, "HTTP 503") for n in range(3)]
    page = tmp_path / "p.html"
    text = words(report(capsys, write_run(tmp_path / "run", rows), "--csv", tmp_path / "t", "--html", page))
    assert "3 turns failed, 0 not sent, in 3 sessions that the session times leave out." in text
    assert "No session was answered whole" in text
    assert "HTTP 503 (3x)" in text
    assert "Where it went" not in text
    assert "Output speed" not in text
    assert "Until the first token, by turn" in text
    assert "From token to token" not in text
    assert specs(page) == {}
    assert "3 turns failed" in page.read_text(encoding="utf-8")


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
