"""What every trace format brings: how to recognise it, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from agentload_traces._json import DECODE_ERRORS
from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import Turn
from agentload_traces._source import Source

ToolCallsKnown = Literal["recorded", "inferred", "not in the file"]
"""How the tool calls of a trace are known."""

_LINES_LOOKED_AT = 200


@dataclass(frozen=True)
class Head:
    """The beginning of a file, by which its format is recognised; file names are not looked at.

    data: the first MiB, or the first line if that is longer; decompressed, without byte order mark.
    compressed: whether the file is zstd.
    """

    data: bytes
    compressed: bool = False

    @cached_property
    def _lines(self) -> list[tuple[bytes, frozenset[str] | None]]:
        lines = (
            line
            for line in self.data.lstrip().split(b"\n", _LINES_LOOKED_AT)[:_LINES_LOOKED_AT]
            if line.strip()
        )
        return [(line, _keys(line)) for line in lines]

    def has_line_with(self, *keys: str, without: tuple[str, ...] = ()) -> bool:
        """Tell whether one of the first lines is a JSON object with all of `keys` and none of `without`.

        An object that is no valid JSON (damaged, or longer than the head) is searched for the keys as text,
        so that one bad line does not hide a format.
        """
        return any(
            all(_has(line, found, key) for key in keys) and not any(_has(line, found, key) for key in without)
            for line, found in self._lines
        )

    def is_object_naming(self, *keys: str) -> bool:
        """Tell whether the data starts like one JSON object and names all of `keys`, at any depth."""
        return self.data.lstrip()[:1] == b"{" and all(f'"{key}"'.encode() in self.data for key in keys)


@dataclass(frozen=True)
class Importer:
    """A trace format.

    name: for `--format`. summary: one line for people.
    recognises: tells from the head of a file whether it is in this format.
    read: yields each turn with its position, in any order that keeps the turns of a session together and each
        turn after those it waits for. It sets `report.lines_read` and counts every line that becomes no turn
        (`skip`, `merged`, `other`); the caller checks the turns and counts them. A bad line is reported and
        the rest read. It raises `TraceError` only for what leaves nothing to read.
    tool_calls_known: how it knows the tool calls.
    """

    name: str
    summary: str
    recognises: Callable[[Head], bool]
    read: Callable[[Source, ImportReport], Iterator[tuple[Position, Turn]]]
    tool_calls_known: ToolCallsKnown


def _keys(line: bytes) -> frozenset[str] | None:
    try:
        return frozenset(_decode_keys(line))
    except msgspec.ValidationError:  # valid JSON, but no object
        return frozenset()
    except DECODE_ERRORS:
        return None if line.lstrip()[:1] == b"{" else frozenset()


def _has(line: bytes, found: frozenset[str] | None, key: str) -> bool:
    return key in found if found is not None else f'"{key}"'.encode() in line


_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
