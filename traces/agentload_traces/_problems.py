"""What went wrong while a trace was read, and what became of every line."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple, NoReturn

import msgspec

from agentload_traces._errors import TraceError
from agentload_traces._printable import printable

PROBLEMS_KEPT = 100
"""How many problems a report holds; all are counted."""

_INDEX = re.compile(r"\[\d+\]")


class Position(NamedTuple):
    """Where a record stands: a line (from 1) of a JSONL file, or a record of a JSON document."""

    path: str
    line: int | None = None
    record: str | None = None


class TraceProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong in a trace; `str()` is one printable line, `path:line: field: message`.

    path: the file. line: its line, from 1; `None` where lines mean nothing (a JSON document, the whole file).
    field: what is wrong in it, as the file names it ("input_length", "requests[17].in"); `None` is all of it.
    kept: the turn was kept, without the part that is wrong; otherwise the line was skipped.
    """

    path: str
    line: int | None
    field: str | None
    message: str
    kept: bool = False

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return printable(": ".join(part for part in (place, self.field, self.message) if part))


class TraceProblemError(TraceError):
    """The first problem of a trace that is read with `strict`; `problem` is that problem."""

    def __init__(self, problem: TraceProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class ImportReport:
    """What became of every line of a trace.

    A line is a line of a JSONL file, a row of a Parquet file, a record of a JSON document. Each has one fate:

    turns: it became a turn.
    merged: it went into the turn of another line (a format that writes one request on several lines), by
    kind.
    other: it holds no request (a blank line, a header, a sub-agent marker), by kind.
    skipped: it could not be used; by the field that is wrong. There is a problem for each.

    Their sum is `lines_read`. `problem_count` counts all problems, `problems` holds the first
    `PROBLEMS_KEPT`. `ignored_fields` counts fields that the format may have and a trace has no place for, or
    that the importer does not know. `assumptions` are sentences: what the importer had to assume because the
    file does not say it.

    A trace of which no line can be used is no error of reading: `turns` is 0 then, and `problems` say why.
    """

    def __init__(self, format: str, *, strict: bool = False) -> None:
        self.format = format
        self.strict = strict
        self.lines_read = 0
        self.turns = 0
        self.merged: Counter[str] = Counter()
        self.other: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.problems: list[TraceProblem] = []
        self.problem_count = 0
        self.ignored_fields: Counter[str] = Counter()
        self.assumptions: tuple[str, ...] = ()

    @property
    def lines_skipped(self) -> int:
        """Lines that could not be used."""
        return self.skipped.total()

    @property
    def lines_accounted(self) -> int:
        """Lines whose fate is known; equals `lines_read` when reading is done."""
        return self.turns + self.merged.total() + self.other.total() + self.skipped.total()

    def skip(self, where: Position, field: str | None, message: str) -> None:
        """Count a line as skipped and report why; raises `TraceProblemError` if strict."""
        self.skipped[_INDEX.sub("", field) if field else "not readable"] += 1
        self._tell(where, field, message, kept=False)

    def mend(self, where: Position, field: str | None, message: str) -> None:
        """Report what is wrong with a line that is kept; raises `TraceProblemError` if strict."""
        self._tell(where, field, message, kept=True)

    def ignore(self, where: Position, field: str, count: int = 1) -> None:
        """Count a field that is not read; its first time is a problem, so that a misspelt name is seen."""
        self.ignored_fields[field] += count
        if self.ignored_fields[field] == count:
            self.mend(where, field, "unknown field, not read")

    def assume(self, sentence: str) -> None:
        """Add what had to be assumed, once."""
        if sentence not in self.assumptions:
            self.assumptions = (*self.assumptions, sentence)

    def fail(self, where: Position, message: str) -> None:
        """Report what is wrong with the file beyond its lines; raises `TraceProblemError` if strict."""
        self._tell(where, None, message, kept=False)

    def _tell(self, where: Position, field: str | None, message: str, *, kept: bool) -> None:
        full_field = ".".join(part for part in (where.record, field) if part) or None
        problem = TraceProblem(where.path, where.line, full_field, message, kept)
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)
        if self.strict:
            _stop(problem)


def _stop(problem: TraceProblem) -> NoReturn:
    raise TraceProblemError(problem)
