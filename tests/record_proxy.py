"""A recording proxy in the test's own loop, in front of an endpoint that sends the very bytes it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentload._record._exchange import Exchange
from agentload._record._proxy import MOST_HELD_BYTES, Copies, Proxy
from agentload._record._upstream import Upstream, UpstreamOptions

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass
class Between:
    """proxy, and what it recorded. port: the proxy's. upstream_port: of the endpoint behind it."""

    proxy: Proxy
    copies: Copies
    upstream_port: int
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.proxy.url.rpartition(":")[2])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def between(
    handler: Handler, *, path: str = "", most_held_bytes: int = MOST_HELD_BYTES, **options: Any
) -> AsyncIterator[Between]:
    """Run a proxy before a server that handles connections with `handler`."""
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = Upstream(UpstreamOptions(url=f"http://127.0.0.1:{port}{path}", **options))
    exchanges: list[Exchange] = []
    copies = Copies(frozenset({"x-session-id"}), exchanges.append, most_held_bytes=most_held_bytes)
    try:
        async with Proxy(upstream, copies) as proxy:
            yield Between(proxy, copies, port, exchanges)
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request whose head tells its length, or has none."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head, await reader.readexactly(int(lengths[0]) if lengths else 0)


def post(body: bytes, path: str = "/v1/chat/completions", more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: proxy.example\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(body: bytes, more: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body
