"""A file as bytes and lines: plain or zstd (told by its first bytes), read in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from agentload_traces._errors import TraceError
from agentload_traces._printable import decodable
from agentload_traces._replacing import kind_of_file

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
HEAD_BYTES = 1 << 20
"""How much of a file (decompressed) is looked at to recognise its format, and the first line to its end."""

MAX_HEAD_BYTES = 1 << 26
"""How far that is, for a first line without end: more than the block ids of a hundred million tokens."""

IS_EMPTY = "is empty; a trace has at least one turn"
"""What is wrong with a trace without anything in it."""

_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 15  # of a compressed file at a time: real traces expand up to 100-fold
_MAX_WINDOW_BYTES = 1 << 31  # what `zstd --long=31` may have used


class Source:
    """A file that an importer reads.

    name: the path as messages give it, fit to be encoded. size_bytes: as it lies on disk.
    bytes_read: how much of it has been read so far.
    cut: why the data ended before the file said so (a truncated or damaged zstd frame); known once it is met.

    Raises `TraceError` for a path that is no readable file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = decodable(path)
        self.bytes_read = 0
        self.cut: str | None = None
        with self._open() as raw:
            self.compressed = raw.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
        self.size_bytes = self.path.stat().st_size

    def _open(self) -> IO[bytes]:
        try:
            kind = kind_of_file(self.path)
            if kind == "directory":
                raise TraceError(f"{self.name}: is a directory; give a trace file")
            if kind is not None:
                raise TraceError(
                    f"{self.name}: is a {kind}; a trace is read more than once: save it to a file"
                )
            return self.path.open("rb", buffering=HEAD_BYTES)
        except OSError as error:
            raise TraceError(f"{self.name}: cannot be read ({error.strerror or error})") from None

    def head(self) -> bytes:
        """Return the first `HEAD_BYTES` of the data, decompressed; more for a first line that goes on.

        The keys by which a format is recognised may stand at the end of a line. Blank lines are none.
        """
        head = bytearray()
        chunks = self._chunks()
        begun = ended = False
        with contextlib.closing(chunks):
            for chunk in chunks:
                head += chunk
                line = chunk if begun else chunk.lstrip()
                begun = begun or bool(line)
                ended = ended or b"\n" in line
                if len(head) >= (HEAD_BYTES if ended else MAX_HEAD_BYTES):
                    break
        return bytes(head[:MAX_HEAD_BYTES]).removeprefix(_BOM)

    def lines(self) -> Iterator[bytes]:
        """Yield line by line; a last line that `cut` ends early is yielded as far as it goes."""
        lines = self._lines_of_chunks() if self.compressed else self._plain_lines()
        for line in lines:
            yield line.removeprefix(_BOM)
            break
        yield from lines

    def data(self) -> bytes:
        """Return all of it at once, decompressed; for formats that are one JSON document."""
        return b"".join(self._chunks()).removeprefix(_BOM)

    def _plain_lines(self) -> Iterator[bytes]:
        with self._open() as raw:
            for line in raw:
                self.bytes_read += len(line)
                yield line

    def _lines_of_chunks(self) -> Iterator[bytes]:
        tail = b""
        for chunk in self._chunks():
            lines = (tail + chunk).split(b"\n")
            tail = lines.pop()
            yield from lines
        if tail:
            yield tail

    def _chunks(self) -> Generator[bytes, None, None]:
        with self._open() as raw:
            if self.compressed:
                yield from self._decompressed(raw)
                return
            while chunk := raw.read(HEAD_BYTES):
                self.bytes_read += len(chunk)
                yield chunk

    def _decompressed(self, raw: IO[bytes]) -> Iterator[bytes]:
        # Not `stream_reader`: at a truncated frame it just ends, as if the file were whole.
        import zstandard

        frame = None
        while data := raw.read(_READ_BYTES):
            self.bytes_read += len(data)
            while data:
                if frame is None:
                    frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
                try:
                    plain = frame.decompress(data)
                except zstandard.ZstdError as error:
                    self.cut = f"damaged zstd frame, nothing after this can be read ({error})"
                    return
                if plain:
                    yield plain
                data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        if frame is not None:
            self.cut = "the zstd frame ends early (truncated file)"
