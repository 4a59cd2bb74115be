"""One connection on which requests go out one after the other, and the stamps of what comes back.

A read is stamped, kept, and looked at only as far as its framing needs; see `AnswerReader`.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import cast

from agentload._http_framing import AnswerReader, BadAnswerError
from agentload_traces import ErrorKind

_FULL_READ_BYTES = 250_000
"""A read of this many bytes may have left some behind: both event loops take no more than 256,000 at once."""

_TIMER_NS = 1_000_000
"""Event loops count time in milliseconds, so a timer may be this much early."""

CLOSED = "the endpoint closed the connection without an answer"
RESET = "the endpoint reset the connection without an answer"
CUT_OFF = "the stream was cut off before its end"


class Exchange:
    """A request on its way and what has come of its answer.

    done: set when it is over, however it ended. error: why its answer is not whole.
    written_ns: when the operating system had taken the whole request; `None` if it never had.
    unread_bytes: the most that lay unread in the socket when a read began, which is what the read took, and
        more only if it took all that it could. One write of the endpoint is no worry.
    """

    __slots__ = ("done", "end_ns", "error", "error_kind", "reader", "timers", "unread_bytes", "written_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, only_head: bool = False) -> None:
        self.reader = AnswerReader(only_head=only_head)
        self.done: asyncio.Future[None] = loop.create_future()
        self.timers: list[asyncio.TimerHandle] = []
        self.written_ns: int | None = None
        self.end_ns = 0
        self.error: str | None = None
        self.error_kind: ErrorKind | None = None
        self.unread_bytes = 0


class HttpConnection(asyncio.Protocol):
    """A connection to an endpoint. stall_s: an answer of which nothing comes for so long has failed."""

    def __init__(self, stall_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self._stall_s = stall_s
        self._stall_timer: asyncio.TimerHandle | None = None
        self._heard_ns = 0
        self._exchange: Exchange | None = None
        self._paused = False
        self._over = False
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self.idle_since_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(transport)

    def use(self, transport: asyncio.BaseTransport) -> None:
        """Go on over `transport`, which is that of TLS on top of the one before."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class
        # With no room for unsent bytes `resume_writing` tells when the last of them is gone.
        self.transport.set_write_buffer_limits(high=0)

    @property
    def usable(self) -> bool:
        """Whether a request may go out."""
        return not (self._over or self._exchange is not None or self.transport.is_closing())

    def send(self, request: list[bytes], exchange: Exchange) -> None:
        """Send a request; `exchange.done` tells when it is over."""
        self._exchange = exchange
        self._heard_ns = perf_counter_ns()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._stall_s, self._look)
        try:
            self.transport.writelines(request)
        except (OSError, RuntimeError):  # closed, but not yet told
            self.fail("reset", RESET)
            return
        if not self._paused:
            exchange.written_ns = perf_counter_ns()

    def at(self, after_s: float, fire: Callable[[], None]) -> None:
        """Call `fire` after a time, unless the exchange is over by then."""
        assert self._exchange is not None
        self._exchange.timers.append(self.loop.call_later(max(0.0, after_s), fire))

    def data_received(self, data: bytes) -> None:
        now_ns = perf_counter_ns()
        exchange = self._exchange
        if exchange is None:
            self.abort()  # what nobody has asked for would be taken for the next answer
            return
        self._heard_ns = now_ns
        size = len(data)
        if size > exchange.unread_bytes:
            exchange.unread_bytes = size if size < _FULL_READ_BYTES else size + self._left_unread()
        try:
            if exchange.reader.feed(now_ns, data):
                self._end(exchange, now_ns)
        except BadAnswerError as bad:
            what = "the stream is not valid HTTP" if exchange.reader.status else "no valid HTTP answer"
            self.fail("bad_stream", f"{what}: {bad}")

    def _left_unread(self) -> int:
        left = array.array("i", [0])
        with suppress(OSError, AttributeError, ValueError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, left)
        return left[0]

    def _end(self, exchange: Exchange, now_ns: int) -> None:
        self._exchange = None
        exchange.end_ns = self.idle_since_ns = now_ns
        for timer in exchange.timers:
            timer.cancel()
        if exchange.error is not None or not exchange.reader.keep_alive or exchange.written_ns is None:
            self.abort()
        if not exchange.done.done():
            exchange.done.set_result(None)

    def fail(self, kind: ErrorKind, error: str) -> None:
        """End the exchange that is on its way, and with it the connection; what came is kept."""
        exchange = self._exchange
        if exchange is not None:
            exchange.error, exchange.error_kind = error, kind
            self._end(exchange, perf_counter_ns())

    def _look(self) -> None:
        """See whether the endpoint has fallen silent. One timer serves many answers; reads leave it."""
        self._stall_timer = None
        if self._exchange is None:
            return
        left_ns = self._heard_ns + round(self._stall_s * 1e9) - perf_counter_ns()
        if left_ns <= _TIMER_NS:
            self.fail("stall_timeout", f"nothing came from the endpoint for {self._stall_s:g} s")
        else:
            self._stall_timer = self.loop.call_later(left_ns / 1e9, self._look)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._heard_ns = perf_counter_ns()
        if self._exchange is not None and self._exchange.written_ns is None:
            self._exchange.written_ns = self._heard_ns

    def eof_received(self) -> None:
        self._close(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._close(exc)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if not self.lost.done():
            self.lost.set_result(None)

    def _close(self, exc: BaseException | None) -> None:
        self._over = True
        exchange = self._exchange
        if exchange is None:
            return
        if exc is None and exchange.reader.feed_eof():
            self._end(exchange, perf_counter_ns())
        elif exchange.reader.status is not None:
            self.fail("cut_off", CUT_OFF)
        else:
            self.fail("reset", CLOSED if exc is None else RESET)

    def abort(self) -> None:
        """Close at once."""
        self._over = True
        self.transport.abort()
