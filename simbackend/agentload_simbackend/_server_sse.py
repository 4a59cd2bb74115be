"""Server-sent events in HTTP chunks, each event a chunk of its own as real endpoints send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, repeat
from operator import add
from typing import Protocol

from agentload_simbackend._api import Finished

_TOKENS_AHEAD = 64

LAST_EVENT = b"e\r\ndata: [DONE]\n\n\r\n"


class StreamRenderer(Protocol):
    """Turns the progress of one answer into bytes of its API's wire format, framed as HTTP chunks."""

    def steps(self, first: int, ends: list[int]) -> bytes | memoryview:
        """Return the bytes for decode steps that brought the answer from `first` tokens to each of `ends`.

        Called in order, with at least one step; an event a step.
        """
        ...

    def closing(self, finished: Finished, server_ns: int) -> bytes:
        """Return the bytes that follow the last token, without the end of the HTTP body.

        server_ns: time from the arrival of the request to this write.
        """
        ...

    def error(self, message: str, code: str) -> bytes:
        """Return the bytes that tell of an error after the stream has begun."""
        ...


def framed_event(data: bytes) -> bytes:
    """Return an SSE event with the one line `data`, as one HTTP chunk."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


class EventHeads(dict[int, bytes]):
    """What precedes the content of an event, chunk size included, for each length of the content."""

    def __init__(self, before: bytes, after: bytes) -> None:
        super().__init__()
        self._before = b"data: " + before
        self._fixed_bytes = len(self._before) + len(after) - len(b"\r\n")

    def __missing__(self, content_bytes: int) -> bytes:
        head = b"%x\r\n%b" % (self._fixed_bytes + content_bytes, self._before)
        self[content_bytes] = head
        return head


EventParts = tuple[list[bytes], list[bytes], bytes]
"""Events in parts: the head of each, the content of each, and what follows each content."""


def join_events(parts: EventParts) -> bytes:
    """Return events as one piece."""
    heads, contents, end = parts
    return b"".join(chain.from_iterable(zip(heads, contents, repeat(end))))


class RenderedAhead:
    """Events of one token each, rendered in blocks of 64 before they are due.

    A write is then a slice of bytes that lie ready, the cheapest there is for streams of a token a step.
    render: returns the events of the steps from a token count to each of the following ones.
    phase: any number; where it differs, streams that began together do not render in the same wake-up.
    """

    def __init__(
        self, render: Callable[[int, Sequence[int]], EventParts], output_tokens: int, phase: int
    ) -> None:
        self._render = render
        self._output_tokens = output_tokens
        self._phase = phase
        self._first = self._last = 0
        self._data = memoryview(b"")
        self._offsets: list[int] = [0]

    def slice(self, first: int, last: int) -> bytes | memoryview:
        """Return the events of tokens `first` to `last`; called in order."""
        if first < self._first or first > self._last:
            self._first = self._last = first
        start = self._offsets[first - self._first] if first < self._last else len(self._data)
        if last <= self._last:
            return self._data[start : self._offsets[last - self._first]]
        rest = self._data[start:]
        self._load(max(first, self._last), last)
        more = self._data[: self._offsets[last - self._first]]
        return b"".join((rest, more)) if rest else more

    def _load(self, first: int, last: int) -> None:
        self._first = first
        block_end = first + _TOKENS_AHEAD - (first + self._phase) % _TOKENS_AHEAD
        self._last = max(last, min(block_end, self._output_tokens))
        parts = heads, contents, end = self._render(first, range(first + 1, self._last + 1))
        self._data = memoryview(join_events(parts))
        sizes = map(add, map(len, heads), map(len, contents))
        self._offsets = list(accumulate(map(len(end).__add__, sizes), initial=0))
