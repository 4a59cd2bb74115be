"""The HTML page of a report: what it holds, and that it loads nothing."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from report_output import axis_labels, bar_heights, data_of, drawn, report, specs, without_scripts
from run_rows import MS, a_manifest, agent_session, failed_row, skipped_row, turn_row, write_run

from agentload_analysis import summarise, write_html
from agentload_traces import RequestRow, RunReader, RunWriter


def sub_agent_session() -> list[RequestRow]:
    first = turn_row("s", "m0", 0, None, phases_ns=(0, 5 * MS, 1 * MS, 50 * MS, 1 * MS), output_tokens=50)
    child = turn_row("s", "c0", 0, first, agent_id="explore", phases_ns=(0, 5 * MS, 0, 80 * MS, 0))
    last = turn_row("s", "m1", 1, child, phases_ns=(0, 5 * MS, 1 * MS, 50 * MS, 1 * MS), output_tokens=50)
    return [first, child, last]


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


def test_the_page_names_the_licences_of_what_it_embeds(tmp_path: Path) -> None:
    html = write_html(write_run(tmp_path / "run", []), tmp_path / "page.html").read_text(encoding="utf-8")
    comment = re.search(r"<!--(.*?)-->", html, re.S)
    assert comment
    assert html.index("<!--") < html.index("<script")
    for words_of_notice in (
        *("Vega, Vega-Lite, Vega-Embed (BSD-3-Clause)", "University of Washington Interactive Data Lab"),
        *("Redistributions in binary form must reproduce", "agentload", "Apache License 2.0"),
    ):
        assert words_of_notice in comment[1]


def test_the_page_and_its_summary_are_of_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = RunReader.requests
    rows = agent_session(1, 8)
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        writer.add_request(rows.pop(0))
        writer.flush()

        def requests_while_the_run_goes_on(reader: RunReader) -> pl.LazyFrame:
            found = real(reader)
            writer.add_request(rows.pop(0))
            writer.flush()
            return found

        monkeypatch.setattr(RunReader, "requests", requests_while_the_run_goes_on)
        page = tmp_path / "page.html"
        summary = json.loads(report(capsys, tmp_path / "run", "--json", "--html", page))
    assert summary["turns"] == 1
    assert len(data_of(specs(page)["ttft"])) == 1
    assert {bar["turns"] for bar in data_of(specs(page)["timeline"])} == {"0"}


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


def test_the_longest_sub_agents_have_lanes_whenever_they_ran(tmp_path: Path) -> None:
    rows = [turn_row("early", "m", 0, None, phases_ns=(0, 0, 0, 30_000 * MS, 0))]
    rows += [
        turn_row("early", f"c{n}", 0, None, agent_id=f"long{n}", phases_ns=(0, 0, 0, 1_000 * MS, 0))
        for n in range(14)
    ]
    hour = 3_600_000 * MS
    late = turn_row("late", "m", 0, None, origin_ns=hour, phases_ns=(0, 0, 0, 20_000 * MS, 0))
    rows += [late, turn_row("late", "c", 0, late, agent_id="tiny", phases_ns=(0, 0, 0, 1 * MS, 0))]
    page = write_html(write_run(tmp_path / "run", rows), tmp_path / "page.html")
    lanes = {str(bar["lane"]) for bar in data_of(specs(page)["timeline"])}
    assert lanes == {"early", "late", *(f"early › long{n}" for n in range(14))}
    assert "Not drawn: 1 sub-agent" in page.read_text(encoding="utf-8")


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


def one_turn_run(folder: Path, prefills_ms: list[int]) -> Path:
    rows = [
        turn_row(f"s{n}", "t", 0, None, phases_ns=(0, ms * MS, 0, 8 * MS, 0), output_tokens=9)
        for n, ms in enumerate(prefills_ms)
    ]
    return write_run(folder / "run", rows)


@pytest.mark.parametrize(
    "prefills_ms", [[7], [5] * 3, [100_000, 100_001], [0, 0, 3], [5, 6, 6, 40], [1, 10, 100, 1_000, 1_000]]
)
def test_runs_of_fewer_than_three_turn_indices_show_distributions(
    tmp_path: Path, prefills_ms: list[int]
) -> None:
    page = write_html(one_turn_run(tmp_path, prefills_ms), tmp_path / "page.html")
    html = without_scripts(page.read_text(encoding="utf-8"))
    assert "<h2>Distribution of TTFT</h2>" in html
    assert "<h2>Distribution of TPOT</h2>" in html
    assert "by turn index</h2>" not in html
    bars = data_of(specs(page)["ttft"])
    for bar in bars:
        low, high = float(str(bar["from"])), float(str(bar["to"]))
        assert low < high
        # The last bar holds its upper edge, too; edges are rounded to 5 figures.
        inside = [
            ms for ms in prefills_ms if low * 0.9999 <= ms < high * 0.9999 or ms == high == max(prefills_ms)
        ]
        assert bar["count"] == len(inside)
    assert sum(int(str(bar["count"])) for bar in bars) == len(prefills_ms)
    assert ("Logarithmic axis" in html) == (max(prefills_ms) == 1_000)
    tallest = max(int(str(bar["count"])) for bar in bars)
    heights = bar_heights(specs(page)["ttft"])
    assert [round(height / max(heights) * tallest, 2) for height in heights] == [bar["count"] for bar in bars]
    assert max(heights) > 100
    counts = axis_labels(specs(page)["ttft"], "Y")
    assert counts == sorted(set(counts))
    assert counts[0] == 0


@pytest.mark.parametrize("turns", [3, 4, 13, 40])
def test_turn_indices_on_an_axis_are_whole_and_each_once(tmp_path: Path, turns: int) -> None:
    page = write_html(write_run(tmp_path / "run", agent_session(1, turns)), tmp_path / "page.html")
    for name in ("ttft", "tpot"):
        labels = axis_labels(specs(page)[name])
        assert len(labels) > 2
        assert labels == sorted(set(labels))
        assert labels[0] == 0
        assert labels[-1] <= turns - 1


def test_the_line_of_speed_breaks_where_there_are_no_turns(tmp_path: Path) -> None:
    rows = [
        turn_row(
            "s",
            f"t{n}",
            n,
            None,
            phases_ns=(0, 5 * MS, 0, 8 * MS, 0),
            output_tokens=9,
            input_tokens=1_000 * n + (50_000 if n >= 5 else 0),
        )
        for n in range(10)
    ]
    page = write_html(write_run(tmp_path / "gap", rows), tmp_path / "gap.html")
    whole = write_html(write_run(tmp_path / "whole", rows[:5]), tmp_path / "whole.html")
    assert drawn(specs(page)["speed"], "mark-line") == 2
    assert drawn(specs(page)["speed"], "mark-area") == 2
    assert drawn(specs(whole)["speed"], "mark-line") == 1


def test_failed_turns_are_marked_on_the_timeline(tmp_path: Path) -> None:
    first = turn_row("s", "m0", 0, None, phases_ns=(0, 5 * MS, 0, 50 * MS, 0))
    failed = failed_row("s", "m1", 1, first, "HTTP \x1b500")
    failed.scheduled_ns = (first.end_ns or 0) + 20 * MS
    lost = failed_row("s", "c0", 0, first, "timed out")
    lost.agent_id, lost.end_ns = "explore", None
    rows = [first, failed, lost, skipped_row("s", "m2", 2)]
    page = write_html(write_run(tmp_path / "run", rows), tmp_path / "page.html")
    spec = specs(page)["timeline"]
    marks = {(row["lane"], row["due"], row["turn"], row["error"]) for row in data_of(spec) if "error" in row}
    assert marks == {("s", 0.075, 1, r"HTTP \x1b500"), ("s › explore", 0.055, 0, "timed out")}
    assert drawn(spec, "mark-symbol") == 2
    html = page.read_text(encoding="utf-8")
    assert "A cross: a turn that failed, where it was due." in html
    plain = write_html(write_run(tmp_path / "plain", rows[:1]), tmp_path / "plain.html")
    assert "A cross" not in plain.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_of_a_large_run_stays_small(tmp_path: Path) -> None:
    rows = [row for s in range(100) for row in agent_session(s, 300)]
    page = write_html(write_run(tmp_path / "run", rows), tmp_path / "page.html")
    assert page.stat().st_size < 3_000_000
    assert len(data_of(specs(page)["speed"])) <= 61
