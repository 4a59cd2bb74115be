"""The proxy: listens, pairs connections, and copies what is to be recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType

import msgspec

from agentload._options import Api
from agentload._record._exchange import Exchange, Outcome, kept_fields
from agentload._record._http import Head
from agentload._record._latency import Latency, LatencySummary
from agentload._record._pair import Pair
from agentload._record._upstream import Upstream
from agentload_traces import AgentloadError

MOST_HELD_BYTES = 512 << 20
"""Copies that may be in memory at a time, of answers on their way and of those that are not read yet."""

_BACKLOG = 1024

_APIS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "chat"),
    ("/completions", "completions"),
    ("/responses", "responses"),
    ("/messages", "messages"),
)


class Passed(msgspec.Struct, kw_only=True):
    """What went through.

    recorded: exchanges handed on. other_requests: of other paths and methods. blind_connections: carried
    something else than HTTP/1.1 in the end (a WebSocket). dropped: exchanges that were not copied, to save
    memory. request_latency, answer_latency: from each read of a side to its write on the other, without the
    time in which a connection to the endpoint was opened, which connecting counts.
    """

    recorded: int = 0
    other_requests: int = 0
    blind_connections: int = 0
    dropped: int = 0
    request_latency: LatencySummary
    answer_latency: LatencySummary
    connecting: LatencySummary


class Copies:
    """Copies exchanges, and hands each on when its answer has ended.

    session_fields: names of headers to keep. hand_on: takes an exchange, and calls `release` with its size
    when it is out of this process.
    """

    def __init__(
        self,
        session_fields: frozenset[str],
        hand_on: Callable[[Exchange], None],
        *,
        most_held_bytes: int = MOST_HELD_BYTES,
    ) -> None:
        self._session_fields, self._hand_on = session_fields, hand_on
        self._most_held_bytes = most_held_bytes
        self._held_bytes = 0
        self._recorded = self._other_requests = self._blind_connections = self._dropped = 0
        self._requests, self._answers, self._connecting = Latency(), Latency(), Latency()
        self.held_request = self._requests.add
        self.held_answer = self._answers.add
        self.opened = self._connecting.add

    def begin(self, head: Head, start_ns: int) -> Exchange | None:
        """See `Recorder`."""
        method, target, _ = head.start
        path = target.partition(b"?")[0].decode("latin-1")
        api = next((api for end, api in _APIS if path.endswith(end)), None)
        if method != b"POST" or api is None:
            self._other_requests += 1
            return None
        fields = kept_fields(head.fields, self._session_fields)
        return Exchange(api=api, target=path, start_ns=start_ns, sent_fields=fields)

    def keep(self, exchange: Exchange, data: bytes, at_ns: int | None) -> None:
        """See `Recorder`."""
        if exchange.dropped:
            return
        if self._held_bytes + len(data) > self._most_held_bytes:
            exchange.dropped = True
            self.release(exchange.held_bytes)
            exchange.body, exchange.reads = [], []
            return
        self._held_bytes += len(data)
        if at_ns is None:
            exchange.body.append(data)
        else:
            exchange.reads.append((at_ns, data))

    def answered(self, exchange: Exchange, head: Head) -> None:
        """See `Recorder`."""
        exchange.status = head.status
        exchange.came_fields = kept_fields(head.fields, frozenset())

    def end(self, exchange: Exchange, outcome: Outcome) -> None:
        """See `Recorder`."""
        exchange.end_ns, exchange.outcome = perf_counter_ns(), outcome
        if exchange.dropped:
            self._dropped += 1
            return
        self._recorded += 1
        self._hand_on(exchange)

    def passed_blind(self) -> None:
        """See `Recorder`."""
        self._blind_connections += 1

    def release(self, held_bytes: int) -> None:
        """So much is no longer held."""
        self._held_bytes -= held_bytes

    def passed(self) -> Passed:
        """What went through so far."""
        return Passed(
            recorded=self._recorded,
            other_requests=self._other_requests,
            blind_connections=self._blind_connections,
            dropped=self._dropped,
            request_latency=self._requests.summary(),
            answer_latency=self._answers.summary(),
            connecting=self._connecting.summary(),
        )


class Proxy:
    """Listens within its `async with`; raises `AgentloadError` on entry if it cannot."""

    def __init__(self, upstream: Upstream, copies: Copies, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._upstream, self._copies = upstream, copies
        self._host, self._port = host, port
        self._pairs: set[Pair] = set()
        self._all_closed = asyncio.Event()
        self._draining = False

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Proxy:
        loop = asyncio.get_running_loop()
        if not self._host.strip():
            raise AgentloadError("--host '': name an address, such as 127.0.0.1")
        try:
            self._listener = await loop.create_server(self._accept, self._host, self._port, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise AgentloadError(f"cannot listen on {self._host} port {self._port}: {reason}") from None
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything at once; `drain` before it lets answers end."""
        self._listener.close()
        self.stop()
        await self._all_gone()

    async def drain(self) -> None:
        """Take no new connections and requests, and wait until the answers on their way have ended."""
        self._draining = True
        self._listener.close()
        for pair in list(self._pairs):
            pair.drain()
        await self._all_gone()

    def stop(self) -> None:
        """Cut what is still on its way."""
        for pair in list(self._pairs):
            pair.stop()

    async def _all_gone(self) -> None:
        while self._pairs:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _accept(self) -> asyncio.Protocol:
        pair = Pair(self._upstream, self._copies, self._gone)
        self._pairs.add(pair)
        if self._draining:
            asyncio.get_running_loop().call_soon(pair.drain)
        return pair.client_side

    def _gone(self, pair: Pair) -> None:
        self._pairs.discard(pair)
        if not self._pairs:
            self._all_closed.set()
