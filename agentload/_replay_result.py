"""What a replay gave, counted as its rows are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from agentload_traces import ImportReport, RequestRow, RunWriter, ToolCallRow


class ReplayResult(msgspec.Struct):
    """What a run holds. interrupted: it was stopped by Ctrl-C and can be resumed.

    turns, failed, skipped: rows of the whole run, those from before a resume included.
    first_error, first_skip: why the first of those failed or was not sent.
    """

    path: Path
    trace: ImportReport
    turns: int = 0
    failed: int = 0
    skipped: int = 0
    first_error: str | None = None
    first_skip: str | None = None
    interrupted: bool = False

    def count(self, status: str, error: str | None = None) -> None:
        """Count a row."""
        self.turns += 1
        if status == "failed":
            self.failed += 1
            self.first_error = self.first_error or error
        elif status == "skipped":
            self.skipped += 1
            self.first_skip = self.first_skip or error


class CountingSink:
    """Hands rows on to the run directory and counts what became of them."""

    def __init__(self, writer: RunWriter, result: ReplayResult) -> None:
        self._add_request = writer.add_request
        self._count = result.count
        self.add_tool_call: Callable[[ToolCallRow], None] = writer.add_tool_call
        self.tick: Callable[[int], None] = writer.tick

    def add_request(self, row: RequestRow) -> None:
        """See `RowSink`."""
        self._add_request(row)
        self._count(row.status, row.error)
