"""What a replay gave, counted as its rows are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from agentload_traces import ClientRow, ImportReport, RequestRow, RunWriter, ToolCallRow


class ReplayResult(msgspec.Struct):
    """What a run holds. interrupted: it was stopped by Ctrl-C and can be resumed.

    told_to_stop: Ctrl-C came, though perhaps when all had been played.

    turns, failed, skipped: turns of the whole run, those from before a resume included. retried: attempts
    that were followed by another, which are no turns. capped: sessions that a cap of the load ended early.
    tool_errors: calls of really executed tools that failed, since the run was started or resumed.
    valid: whether the client kept up; `None` if that is not judged. invalid_reasons: in words.
    turns_planned: how many turns the run was to play; `None` if the trace was not read to its end.
    first_error, first_skip: why the first of those failed or was not sent.
    """

    path: Path
    trace: ImportReport
    turns: int = 0
    turns_planned: int | None = None
    failed: int = 0
    skipped: int = 0
    first_error: str | None = None
    first_skip: str | None = None
    interrupted: bool = False
    told_to_stop: bool = False
    retried: int = 0
    capped: int = 0
    tool_errors: int = 0
    first_tool_error: str | None = None
    valid: bool | None = None
    invalid_reasons: tuple[str, ...] = ()

    def count(self, status: str, error: str | None = None) -> None:
        """Count a row."""
        if status == "retried":
            self.retried += 1
            return
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
        self._add_tool_call = writer.add_tool_call
        self._result = result
        self.add_client: Callable[[ClientRow], None] = writer.add_client
        self.tick: Callable[[int], None] = writer.tick

    def add_request(self, row: RequestRow) -> None:
        """See `RowSink`."""
        self._add_request(row)
        self._count(row.status, row.error)

    def add_tool_call(self, row: ToolCallRow) -> None:
        """See `RowSink`."""
        self._add_tool_call(row)
        if row.error is not None:
            self._result.tool_errors += 1
            self._result.first_tool_error = self._result.first_tool_error or row.error
