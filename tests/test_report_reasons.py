"""What the report says of turns that failed or were not sent, waits for tools, hand-offs and compactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_output import report, without_scripts, words
from run_rows import MS, agent_session, failed_row, skipped_row, turn_row, write_run

from agentload_analysis import sessions, summarise
from agentload_traces import RequestRow, RunReader, ToolCallRow


def failures(texts: list[str]) -> list[RequestRow]:
    return [failed_row(f"s{n}", "t", 0, None, text) for n, text in enumerate(texts)]


def not_sent(reasons: list[str | None]) -> list[RequestRow]:
    rows = [skipped_row("s", f"t{n}", n) for n in range(len(reasons))]
    for row, reason in zip(rows, reasons, strict=True):
        row.error = reason
    return rows


def test_errors_that_differ_in_numbers_are_one_but_not_other_statuses_or_words(tmp_path: Path) -> None:
    full = ["too_long: 1,300 + 20 > 1,024", "too_long: 9.5 + 1 > 8", "too_long: 1,300 + 20 > 1,024"]
    others = ["HTTP 429: wait 5 s", "HTTP 503: wait 5 s", "HTTP 503: wait 1 s", "reset"]
    run = write_run(tmp_path / "run", failures([*full, *others]))
    assert summarise(run)["errors"] == [
        {"error": full[0], "turns": 3, "texts": 2},
        {"error": "HTTP 503: wait 5 s", "turns": 2, "texts": 2},
        {"error": "HTTP 429: wait 5 s", "turns": 1, "texts": 1},
        {"error": "reset", "turns": 1, "texts": 1},
    ]


def test_turns_that_were_not_sent_are_told_with_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = "does not fit the context of m: 300,000 prompt + 1 output = 300,001 tokens > 262,144"
    waits = [f"turn t{n}, which it waits for, is not sent" for n in range(3)]
    run = write_run(tmp_path / "run", [*agent_session(1, 3), *not_sent([too_long, *waits, None])])
    out = report(capsys, run, "--html", tmp_path / "page.html")
    line = (
        "0 turns failed, 5 not sent, in 1 session that the session times leave out. Not sent: turn t0, which"
        f" it waits for, is not sent (3x, with other numbers too); {too_long} (1x); reason not recorded (1x)."
    )
    assert line in words(out)
    page = without_scripts((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert '<p class="headline alarm">0 turns failed, 5 not sent' in page
    assert "skipped" not in out
    headings = [each for each in out.splitlines() if each.startswith(("session ", "turn ", "context "))]
    assert sum("not sent" in each for each in headings) == 3
    assert summarise(run)["skipped"] == 5


def calls(waits_ms: list[int], takes_ms: int) -> list[ToolCallRow]:
    return [
        ToolCallRow(
            session_id="s",
            turn_id=f"t{n}",
            call_index=0,
            queue_ns=wait * MS,
            start_ns=(n + wait) * MS,
            end_ns=(n + wait + takes_ms) * MS,
        )
        for n, wait in enumerate(waits_ms)
    ]


def test_waits_for_tool_slots_are_told_over_the_calls_that_waited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3), calls=calls([0, 0, 100, 200, 300], 120))
    summary = summarise(run)
    assert summary["tool_queue_ms"] == {"count": 3, "p50": 200, "p90": 280, "p99": 298, "max": 300}
    assert summary["tool_queue_share"] == 600 / (600 + 5 * 120)
    assert (
        "Tools waited for a slot: 3 of 5 calls, those 200 ms at the median and 298 ms at p99, 50.0% of the"
        " time of all calls." in words(report(capsys, run))
    )


@pytest.mark.parametrize("waits_ms", [[], [0, 0]])
def test_without_waits_for_tools_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], waits_ms: list[int]
) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3), calls=calls(waits_ms, 120))
    summary = summarise(run)
    assert summary["tool_queue_ms"]["count"] == 0
    assert summary["tool_queue_share"] == (0.0 if waits_ms else None)
    assert "waited for a slot" not in report(capsys, run)


def test_the_wait_for_a_slot_is_in_the_tools_of_a_session_without_remainder(tmp_path: Path) -> None:
    first = turn_row("s", "t0", 0, None, phases_ns=(0, 5 * MS, 0, 5 * MS, 0))
    then = turn_row("s", "t1", 1, first, tool_ns=300 * MS, phases_ns=(0, 5 * MS, 0, 5 * MS, 0))
    run = write_run(tmp_path / "run", [first, then], calls=calls([180], 120))
    (row,) = sessions(RunReader(run).requests()).collect().to_dicts()
    parts = {name: row[f"{name}_ns"] for name in summarise(run)["session_split_s"]}
    assert (parts["tool"], sum(parts.values())) == (300 * MS, row["session_ns"])


@pytest.mark.parametrize(
    ("handed", "total", "line"),
    [
        ([20_000, 500, 21_000], 41_500, "KV handed over: 41,500 of 61,500 input tokens (67.5%)."),
        ([0, 0, 0], 0, None),
        ([None, None, None], None, None),
    ],
)
def test_what_of_the_prompts_was_handed_over(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    handed: list[int | None],
    total: int | None,
    line: str | None,
) -> None:
    rows = agent_session(1, 3)
    for index, (row, tokens) in enumerate(zip(rows, handed, strict=True)):
        row.input_tokens, row.handoff_tokens = 20_000 + 500 * index, tokens
    run = write_run(tmp_path / "run", rows)
    assert summarise(run)["handoff_tokens_total"] == total
    text = words(report(capsys, run))
    assert line in text if line else "handed over" not in text


@pytest.mark.parametrize(
    ("options", "compacted", "said"),
    [
        ({"on_overflow": "compact"}, 2, "Contexts were compacted in 2 turns, by --on-overflow compact"),
        ({"on_overflow": "compact"}, 1, "Contexts were compacted in 1 turn, by --on-overflow compact"),
        ({"on_overflow": "compact"}, 0, None),
        ({"on_overflow": "refuse"}, 2, None),
    ],
)
def test_compactions_are_counted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    compacted: int,
    said: str | None,
) -> None:
    rows = agent_session(1, 4)
    for row in rows[1 : 1 + compacted]:
        row.trigger = "compaction"
    run = write_run(tmp_path / "run", rows, options=options)
    assert summarise(run)["compactions"] == compacted
    text = words(report(capsys, run))
    assert said in text if said else "were compacted" not in text
