"""Journals: the rows of a run that is not finished, one JSON line each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Extent(NamedTuple):
    """How far a journal can be read.

    whole_bytes: up to the first line that is no whole row. torn_lines: lines from there on. One is what a
    kill in the middle of a write leaves; rows behind a damaged line may be repeated ones, so none is read.
    """

    whole_bytes: int
    torn_lines: int


def extent(lines: Iterable[bytes], row_type: type[msgspec.Struct]) -> Extent:
    """Tell how far the lines of a journal, their newlines included, are rows of `row_type`."""
    decode = msgspec.json.Decoder(row_type).decode
    whole_bytes = 0
    lines = iter(lines)
    for line in lines:
        try:
            decode(line)
        except _DECODE_ERRORS:
            return Extent(whole_bytes, 1 + sum(1 for _ in lines))
        if not line.endswith(b"\n"):
            return Extent(whole_bytes, 1)
        whole_bytes += len(line)
    return Extent(whole_bytes, 0)


class Journal:
    """Appends the rows of one table to its journal.

    `flush` may fail, or be interrupted, in the middle of a write: the rows stay in the buffer, and the next
    flush takes back what lies on disk of them before it writes them again: no row is torn or written twice.
    """

    def __init__(self, path: Path) -> None:
        # Unbuffered: a buffer of the file's own would write, when it is closed, what had failed before.
        self._file = path.open("ab", buffering=0)
        self._whole_bytes = self._file.seek(0, 2)
        self._buffer = bytearray()
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def add(self, row: msgspec.Struct) -> int:
        """Append a row to the buffer; return how many bytes are in it."""
        buffer = self._buffer
        buffer += self._encode_lines((row,))  # row and newline in one step: Ctrl-C comes before or after it
        return len(buffer)

    def flush(self) -> None:
        """Hand all rows to the operating system; raises `OSError`."""
        if not self._buffer:
            return
        if self._file.seek(0, 2) != self._whole_bytes:
            self._file.truncate(self._whole_bytes)
        data, written = bytes(self._buffer), 0
        while written < len(data):
            written += self._file.write(data[written:])
        self._whole_bytes, self._buffer = self._whole_bytes + written, bytearray()

    def close(self) -> None:
        """Close the file, without a flush."""
        self._file.close()
