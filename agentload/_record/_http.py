"""Where HTTP/1.1 messages begin and end in a stream of bytes, without touching the bytes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

_MOST_HEAD_BYTES = 1 << 20
_MOST_LINE_BYTES = 1 << 16
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(rb"\r?\n")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")
_NUMBER = re.compile(rb"[0-9]{1,18}")


class NotHttpError(Exception):
    """The bytes are no HTTP/1.1 message, so nobody can say where it ends."""


class Head(NamedTuple):
    """The head of a message. raw: all of it, with the empty line. start: its first line, split in three.

    fields: names in lower case and values, in order.
    """

    raw: bytes
    start: tuple[bytes, bytes, bytes]
    fields: tuple[tuple[bytes, bytes], ...]

    def field(self, name: bytes) -> bytes | None:
        """The first value under a name in lower case."""
        return next((value for known, value in self.fields if known == name), None)

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.start[1])


class End:
    """A message is whole."""


END = End()

Part = Head | bytes | End
"""What a stream of messages consists of; bytes are those of a body, framing included."""


class Body(Protocol):
    """Finds the end of a body."""

    def feed(self, data: bytes, at: int) -> int | None:
        """Take the bytes from `at` on; return where the body ended in them, `None` if it goes on."""
        ...


class LengthBody:
    """A body of so many bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    def feed(self, data: bytes, at: int) -> int | None:
        """See `Body`."""
        here = len(data) - at
        if here < self._left:
            self._left -= here
            return None
        return at + self._left


class OpenBody:
    """A body that ends with its connection."""

    def feed(self, data: bytes, at: int) -> int | None:
        """See `Body`."""
        return None


class ChunkedBody:
    """A chunked body. keep: a list that takes the content, without its framing."""

    def __init__(self, keep: list[bytes] | None = None) -> None:
        self._keep = keep
        self._content = 0
        self._after = 0  # the line end behind a chunk
        self._line = b""
        self._trailer = False

    def feed(self, data: bytes, at: int) -> int | None:
        """See `Body`; raises `NotHttpError` for a chunk that has no size."""
        size = len(data)
        while True:
            if self._content:
                taken = min(self._content, size - at)
                if self._keep is not None and taken:
                    self._keep.append(data[at : at + taken])
                self._content -= taken
                at += taken
            if self._content:
                return None
            if self._after:
                taken = min(self._after, size - at)
                self._after -= taken
                at += taken
            end = data.find(b"\n", at)
            if self._after or end < 0:
                self._line += data[at:]
                if len(self._line) > _MOST_LINE_BYTES:
                    raise NotHttpError("a line between chunks does not end")
                return None
            line = (self._line + data[at:end]).removesuffix(b"\r")
            self._line, at = b"", end + 1
            if self._trailer:
                if not line:
                    return at
                continue
            number = _HEX.fullmatch(line.partition(b";")[0].strip())
            if number is None:
                raise NotHttpError("a chunk has no size")
            self._content = int(number[0], 16)
            self._trailer = not self._content
            self._after = 2 if self._content else 0


class Messages:
    """Splits what one side of a connection sends."""

    def __init__(self) -> None:
        self._head = b""
        self._body: Body | None = None
        self.rest = b""
        """What had come of the message that could not be followed, once `feed` has raised."""

    @property
    def inside(self) -> bool:
        """Whether a message has begun and is not whole."""
        return self._body is not None or bool(self._head)

    def feed(self, data: bytes) -> Iterator[Part]:
        """The parts of what has come, in order; raises `NotHttpError`."""
        at = 0
        if self._head:
            data, self._head = self._head + data, b""
        while at < len(data):
            try:
                if self._body is None:
                    end, parts = self._from_head(data, at)
                else:
                    end, parts = self._from_body(data, at, self._body)
            except NotHttpError:
                self.rest = data[at:]
                raise
            yield from parts
            at = end

    def _from_body(self, data: bytes, at: int, body: Body) -> tuple[int, tuple[Part, ...]]:
        end = body.feed(data, at)
        if end is None:
            return len(data), (data[at:] if at else data,)
        self._body = None
        return end, (data[at:end], END) if end > at else (END,)

    def _from_head(self, data: bytes, at: int) -> tuple[int, tuple[Part, ...]]:
        found = _HEAD_END.search(data, at)
        if found is None:
            self._head = data[at:]
            if len(self._head) > _MOST_HEAD_BYTES or not self._head[:1].isalpha():
                raise NotHttpError("what comes is no head")
            return len(data), ()
        head = read_head(data[at : found.end()])
        body = self.body_after(head)
        if body is None:
            return found.end(), (head, *self.without_body(head))
        if isinstance(body, LengthBody) and body.feed(b"", 0) == 0:
            return found.end(), (head, END)
        self._body = body
        return found.end(), (head,)

    def eof(self) -> bool:
        """The sender has ended; return whether that made its message whole."""
        return isinstance(self._body, OpenBody)

    def body_after(self, head: Head) -> Body | None:
        """The body that follows a head; `None` for none."""
        raise NotImplementedError

    def without_body(self, head: Head) -> tuple[Part, ...]:
        """What a head that no body follows means."""
        return (END,)


class Requests(Messages):
    """Splits requests."""

    def body_after(self, head: Head) -> Body | None:
        """See `Messages`."""
        return framed_body(head)


class Answers(Messages):
    """Splits answers. methods: of the requests that have no answer yet; an answer takes its own away."""

    def __init__(self) -> None:
        super().__init__()
        self.methods: deque[bytes] = deque()

    def body_after(self, head: Head) -> Body | None:
        """See `Messages`; raises `NotHttpError` for what is no HTTP from here on."""
        status = head.status
        if 100 <= status < 200:
            if status == 101:
                raise NotHttpError("the connection was upgraded")
            return None
        if not self.methods:
            raise NotHttpError("an answer that nobody asked for")
        method = self.methods.popleft()
        if method == b"CONNECT" and status < 300:
            raise NotHttpError("the connection is a tunnel now")
        if method == b"HEAD" or status in (204, 304):
            return None
        return framed_body(head) or OpenBody()

    def without_body(self, head: Head) -> tuple[Part, ...]:
        """See `Messages`; an interim answer is none yet."""
        return (END,) if head.status >= 200 else ()


def framed_body(head: Head) -> Body | None:
    """The body whose end its head tells; `None` if it tells none. Raises `NotHttpError`."""
    coding = head.field(b"transfer-encoding")
    if coding is not None and coding.lower().rpartition(b",")[2].strip() == b"chunked":
        return ChunkedBody()
    length = head.field(b"content-length")
    if coding is None and length is not None:
        if _NUMBER.fullmatch(length) is None:
            raise NotHttpError("a length that is no number")
        return LengthBody(int(length))
    return None


def read_head(raw: bytes) -> Head:
    """Read a head, with the empty line at its end; raises `NotHttpError`."""
    first, *lines = _LINE_END.split(raw.rstrip(b"\r\n"))
    start = first.split(b" ", 2)
    if len(start) < 2 or not (start[0].startswith(b"HTTP/1.") or start[-1].startswith(b"HTTP/1.")):
        raise NotHttpError("a first line that is not HTTP/1")
    if start[0].startswith(b"HTTP/1.") and not re.fullmatch(rb"[1-9][0-9][0-9]", start[1]):
        raise NotHttpError("a status that is no number")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            fields.append((name.lower(), value.strip()))
    return Head(raw, (start[0], start[1], start[2] if len(start) > 2 else b""), tuple(fields))
