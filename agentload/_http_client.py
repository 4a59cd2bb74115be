"""The replayer's hot path: store (time, bytes) of every read and do nothing else until the answer ended.

aiohttp opens, reuses and parses the connections. Its protocol class is replaced by one that, once the
head of a chunked answer is parsed, only stamps and keeps what arrives; the parser gets it at the end.
That costs about a third of parsing and waking a task on every read.
"""

from __future__ import annotations

import asyncio
import functools
from time import perf_counter_ns
from typing import Any, NamedTuple

import aiohttp
from aiohttp.client_proto import ResponseHandler

READ_BUFFER_BYTES = 64 << 20
"""How much unparsed answer one connection keeps before it is handed to the parser."""

REQUEST_TIMEOUT_S = 600.0
"""A request that is not answered whole within this time has failed."""


class Marks(NamedTuple):
    """When an answer's body arrived: at `at_ns[i]` (perf_counter), `body_bytes[i]` bytes of it were there.

    Two lists, one entry a read, both ascending.
    """

    at_ns: list[int]
    body_bytes: list[int]


class Answer(NamedTuple):
    """An answer as it came in. error: why it is not whole; `None` if it is."""

    status: int | None
    content_type: str
    body: bytes
    marks: Marks
    sent_ns: int
    end_ns: int
    error: str | None


class _Recording:
    """What a connection notes of one answer: its marks, and the body that was parsed late."""

    def __init__(self) -> None:
        self.marks = Marks([], [])
        self.late_body: list[bytes] = []


class _StampingHandler(ResponseHandler):
    """Stamps every read; hands chunked bodies to the parser late.

    registry: where the recording of each answer is put, by the identity of its payload.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, registry: dict[int, _Recording]) -> None:
        super().__init__(loop=loop)
        self._registry = registry
        self._recording = _Recording()
        self._previous: object = None
        self._head = b""
        self._kept: list[tuple[int, bytes]] | None = None
        self._kept_bytes = 0

    def set_response_params(self, **options: Any) -> None:
        """Called by aiohttp for each request on the connection, before it is sent."""
        self._recording = _Recording()
        self._previous = self._payload
        self._head = b""
        self._kept, self._kept_bytes = None, 0
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
        if data.endswith(b"\r\n\r\n") or len(data) < 4 or self._kept_bytes > READ_BUFFER_BYTES:
            self._look_for_end(data)

    def _look_for_end(self, data: bytes) -> None:
        # The last bytes may come alone, so a short read looks back at the ones before.
        tail = data if len(data) > 3 else b"".join(part for _, part in (self._kept or [])[-4:])
        if tail.endswith(b"\r\n\r\n") or self._kept_bytes > READ_BUFFER_BYTES:
            self._hand_over()

    def _pass_on(self, at_ns: int, data: bytes) -> None:
        """Let aiohttp parse `data`, note how much body it brought, and see whether a chunked body began."""
        started = self._payload is not self._previous
        super().data_received(data)
        payload = self._payload
        if payload is None or payload is self._previous:
            self._head += data
            return
        if not started:
            self._registry[id(payload)] = self._recording
            head = (self._head + data).partition(b"\r\n\r\n")[0].lower()
            if b"\r\ntransfer-encoding: chunked" in head and not payload.is_eof():
                self._drop_timeout()
                self._kept = []
        if data and payload.total_bytes:
            self._recording.marks.at_ns.append(at_ns)
            self._recording.marks.body_bytes.append(payload.total_bytes)

    def _hand_over(self) -> None:
        """Parse what was kept, and take the body out of the reader, which is slow for many small chunks."""
        kept, self._kept, self._kept_bytes = self._kept or [], None, 0
        payload = self._payload
        assert payload is not None
        times, sizes = self._recording.marks
        parse = super().data_received
        for at_ns, data in kept:
            parse(data)
            times.append(at_ns)
            sizes.append(payload.total_bytes)
        self._recording.late_body += payload._buffer
        payload._buffer.clear()
        payload._size = 0
        if not payload.is_eof():
            self._kept = []

    def eof_received(self) -> None:
        if self._kept:
            self._hand_over()
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._kept:
            self._hand_over()
        super().connection_lost(exc)


class StampingClient:
    """An HTTP client for streams whose arrival times matter; an async context manager.

    Every time in its answers is `perf_counter_ns`.
    """

    def __init__(self, *, headers: dict[str, str] | None = None) -> None:
        self._headers = headers or {}
        self._recordings: dict[int, _Recording] = {}

    async def __aenter__(self) -> StampingClient:
        connector = aiohttp.TCPConnector(limit=0)
        # aiohttp has no public way to choose its protocol class.
        connector._factory = functools.partial(  # type: ignore[assignment]
            _StampingHandler, asyncio.get_running_loop(), self._recordings
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            read_bufsize=READ_BUFFER_BYTES,
            auto_decompress=False,
            headers={"accept-encoding": "identity", **self._headers},
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send a JSON body; never raises for what the network or the endpoint does."""
        answer = await self._post(url, body, headers)
        if answer.status is None and answer.error == _STALE:
            # The endpoint closed an idle connection as this request went out on it; nothing was answered.
            answer = await self._post(url, body, headers)
        return answer

    async def _post(self, url: str, request: bytes, headers: dict[str, str]) -> Answer:
        response: aiohttp.ClientResponse | None = None
        parts: list[bytes] = []
        error: str | None = None
        headers = {"content-type": "application/json", **headers}
        sent_ns = perf_counter_ns()
        try:
            async with (
                asyncio.timeout(REQUEST_TIMEOUT_S),
                self._session.post(url, data=request, headers=headers) as response,
            ):
                async for part in response.content.iter_any():
                    parts.append(part)
        except TimeoutError:
            error = f"no whole answer within {REQUEST_TIMEOUT_S:g} s"
        except aiohttp.ServerDisconnectedError:
            error = _STALE
        except (aiohttp.ClientError, OSError) as failure:
            error = _reason(failure)
        end_ns = perf_counter_ns()
        if response is None:
            return Answer(None, "", b"", Marks([], []), sent_ns, end_ns, error)
        recording = self._recordings.pop(id(response.content), _Recording())
        parts += recording.late_body
        if error is not None:
            # A broken StreamReader refuses to be read, so what it still holds is taken as it stands.
            parts += response.content._buffer
        content_type = response.headers.get("content-type", "")
        body = b"".join(parts)
        return Answer(response.status, content_type, body, recording.marks, sent_ns, end_ns, error)


_STALE = "the endpoint closed the connection without an answer"


def _reason(failure: BaseException) -> str:
    """One line for a failed connection or stream."""
    if isinstance(failure, aiohttp.ClientPayloadError):
        return "the stream was cut off before its end"
    text = " ".join(str(failure).split())
    return text or type(failure).__name__
