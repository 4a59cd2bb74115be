"""The replayer's hot path: store (time, bytes) of every read and do nothing else until the answer ended.

aiohttp opens, reuses and parses the connections. Its protocol class is replaced by one that, once the
head of a chunked answer is parsed, only stamps and keeps what arrives; the parser gets it at the end.
That costs about a third of parsing and waking a task on every read.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

import aiohttp
from aiohttp.client_proto import ResponseHandler

READ_BUFFER_BYTES = 64 << 20
"""How much unparsed answer one connection keeps before it is handed to the parser."""

IDLE_TIMEOUT_S = 600.0
"""An answer of which nothing comes for this long has failed, unless the caller says otherwise."""

_LOOK_S = 0.1
"""How often a stream is looked at for an end that its last bytes did not show."""


class Marks(NamedTuple):
    """When an answer's body arrived: at `at_ns[i]` (perf_counter), `body_bytes[i]` bytes of it were there.

    Two lists, one entry a read, both ascending.
    """

    at_ns: list[int]
    body_bytes: list[int]


class Answer(NamedTuple):
    """An answer as it came in. error: why it is not whole; `None` if it is."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    marks: Marks
    sent_ns: int
    end_ns: int
    error: str | None


class _BadFramingError(aiohttp.ClientPayloadError):
    """A chunked body whose chunks cannot be told apart."""


class _Recording:
    """What a connection notes of one answer: its marks, and the body that was parsed late."""

    def __init__(self, handler: _StampingHandler) -> None:
        self.marks = Marks([], [])
        self.late_body: list[bytes] = []
        self.handler = handler


class _StampingHandler(ResponseHandler):
    """Stamps every read; hands chunked bodies to the parser late.

    registry: where the recording of each answer is put, by the identity of its payload.
    idle_s: an answer of which nothing comes for so long has failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, registry: dict[int, _Recording], idle_s: float
    ) -> None:
        super().__init__(loop=loop)
        self._registry = registry
        self._idle_s = idle_s
        self._recording = _Recording(self)
        self._known: object = None
        self._head = b""
        self._kept: list[tuple[int, bytes]] | None = None
        self._kept_bytes = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self._heard_ns = 0

    def set_response_params(self, **options: Any) -> None:
        """Called by aiohttp for each request on the connection, before it is sent."""
        self._registry.pop(id(self._known), None)
        self._recording = _Recording(self)
        self._known = self._payload
        self._head = b""
        self._keep_no_more()
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        now_ns = perf_counter_ns()
        kept = self._kept
        # aiohttp itself calls with no data when it resumes its parser.
        if kept is None or not data:
            self._pass_on(now_ns, data)
            return
        kept.append((now_ns, data))
        self._kept_bytes += len(data)
        # A chunked body ends in an empty line; one that has them elsewhere is parsed more often, no worse.
        # An end that looks otherwise is found when nothing more comes, see `_look`.
        if data.endswith(b"\r\n\r\n") or self._kept_bytes > READ_BUFFER_BYTES:
            self.hand_over()

    def _pass_on(self, at_ns: int, data: bytes) -> None:
        """Let aiohttp parse `data`, note how much body it brought, and see whether a chunked body began."""
        self._heard_ns = at_ns
        super().data_received(data)
        payload = self._payload
        if payload is None:
            self._head += data
            return
        if payload is not self._known:
            # An answer begins, perhaps after interim ones (100, 103).
            self._known = payload
            self._registry[id(payload)] = self._recording
            head = (self._head + data).partition(b"\r\n\r\n")[0].lower()
            if b"\r\ntransfer-encoding: chunked" in head and not payload.is_eof():
                self._keep()
        if data and payload.total_bytes:
            self._recording.marks.at_ns.append(at_ns)
            self._recording.marks.body_bytes.append(payload.total_bytes)

    def _keep(self) -> None:
        # aiohttp would set a timer for every read that it parses; `_look` watches for silence instead.
        self._drop_timeout()
        self._read_timeout = None
        self._kept = []
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(_LOOK_S, self._look)

    def _keep_no_more(self) -> None:
        self._kept, self._kept_bytes = None, 0
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def _look(self) -> None:
        """Parse what has lain still for a while; see whether the endpoint has fallen silent."""
        self._look_timer = None
        if self._kept is None:
            return
        if self._kept:
            self._heard_ns = self._kept[-1][0]
        still_s = (perf_counter_ns() - self._heard_ns) / 1e9
        if self._kept and still_s > _LOOK_S / 2:
            self.hand_over()
        if still_s > self._idle_s:
            self._on_read_timeout()
        elif self._kept is not None:
            self._look_timer = self._loop.call_later(_LOOK_S, self._look)

    def hand_over(self) -> None:
        """Parse what was kept, and take the body out of the reader, which is slow for many small chunks."""
        kept = self._kept
        payload = self._payload
        if kept is None or payload is None:
            return
        self._kept, self._kept_bytes = [], 0
        times, sizes = self._recording.marks
        if kept:
            self._heard_ns = kept[-1][0]
        parse = super().data_received
        for at_ns, data in kept:
            parse(data)
            times.append(at_ns)
            sizes.append(payload.total_bytes)
        if self._exception is not None and not payload.is_eof():
            # aiohttp tells the next request on the connection, which closes, but not the reader of this one.
            # What the reader was woken for stays with it: it looks for an error only after it has read.
            payload.set_exception(_BadFramingError(self._exception))
            self._keep_no_more()
            return
        self._recording.late_body += payload._buffer
        payload._buffer.clear()
        payload._size = 0
        if payload._http_chunk_splits is not None:
            # Places of chunks that nobody will ask for; too many of them stop the reading.
            payload._http_chunk_splits.clear()
        if payload.is_eof():
            self._keep_no_more()

    def eof_received(self) -> None:
        self.hand_over()
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.hand_over()
        self._keep_no_more()
        super().connection_lost(exc)


class _Reused:
    """Whether a request went out on a connection that an earlier one had used."""

    yes = False


async def _note_reuse(session: aiohttp.ClientSession, context: Any, params: object) -> None:
    context.trace_request_ctx.yes = True


class StampingClient:
    """An HTTP client for streams whose arrival times matter; an async context manager.

    Every time in its answers is `perf_counter_ns`. headers: sent with every request. idle_s: an answer of
    which nothing comes for so long has failed.
    """

    def __init__(self, *, headers: dict[str, str] | None = None, idle_s: float = IDLE_TIMEOUT_S) -> None:
        self._headers = headers or {}
        self._idle_s = idle_s
        self._recordings: dict[int, _Recording] = {}

    async def __aenter__(self) -> StampingClient:
        connector = aiohttp.TCPConnector(limit=0)
        # aiohttp has no public way to choose its protocol class.
        connector._factory = functools.partial(  # type: ignore[assignment]
            _StampingHandler,
            asyncio.get_running_loop(),
            self._recordings,
            self._idle_s,
        )
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=connector,
            trace_configs=[tracing],
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=self._idle_s),
            read_bufsize=READ_BUFFER_BYTES,
            auto_decompress=False,
            headers={"accept-encoding": "identity", **self._headers},
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send a JSON body once; never raises for what the network or the endpoint does.

        An endpoint that closes an idle connection just as a request goes out on it has not seen the
        request, so in that one case it goes out again; its time counts from the first attempt.
        """
        reused = _Reused()
        answer = await self._post(url, body, headers, reused)
        took_ns = answer.end_ns - answer.sent_ns
        if answer.error in (_CLOSED, _RESET) and answer.status is None and reused.yes and took_ns < _STALE_NS:
            again = await self._post(url, body, headers, reused)
            return again._replace(sent_ns=answer.sent_ns)
        return answer

    async def _post(self, url: str, request: bytes, headers: dict[str, str], reused: _Reused) -> Answer:
        response: aiohttp.ClientResponse | None = None
        parts: list[bytes] = []
        error: str | None = None
        headers = {"content-type": "application/json", **headers}
        sent_ns = perf_counter_ns()
        try:
            async with self._session.post(
                url, data=request, headers=headers, allow_redirects=False, trace_request_ctx=reused
            ) as response:
                try:
                    async for part in response.content.iter_any():
                        parts.append(part)
                except BaseException:
                    # Whatever broke it off, what had come by then is kept.
                    if recording := self._recordings.get(id(response.content)):
                        recording.handler.hand_over()
                    raise
        except TimeoutError:
            error = f"nothing came from the endpoint for {self._idle_s:g} s"
        except aiohttp.ServerDisconnectedError:
            error = _CLOSED
        except (aiohttp.ClientConnectorError, aiohttp.ClientPayloadError) as failure:
            error = _reason(failure)
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            error = _RESET if _is_reset(failure) else _reason(failure)
        except RuntimeError:
            # aiohttp's, of a connection that broke together with its last bytes: they woke the reader, which
            # finds the connection gone before it is told why.
            broken = response.content.exception() if response is not None else None
            if broken is None:
                raise
            error = _reason(broken)
        end_ns = perf_counter_ns()
        if response is None:
            return Answer(None, {}, b"", Marks([], []), sent_ns, end_ns, error)
        recording = self._recordings.pop(id(response.content), None)
        marks = recording.marks if recording else Marks([], [])
        parts += recording.late_body if recording else ()
        if error is not None:
            # A broken StreamReader refuses to be read, so what it still holds is taken as it stands.
            parts += response.content._buffer
        return Answer(response.status, response.headers, b"".join(parts), marks, sent_ns, end_ns, error)


_CLOSED = "the endpoint closed the connection without an answer"

_RESET = "the endpoint reset the connection without an answer"

_STALE_NS = 100_000_000
"""A connection that is closed later than this after a request was closed by what the request did."""


def _is_reset(failure: BaseException) -> bool:
    # uvloop's errors of writing to a connection that is closed have no number.
    numbers = (errno.ECONNRESET, errno.EPIPE)
    return getattr(failure, "errno", None) in numbers or "write request body" in str(failure)


def _reason(failure: BaseException) -> str:
    """One line for a failed connection or stream."""
    if isinstance(failure, _BadFramingError):
        message = getattr(failure.args[0], "message", "") or str(failure.args[0])
        return f"the stream is not valid HTTP: {message.splitlines()[0]}"
    if isinstance(failure, aiohttp.ClientPayloadError):
        return "the stream was cut off before its end"
    text = " ".join(str(failure).split()) or type(failure).__name__
    if isinstance(failure, aiohttp.ClientResponseError):
        return f"no valid HTTP answer: {failure.message.partition(chr(10))[0] or 'no reason given'}"
    return text
