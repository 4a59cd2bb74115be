"""One client's connection and its own connection to the endpoint.

Bytes go up and down as they come, each side no faster than the other reads; only the heads of requests are
changed (see `Upstream.rewritten`). What becomes of one connection becomes of the other: an end is an end, a
reset a reset. A client that closes its sending side has gone, as for `agentload serve`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from agentload._record._exchange import Exchange, Outcome
from agentload._record._http import Answers, End, Head, NotHttpError, Requests
from agentload._record._upstream import Upstream

_WAITING_BYTES = 256 << 10
"""How much of a request is read before its connection to the endpoint stands."""


class Recorder(Protocol):
    """What notes the exchanges. `begin`: `None` for a request that is not to be recorded."""

    def begin(self, head: Head, start_ns: int) -> Exchange | None:
        """A request has begun."""
        ...

    def keep(self, exchange: Exchange, data: bytes, at_ns: int | None) -> None:
        """Copy bytes of the request, or of the answer with the time they came at."""
        ...

    def answered(self, exchange: Exchange, head: Head) -> None:
        """The answer's head has come."""
        ...

    def end(self, exchange: Exchange, outcome: Outcome) -> None:
        """The answer is over."""
        ...

    def passed_blind(self) -> None:
        """From here on a connection carries what is no HTTP/1, or none that can be followed."""
        ...

    def held_request(self, taken_ns: int) -> None:
        """Bytes of a request went up, so long after they had come."""
        ...

    def held_answer(self, taken_ns: int) -> None:
        """Bytes of an answer went down, so long after they had come."""
        ...

    def opened(self, taken_ns: int) -> None:
        """A connection to the endpoint was opened in this time."""
        ...


class Pair:
    """Two connections. closed: called once, when the client's is gone."""

    def __init__(self, upstream: Upstream, recorder: Recorder, closed: Callable[[Pair], None]) -> None:
        self._upstream, self._recorder, self._closed = upstream, recorder, closed
        self._requests: Requests | None = Requests()
        self._answers: Answers | None = Answers()
        self._running: deque[Exchange | None] = deque()
        """Requests without a whole answer, in their order."""
        self._sending: Exchange | None = None
        self._client: asyncio.Transport | None = None
        self._server: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._waited_ns = 0
        self._opening: asyncio.Task[None] | None = None
        self._draining = False
        self.client_side = ClientSide(self)

    # The client's side

    def client_connected(self, transport: asyncio.Transport) -> None:
        """A client is there."""
        self._client = transport
        if self._draining:
            transport.close()

    def client_sent(self, data: bytes) -> None:
        """Pass on a part of a request."""
        start_ns = perf_counter_ns()
        out = self._request_parts(data, start_ns)
        if self._server is not None:
            self._server.write(out)
            self._recorder.held_request(perf_counter_ns() - start_ns)
            return
        self._waiting.append(out)
        self._waited_ns += perf_counter_ns() - start_ns
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        if sum(map(len, self._waiting)) > _WAITING_BYTES and self._client is not None:
            self._client.pause_reading()

    def client_gone(self) -> None:
        """Give up what the client no longer waits for."""
        if self._opening is not None:
            self._opening.cancel()
        if self._server is not None:
            if self._running:
                self._server.abort()
            else:
                self._server.close()
        self._end_all("cancelled")
        self._client = None
        self._closed(self)

    # The endpoint's side

    def server_sent(self, data: bytes) -> None:
        """Pass on a part of an answer, and only then look at it."""
        at_ns = perf_counter_ns()
        if self._client is not None:
            self._client.write(data)
        self._recorder.held_answer(perf_counter_ns() - at_ns)
        if self._answers is None:
            return
        try:
            for part in self._answers.feed(data):
                exchange = self._running[0] if self._running else None
                if isinstance(part, End):
                    self._running.popleft()
                    if exchange is not None:
                        self._recorder.end(exchange, "whole")
                    if exchange is self._sending:
                        self._sending = None  # an answer may come before its request is whole
                elif exchange is None:
                    continue
                elif isinstance(part, bytes):
                    self._recorder.keep(exchange, part, at_ns)
                elif part.status >= 200:
                    self._recorder.answered(exchange, part)
        except NotHttpError:
            self._blind()
        if self._draining and not self._running:
            self._close()

    def server_ended(self) -> None:
        """The endpoint has closed its sending side."""
        whole = self._answers is not None and self._answers.eof()
        if whole and self._running and (exchange := self._running.popleft()) is not None:
            self._recorder.end(exchange, "whole")

    def server_gone(self, error: Exception | None) -> None:
        """End the client's connection as the endpoint's ended."""
        self._server = None
        self._end_all("reset" if error else "cut_off")
        if self._client is None:
            return
        if error is None:
            self._client.close()
        else:
            _reset(self._client)

    # Both

    def hold_client(self, *, reading: bool) -> None:
        """Read on from the client, or not: the endpoint reads slower than it sends."""
        _hold(self._client, reading)

    def hold_server(self, *, reading: bool) -> None:
        """Read on from the endpoint, or not: the client reads slower than it sends."""
        _hold(self._server, reading)

    def drain(self) -> None:
        """Close as soon as no answer is on its way."""
        self._draining = True
        if not self._running and not (self._requests is not None and self._requests.inside):
            self._close()

    def stop(self) -> None:
        """Close now."""
        self._end_all("stopped")
        if self._opening is not None:
            self._opening.cancel()
        for transport in (self._client, self._server):
            if transport is not None:
                transport.abort()

    def _request_parts(self, data: bytes, start_ns: int) -> bytes:
        """What of a request goes up for what came, with heads rewritten."""
        if self._requests is None:
            return data
        out: list[bytes] = []
        try:
            for part in self._requests.feed(data):
                if isinstance(part, Head):
                    out.append(self._upstream.rewritten(part))
                    self._sending = self._recorder.begin(part, start_ns)
                    self._running.append(self._sending)
                    if self._answers is not None:
                        self._answers.methods.append(part.start[0])
                elif isinstance(part, bytes):
                    out.append(part)
                    if self._sending is not None:
                        self._recorder.keep(self._sending, part, None)
        except NotHttpError:
            out.append(self._requests.rest)
            self._blind()
        return out[0] if len(out) == 1 else b"".join(out)

    def _blind(self) -> None:
        """Pass bytes from now on without looking at them."""
        if self._requests is not None or self._answers is not None:
            self._recorder.passed_blind()
        self._requests = self._answers = None
        self._end_all("cut_off")

    def _end_all(self, outcome: Outcome) -> None:
        while self._running:
            exchange = self._running.popleft()
            if exchange is not None:
                self._recorder.end(exchange, outcome)
        self._sending = None

    async def _open(self) -> None:
        start_ns = perf_counter_ns()
        try:
            server = await self._upstream.connect(ServerSide(self))
        except (OSError, UnicodeError) as error:  # some strings cannot be the name of a host
            self._refuse(error)
            return
        finally:
            self._opening = None
        opened_ns = perf_counter_ns()
        self._recorder.opened(opened_ns - start_ns)
        if self._client is None:
            server.abort()
            return
        self._server = server
        self._client.resume_reading()  # before the write, which may make it pause again
        server.write(b"".join(self._waiting))
        self._waiting.clear()
        self._recorder.held_request(self._waited_ns + perf_counter_ns() - opened_ns)

    def _refuse(self, error: OSError | UnicodeError) -> None:
        """Answer 502: there is no connection that could end as the endpoint's does."""
        self._end_all("unreachable")
        if self._client is None:
            return
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        message = f"agentload record: cannot connect to {self._upstream.url}: {reason}"
        error_body = {"message": message, "type": "upstream_unreachable", "code": 502}
        body = json.dumps({"error": error_body}).encode()
        head = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self._client.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self._client.close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()


class ClientSide(asyncio.Protocol):
    """The client's connection."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._pair.client_connected(transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._pair.client_sent(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._pair.client_gone()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._pair.hold_server(reading=False)

    def resume_writing(self) -> None:
        """See asyncio."""
        self._pair.hold_server(reading=True)


class ServerSide(asyncio.Protocol):
    """The connection to the endpoint."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._pair.server_sent(data)

    def eof_received(self) -> None:
        """See asyncio."""
        self._pair.server_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._pair.server_gone(exc)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._pair.hold_client(reading=False)

    def resume_writing(self) -> None:
        """See asyncio."""
        self._pair.hold_client(reading=True)


def _hold(transport: asyncio.Transport | None, reading: bool) -> None:
    if transport is not None:
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()


def _reset(transport: asyncio.Transport) -> None:
    """Close a connection by RST: a socket that lingers for no time does."""
    connection: socket.socket = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
