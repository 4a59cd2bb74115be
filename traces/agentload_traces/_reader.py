"""Reading a trace of any known format."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from agentload_traces._checks import SessionRules, findings
from agentload_traces._errors import TraceError
from agentload_traces._importer import Head, Importer, ToolCallsKnown
from agentload_traces._importers import IMPORTERS
from agentload_traces._problems import ImportReport
from agentload_traces._records import Session, Turn
from agentload_traces._source import HEAD_BYTES, IS_EMPTY, Source


class TraceReader:
    """A trace to read, as often as wanted; made by `open_trace`.

    path: the file; name: its path as text for people. format: name of its importer.
    report: what became of the lines, of the reading that goes on or was last finished.
    """

    def __init__(self, source: Source, importer: Importer, *, strict: bool) -> None:
        self.path = source.path
        self._source = source
        self.name = source.name
        self._importer = importer
        self._strict = strict
        self.report = ImportReport(importer.name, strict=strict)

    @property
    def format(self) -> str:
        """Name of the importer that reads the trace."""
        return self._importer.name

    @property
    def tool_calls_known(self) -> ToolCallsKnown:
        """How the trace's tool calls are known: "recorded", "inferred" or "not in the file"."""
        return self._importer.tool_calls_known

    @property
    def progress(self) -> float:
        """How much of the file has been read, 0 to 1."""
        return min(1.0, self._source.bytes_read / max(1, self._source.size_bytes))

    def turns(self) -> Iterator[Turn]:
        """Yield the turns, read as they are asked for; those of a session stand together.

        Every call reads from the start, with a new `report`. Raises `TraceProblemError` at the first problem
        if the trace was opened with `strict`, `TraceError` if the file cannot be read any more.
        """
        source = self._source = Source(self.path)
        report = self.report = ImportReport(self._importer.name, strict=self._strict)
        rules = SessionRules()
        for where, turn in self._importer.read(source, report):
            refused = next(findings(turn), None) or rules.refuse(turn)
            if refused is not None:
                report.skip(where, *refused)
                continue
            admitted, mended = rules.admit(turn)
            for field, message in mended:
                report.mend(where, field, message)
            report.turns += 1
            yield admitted

    def sessions(self) -> Iterator[Session]:
        """Yield the sessions, one in memory at a time; otherwise as `turns`."""
        current: list[Turn] = []
        for turn in self.turns():
            if current and turn.session_id != current[0].session_id:
                yield Session(current[0].session_id, tuple(current))
                current = []
            current.append(turn)
        if current:
            yield Session(current[0].session_id, tuple(current))


def open_trace(path: str | Path, *, format: str | None = None, strict: bool = False) -> TraceReader:
    """Open a trace; its format is recognised from its content, or given by name.

    strict: reading stops at the first problem.

    Bad lines are no error here, even where all are bad: `report.turns` is 0 after reading then, and whoever
    needs turns must look.

    Raises `TraceError` if there is no such file, it is empty or a directory, no format is recognised, or
    `format` is unknown.
    """
    importer = None if format is None else _named(format)
    source = Source(path)
    head = Head(source.head(), source.compressed)
    if not head.data.strip():
        raise TraceError(f"{source.name}: {source.cut or IS_EMPTY}")
    if importer is None:
        importer = next((known for known in IMPORTERS if known.recognises(head)), None)
    if importer is None:
        raise TraceError(f"{source.name}: {_unlike_any(head)}; formats: {_names()} (`--format` names one)")
    return TraceReader(source, importer, strict=strict)


def _named(name: str) -> Importer:
    for importer in IMPORTERS:
        if importer.name == name:
            return importer
    raise TraceError(f"unknown trace format {name!r}; formats: {_names()}")


def _names() -> str:
    return ", ".join(importer.name for importer in IMPORTERS)


def _unlike_any(head: Head) -> str:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head.data, final=len(head.data) < HEAD_BYTES)
    except UnicodeDecodeError:
        return "format not recognised, the text is not UTF-8"
    return "format not recognised from its content"
