"""The report on terminals of any width: every figure is there, whole, and no line is too long."""

from __future__ import annotations

import re
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from run_rows import MS, agent_session, turn_row, write_run

from agentload_analysis import render_text, summarise


def printed(summary: dict[str, Any], width: int) -> str:
    file = StringIO()
    render_text(summary, Console(width=width, file=file))
    return file.getvalue()


def large_figures(folder: Path) -> dict[str, Any]:
    """Times of minutes, every kind of column, and names of every kind."""
    rows = []
    for number, name in enumerate(["s", "a-session-of-22-places", "会话会话会话会话会话"]):
        rows += agent_session(number, 40, arrivals=True)
        for row in rows[-40:]:
            row.session_id = name
    slow = turn_row(
        "slow", "t0", 0, None, tool_ns=7_200_000 * MS, phases_ns=(345_678 * MS, 123_456 * MS, 0, 99 * MS, 0)
    )
    slow.input_tokens, slow.output_tokens, slow.session_turns = 99_999, 50, 12_345
    return summarise(write_run(folder / "run", [*rows, slow], conditions=(), mode="endpoint"))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_figure_is_cut_or_left_out(tmp_path: Path, width: int) -> None:
    summary = large_figures(tmp_path)
    out, wide = printed(summary, width), printed(summary, 400)
    assert "…" not in out
    assert max(map(cell_len, out.splitlines())) <= width
    missing = Counter(wide.split()) - Counter(out.split())
    assert not missing
    repeated = Counter(out.split()) - Counter(wide.split())
    first_column = {row["context"] for row in summary["per_context"]}
    first_column |= {line.split("  ")[0] for line in wide.splitlines() if re.match(r"\S+(?: \S+)*  ", line)}
    headings = {"TTFT", "Queue", "TPOT", "ITL", "Tokens/s", "ms"}
    assert set(repeated) <= {word for cell in first_column for word in cell.split()} | headings


def test_groups_of_columns_without_room_stand_below_with_their_heading(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path / "run", agent_session(1, 60, arrivals=True)))
    narrow = printed(summary, 80)
    assert re.search(r"^ +TPOT ms +ITL ms\nturn +p50 +p90 +p99 +max +p50 +p90 +p99 +max\n0 ", narrow, re.M)
    assert re.search(r"^\n +Tokens/s\nturn +p50 +p90 +p99 +max\n0 ", narrow, re.M)
    wide = printed(summary, 120)
    assert re.search(r"^ +TPOT ms +ITL ms +Tokens/s$", wide, re.M)
    assert wide.count("\nturn ") == 2


def test_numbers_stand_under_their_headings_and_groups_over_their_first_column(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path / "run", agent_session(1, 60)))
    for width in (80, 120):
        lines = printed(summary, width).splitlines()
        heading = next(n for n, line in enumerate(lines) if line.startswith("turn ") and "answered" in line)
        group = lines[heading - 1].index("TTFT ms")
        assert lines[heading][:group].endswith("context p50   ")
        ends = {found.end() for found in re.finditer(r"\S+", lines[heading + 1])}
        assert {found.end() for found in re.finditer(r"p50|p90|p99|max", lines[heading][group:])} <= {
            end - group for end in ends
        }


def test_a_terminal_with_no_room_at_all_still_gets_whole_figures(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path / "run", agent_session(1, 5)))
    out = printed(summary, 10)
    for name in ("session_time_s", "queue_s", "decode_s"):
        value = summary["per_session"][0][name]
        assert re.search(rf"^session-1 +{value:.3g}", out, re.M)
