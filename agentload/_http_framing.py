"""Reads one HTTP/1.1 answer out of the bytes of a connection. Knows no sockets and no clock.

The case that counts, a read that brings whole chunks of a stream, costs one look at each chunk's size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

MOST_BODY_BYTES = 1 << 30
"""An answer whose body is longer than this is not read to its end."""

_MOST_HEAD_BYTES = 256 << 10
"""Of heads, or of trailers, in all."""

_MOST_LINE_BYTES = 16 << 10
"""Of the size of a chunk, with what may follow it on its line."""

_SHORT_LINE = 64


class Marks(NamedTuple):
    """When an answer's body arrived: at `at_ns[i]` (perf_counter), `body_bytes[i]` bytes of it were there.

    Two lists, one entry for each read that brought some of the body, both ascending.
    """

    at_ns: list[int]
    body_bytes: list[int]


class BadAnswerError(Exception):
    """Bytes that are no HTTP/1.1 answer; its text is one line."""


_HEAD, _SIZE, _CHUNK, _CHUNK_END, _TRAILER, _LENGTH, _UNTIL_CLOSE, _ENDED = range(8)

_HEAD_END = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01])[ \t]+([1-9][0-9]{2})(?:[ \t].*)?")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_NO_BODY = (204, 304)


def _chunk_size(line: bytes) -> int:
    """The size that begins a chunk, or -1 for what is none."""
    found = _CHUNK_SIZE.fullmatch(line)
    return int(found[1], 16) if found else -1


_known_size = lru_cache(maxsize=4096)(_chunk_size)
# Sizes repeat; only lines of at most `_SHORT_LINE` bytes are kept.


class AnswerReader:
    """One answer, fed read by read.

    only_head: the answer ends with its head, as that to CONNECT does.
    status, headers: of the final answer (interim ones, 1xx, are passed over); names in lower case, values of
    a name that came more than once joined by ", ".
    keep_alive: once ended, whether the connection may carry another request.
    """

    __slots__ = (
        "_between",
        "_left",
        "_line",
        "_only_head",
        "_other_bytes",
        "_phase",
        "_total",
        "first_byte_ns",
        "headers",
        "keep_alive",
        "marks",
        "parts",
        "status",
    )

    def __init__(self, *, only_head: bool = False) -> None:
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.parts: list[bytes] = []
        self.marks = Marks([], [])
        self.keep_alive = False
        self.first_byte_ns: int | None = None
        self._only_head = only_head
        self._phase = _HEAD
        self._between = False  # at the beginning of a chunk's size
        self._line = b""  # begun, but not ended
        self._left = 0  # bytes of the chunk, or of the body with a length, that are still to come
        self._total = 0
        self._other_bytes = 0

    @property
    def body(self) -> bytes:
        """What has come of the body."""
        return b"".join(self.parts)

    def feed(self, at_ns: int, data: bytes) -> bool:
        """Take what a read brought; return whether the answer has ended. Raises `BadAnswerError`."""
        if self._between:
            start, end = 0, len(data)
            parts, total = self.parts, self._total
            while start < end:
                line_end = data.find(b"\r\n", start, start + _SHORT_LINE)
                size = _known_size(data[start:line_end]) if line_end >= 0 else -1
                after = line_end + 4 + size
                if size <= 0 or after > end or not data.startswith(b"\r\n", after - 2):
                    break  # the last chunk, one that is not all here, or none
                parts.append(data[line_end + 2 : after - 2])
                total += size
                start = after
            if start:
                self.marks.at_ns.append(at_ns)
                self.marks.body_bytes.append(total)
                self._total = total
                if start == end:
                    self._check_length()
                    return False
                data = data[start:]
        elif self.first_byte_ns is None:
            self.first_byte_ns = at_ns
        return self._feed_slowly(at_ns, data)

    def feed_eof(self) -> bool:
        """The connection was closed in order; return whether the answer is whole."""
        if self._phase == _UNTIL_CLOSE:
            self._phase = _ENDED
        return self._phase == _ENDED

    def _check_length(self) -> None:
        if self._total > MOST_BODY_BYTES:
            raise BadAnswerError(f"the body is longer than {MOST_BODY_BYTES:,} bytes")

    def _feed_slowly(self, at_ns: int, data: bytes) -> bool:
        if self._phase == _HEAD:
            data = self._head(data)
            if self._phase == _SIZE and data:
                self._between = True
                return self.feed(at_ns, data)
        before = self._total
        try:
            data = self._body(data) if data else data
            self._check_length()
        finally:
            times, sizes = self.marks
            if self._total > before:
                if times and times[-1] == at_ns:  # the whole chunks before these bytes
                    sizes[-1] = self._total
                else:
                    times.append(at_ns)
                    sizes.append(self._total)
        self._between = self._phase == _SIZE and not self._line
        if self._phase != _ENDED:
            return False
        if data:
            self.keep_alive = False  # bytes that nobody has asked for
        return True

    def _head(self, data: bytes) -> bytes:
        """Read heads until that of the final answer; return what follows it."""
        data = self._line + data
        while True:
            start = data[:5]
            if not b"HTTP/".startswith(start):
                raise BadAnswerError(f"it begins with {data[:20].decode('ascii', 'backslashreplace')!r}")
            found = _HEAD_END.search(data)
            if self._other_bytes + (found.end() if found else len(data)) > _MOST_HEAD_BYTES:
                raise BadAnswerError(f"its head is longer than {_MOST_HEAD_BYTES:,} bytes")
            if found is None:
                self._line = data
                return b""
            head, data = data[: found.start()], data[found.end() :]
            self._other_bytes += found.end()
            self._line = b""
            if self._take_head(head) or not data:
                return data

    def _take_head(self, head: bytes) -> bool:
        """Return whether this is the head of the final answer."""
        first, *lines = head.split(b"\n")
        found = _STATUS_LINE.fullmatch(first.removesuffix(b"\r"))
        if found is None:
            raise BadAnswerError(f"its first line is {first[:60].decode('ascii', 'backslashreplace')!r}")
        status = int(found[2])
        if status == 101:
            raise BadAnswerError("it switches to another protocol, unasked")
        if status < 200:
            return False
        self.headers = headers = _headers(lines)
        self.status = status
        self.keep_alive = self._only_head or _keep_alive(headers, new=found[1] == b"1")
        coding = headers.get("transfer-encoding")
        if self._only_head or status in _NO_BODY:
            self._phase = _ENDED
        elif coding is not None:
            if coding.lower() != "chunked":
                raise BadAnswerError(f"its transfer encoding is {coding[:60]!r}, not chunked")
            if "content-length" in headers:
                self.keep_alive = False  # who frames in two ways may have meant the other
            self._phase = _SIZE
        elif "content-length" in headers:
            self._left = _content_length(headers["content-length"])
            self._phase = _LENGTH if self._left else _ENDED
        else:
            self.keep_alive = False
            self._phase = _UNTIL_CLOSE
        return True

    def _take(self, piece: bytes) -> None:
        self.parts.append(piece)
        self._total += len(piece)

    def _body(self, data: bytes) -> bytes:
        """Read on; return what follows the end of the answer."""
        if self._phase == _LENGTH:
            self._take(data[: self._left])
            data, self._left = data[self._left :], max(0, self._left - len(data))
            if not self._left:
                self._phase = _ENDED
            return data
        if self._phase == _UNTIL_CLOSE:
            self._take(data)
            return b""
        return self._chunks(data)

    def _chunks(self, data: bytes) -> bytes:
        start, end = 0, len(data)
        while start < end and self._phase != _ENDED:
            if self._phase == _CHUNK:
                piece = data[start : start + self._left]
                self._take(piece)
                start += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._phase = _CHUNK_END
                continue
            line_end = data.find(b"\n", start)
            stop = line_end + 1 if line_end >= 0 else end
            self._line += data[start:stop]
            start = stop
            if self._phase == _CHUNK_END and self._line not in (b"\r", b"\n", b"\r\n"):
                raise BadAnswerError("a chunk does not end where its size says")
            if len(self._line) > _MOST_LINE_BYTES or self._other_bytes > _MOST_HEAD_BYTES:
                raise BadAnswerError("a line between its chunks, or its trailer, is too long")
            if line_end >= 0:
                line, self._line = self._line[:-1].removesuffix(b"\r"), b""
                self._end_line(line)
        return data[start:]

    def _end_line(self, line: bytes) -> None:
        if self._phase == _CHUNK_END:
            self._phase = _SIZE
        elif self._phase == _TRAILER:
            self._other_bytes += len(line)
            self._phase = _TRAILER if line else _ENDED
        elif (size := _chunk_size(line)) < 0:
            raise BadAnswerError(f"{line[:20].decode('ascii', 'backslashreplace')!r} is no size of a chunk")
        else:
            self._left = size
            self._phase = _CHUNK if size else _TRAILER


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    name = ""
    for line in lines:
        if line[:1] in b" \t" and name:  # a folded line goes on with the one before
            headers[name] = f"{headers[name]} {line.strip().decode('latin-1')}".strip()
            continue
        raw_name, colon, value = line.partition(b":")
        raw_name = raw_name.rstrip(b" \t")
        if not colon or not _NAME.fullmatch(raw_name):
            raise BadAnswerError(f"its head holds {line[:40].decode('ascii', 'backslashreplace')!r}")
        name, text = raw_name.decode("ascii").lower(), value.strip().decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _keep_alive(headers: Mapping[str, str], *, new: bool) -> bool:
    """new: HTTP/1.1, where connections stay open unless told otherwise."""
    told = headers.get("connection")
    if told is None:
        return new
    options = {option.strip() for option in told.lower().split(",")}
    return "close" not in options and (new or "keep-alive" in options)


def _content_length(text: str) -> int:
    lengths = {each.strip() for each in text.split(",")}
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise BadAnswerError(f"its content-length is {text[:40]!r}")
    if int(length) > MOST_BODY_BYTES:
        raise BadAnswerError(f"the body is longer than {MOST_BODY_BYTES:,} bytes")
    return int(length)
