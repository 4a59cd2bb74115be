"""What the HTTP client meets in its tests: servers that answer byte by byte, proxies, certificates."""

from __future__ import annotations

import asyncio
import functools
import inspect
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from agentload._http_client import HttpRequest

Handler = Callable[[asyncio.StreamWriter, int], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

LOOPS = {"stock": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WHOLE = HEAD + chunk(b"data: x\n\n") + b"0\r\n\r\n"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's own event loop and on uvloop, which a run uses."""

    @functools.wraps(test)
    def run(*, loop_name: str, **values: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(test(**values))

    signature = inspect.signature(test)
    named = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), named])  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.parametrize("loop_name", LOOPS)(run)
    return marked


def asks(url: str, body: bytes = b"{}", headers: dict[str, str] | None = None) -> HttpRequest:
    return HttpRequest(url, body, headers or {})


@asynccontextmanager
async def serve(
    handler: Handler,
    *,
    tls: ssl.SSLContext | None = None,
    unix: Path | None = None,
    heads: list[bytes] | None = None,
) -> AsyncIterator[str]:
    """A server that hands each request's writer, and its number on the connection, to `handler`.

    heads: where the heads of requests are noted.
    """
    tasks: set[asyncio.Task[None] | None] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if heads is not None:
                    heads.append(head)
                lengths = [x[15:] for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
                await reader.readexactly(int(lengths[0]) if lengths else 0)
                await handler(writer, number)
                number += 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            writer.close()

    if unix is not None:
        server = await asyncio.start_unix_server(connected, unix, ssl=tls)
        where = "localhost"
    else:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield f"{'https' if tls else 'http'}://{where}/"
    finally:
        server.close()
        for task in tasks:
            assert task is not None
            task.cancel()
        await server.wait_closed()


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send, and let the loop turn, so that the client reads it before more is sent."""
    writer.write(data)
    await writer.drain()
    await turns()


async def turns() -> None:
    """Let callbacks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def answer_whole(writer: asyncio.StreamWriter, _: int) -> None:
    await send(writer, WHOLE)


@asynccontextmanager
async def connect_proxy(status: bytes = b"200 OK") -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that knows CONNECT only; yields its port, and the heads that it read."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None] | None] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.0 %s\r\n\r\n" % status)
            if not status.startswith(b"200"):
                writer.close()
                return
            host, _, port = heads[-1].split()[1].decode().rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, back), pump(there, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
        for task in tasks:
            assert task is not None
            task.cancel()
        await server.wait_closed()


class Certificates(NamedTuple):
    """An authority, and a certificate for 127.0.0.1 and localhost that it signed, with its key."""

    authority: Path
    cert: Path
    key: Path

    def server(self, *, ask: bool = False) -> ssl.SSLContext:
        """The context of a server that shows it, and may ask for one of the same authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if ask:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context


def make_certificates(directory: Path) -> Certificates:
    """Make certificates that are good for a day."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl(
        *("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "1", "-subj", "/CN=Test"),
        *usage,
    )
    openssl("req", *key, "-keyout", "key.pem", "-out", "csr.pem", "-subj", "/CN=localhost")
    (directory / "ext").write_text(
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid,issuer\n"
    )
    openssl(
        *("x509", "-req", "-in", "csr.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "cert.pem", "-days", "1", "-extfile", "ext"),
    )
    return Certificates(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
