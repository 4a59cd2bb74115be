"""The native trace as JSON lines: one `Turn` a line, plain or zstd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from agentload_traces._importer import Head, Importer
from agentload_traces._json import json_lines
from agentload_traces._known_fields import TurnDecoder
from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import Turn
from agentload_traces._source import Source

_FLUSH_BYTES = 1 << 20
_ZSTD_LEVEL = 10


def _recognises(head: Head) -> bool:
    return head.has_line_with("session_id", "turn_id", "input_tokens")


def _read(source: Source, report: ImportReport) -> Iterator[tuple[Position, Turn]]:
    return json_lines(source, report, TurnDecoder(source.name, report).from_json)


NATIVE_JSONL = Importer(
    name="agentload-jsonl",
    summary="agentload's own trace, one turn a line (.jsonl or .jsonl.zst)",
    recognises=_recognises,
    read=_read,
    tool_calls_known="recorded",
)


def write_jsonl(file: BinaryIO, turns: Iterable[Turn], *, compress: bool) -> None:
    """Write turns as JSON lines, as they come; `compress` makes one zstd frame of them."""
    if not compress:
        for piece in _encoded(turns):
            file.write(piece)
        return
    import zstandard

    with zstandard.ZstdCompressor(level=_ZSTD_LEVEL).stream_writer(file, closefd=False) as packed:
        for piece in _encoded(turns):
            packed.write(piece)


def _encoded(turns: Iterable[Turn]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    buffer = bytearray()
    for turn in turns:
        encoder.encode_into(turn, buffer, -1)
        buffer += b"\n"
        if len(buffer) >= _FLUSH_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)
