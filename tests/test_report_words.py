"""The headline, conditions and notes of a report: what makes its numbers what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_output import report, without_scripts, words
from run_rows import MS, agent_session, turn_row, write_run

from agentload._options import ReplayOptions
from agentload._run_manifest import recorded_options
from agentload_analysis import summarise
from agentload_traces import RequestRow


@pytest.mark.parametrize(
    ("read", "skipped", "line"),
    [
        (400, 3, "3 of 400 lines of the trace were skipped"),
        (1_200, 1, "1 of 1,200 lines of the trace was skipped"),
        (None, 2, "2 lines of the trace were skipped"),
        (400, 0, None),
        (None, None, None),
    ],
)
def test_lines_of_the_trace_that_were_skipped_are_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    read: int | None,
    skipped: int | None,
    line: str | None,
) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3), trace_lines_read=read, trace_lines_skipped=skipped)
    out = report(capsys, run, "--html", tmp_path / "page.html")
    page = without_scripts((tmp_path / "page.html").read_text(encoding="utf-8"))
    if line is None:
        assert "of the trace" not in out + page
    else:
        assert out.startswith(line)
        assert f'<p class="headline alarm">{line}' in page
    summary = summarise(run)
    assert (summary["trace_lines_read"], summary["trace_lines_skipped"]) == (read, skipped)


def one_turn_sessions(starts_ms: list[int]) -> list[RequestRow]:
    return [
        turn_row(f"s{n}", "t", 0, None, origin_ns=start * MS, phases_ns=(0, 5 * MS, 0, 5 * MS, 0))
        for n, start in enumerate(starts_ms)
    ]


@pytest.mark.parametrize(
    ("starts_ms", "loop"),
    [
        ([0, 4, 9, 10], "open loop: sessions start as recorded, at most 3 at once;"),
        ([0, 10, 20], "open loop: sessions start as recorded, at most 1 at once;"),
        ([0, 0, 0], "open loop: start times unknown or equal: all at once;"),
        ([0], "open loop: sessions start as recorded;"),
        ([], "open loop: sessions start as recorded;"),
    ],
)
def test_open_loop_tells_how_many_sessions_were_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], starts_ms: list[int], loop: str
) -> None:
    run = write_run(tmp_path / "run", one_turn_sessions(starts_ms), options={"concurrency": None})
    assert loop in words(report(capsys, run))


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (352, "received 120 of 1,056 tokens asked for."),
        (30, "received 120 tokens, 90 were asked for."),
        (40, None),
        (None, None),
    ],
)
def test_answers_of_another_length_than_asked_for_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: int | None, line: str | None
) -> None:
    rows = agent_session(1, 3)
    for row in rows:
        row.output_tokens, row.output_tokens_asked = 40, asked
    text = words(report(capsys, write_run(tmp_path / "run", rows)))
    if line is None:
        assert "received" not in text
        assert "asked for" not in text
    else:
        assert line in text[: text.index("Conditions")]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"speed": 10.0, "concurrency": None},
            "Tools, think time and arrivals passed 10 times faster than recorded.",
        ),
        ({"speed": 2.5, "concurrency": 4}, "Tools and think time passed 2.5 times faster than recorded."),
        ({"speed": 0.5, "concurrency": 4}, "Tools and think time passed at 0.5 times the recorded speed."),
        ({"speed": 1.0, "concurrency": 4}, None),
        ({}, None),
    ],
)
def test_a_changed_pace_is_told_in_the_headline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], line: str | None
) -> None:
    text = words(report(capsys, write_run(tmp_path / "run", agent_session(1, 3), options=options)))
    if line is None:
        assert "recorded" not in text[: text.index("Conditions")]
    else:
        assert line in text[: text.index("Conditions")]


def test_a_timeout_has_its_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3), options={"stall_timeout_s": 30.0})
    assert "stall timeout 30.0 s;" in words(report(capsys, run))


def test_the_notes_tell_the_fast_end_the_unit_and_from_when_a_ttft_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = words(report(capsys, write_run(tmp_path / "run", agent_session(1, 3))))
    assert "Tokens/s: p90 and p99 are the fast end" in text
    assert "TTFT counts from when they were due" in text
    assert "K = 1,000: 8K-16K holds prompts of 8,000 to 15,999 tokens" in text


def test_contexts_are_in_thousands_as_the_conditions_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        turn_row("s", f"t{n}", n, None, phases_ns=(0, 5 * MS, 0, 5 * MS, 0), input_tokens=length)
        for n, length in enumerate([7_999, 100_000, 128_000])
    ]
    out = report(capsys, write_run(tmp_path / "run", rows))
    assert re.search(r"^64K-128K +1 +0 +0 +100K ", out, re.M)
    assert re.search(r"^128K-256K +1 +0 +0 +128K ", out, re.M)
    assert re.search(r"^0K-8K +1 +0 +0 +8.00K ", out, re.M)


def test_a_column_of_answered_turns_is_called_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = report(capsys, write_run(tmp_path / "run", agent_session(1, 3)), "--html", tmp_path / "page.html")
    page = without_scripts((tmp_path / "page.html").read_text(encoding="utf-8"))
    headings = [line for line in out.splitlines() if re.match(r"(session|turn|context) ", line)]
    assert sum("answered" in line for line in headings) == 3
    assert page.count(">answered</th>") == 3
    assert ">turns</th>" not in page
    assert not any(re.search(r"\bturns\b", line) for line in headings)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"speed": 1.0, "tool_speed": 5.0}, "Tools passed 5 times faster than recorded."),
        (
            {"speed": 2.0, "think_speed": 0.5},
            "Tools and arrivals passed 2 times faster than recorded. Think time passed at 0.5 times",
        ),
        (
            {"speed": 4.0, "arrival": "poisson", "rate_per_s": 2.0},
            "Tools and think time passed 4 times faster",
        ),
        ({"speed": 4.0, "tool_speed": 1.0, "think_speed": 1.0, "concurrency": 3}, None),
    ],
)
def test_paces_that_differ_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], line: str | None
) -> None:
    text = words(report(capsys, write_run(tmp_path / "run", agent_session(1, 3), options=options)))
    before = text[: text.index("Conditions")]
    assert line in before if line else "passed" not in before


@pytest.mark.parametrize(
    ("options", "loop"),
    [
        ({"stages": "4x60s,8x1m"}, "; closed loop, sessions at a time by stages: 4x60s,8x1m"),
        (
            {"arrival": "poisson", "rate_per_s": 0.5},
            "; open loop: sessions start as a Poisson process, at 0.5 a second",
        ),
        (
            {"arrival": "gamma", "rate_per_s": 2.0, "burstiness": 0.25},
            "; open loop: sessions start by a gamma law of burstiness 0.25, at 2 a second",
        ),
        (
            {"arrival": "constant", "stages": "1-4x60s"},
            "; open loop: sessions start evenly, by stages: 1-4x60s",
        ),
    ],
)
def test_the_law_by_which_sessions_start_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], loop: str
) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3), options={"concurrency": None, **options})
    text = words(report(capsys, run))
    assert f"{loop}; seed 7" in text


def test_options_that_are_as_usual_are_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = recorded_options(ReplayOptions(trace=Path("t.jsonl"), out=Path("run")))
    run = write_run(tmp_path / "usual", agent_session(1, 3), options=usual)
    text = words(report(capsys, run))
    assert "open loop: sessions start as recorded; speed 1.0; on overflow refuse; seed 7 " in text
    others = {
        **{"warmup_s": 5.0, "max_gap_s": 30.0, "retries": 2, "api": "messages", "headers": ("x-a", "x-b")},
        **{"stall_timeout_s": 20.0, "tools": "mcp:serve", "max_turns": 4},
    }
    run = write_run(tmp_path / "others", agent_session(1, 3), options=usual | others)
    conditions = words(report(capsys, run)).partition("Conditions: ")[2]
    for shown in (
        *("warmup 5.0 s", "max gap 30.0 s", "retries 2", "api messages", "headers x-a x-b"),
        *("stall timeout 20.0 s",),
        *("tools mcp:serve", "max turns 4", "retry on connect,"),
    ):
        assert f"; {shown}" in conditions
