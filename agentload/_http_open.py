"""Opens connections to an endpoint: name looked up, socket connected, proxy and TLS passed, each timed."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

from aiohappyeyeballs import start_connection

from agentload._http_connection import Exchange, HttpConnection
from agentload_traces import AgentloadError, ErrorKind

_NAMES_HOLD_S = 10.0
"""How long a looked-up name is believed."""

_NEXT_ADDRESS_S = 0.25
"""When the next address of a host is tried beside one that does not answer (RFC 8305)."""


class Tls(NamedTuple):
    """How an endpoint's certificate is checked, and which is shown to it. Paths of PEM files."""

    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    insecure: bool = False


_ANY_TLS = Tls()


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. authorization: the value of its header; secret."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Connection:
    """How an endpoint is reached. headers: sent with every request; secret, for the key."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = _ANY_TLS
    proxy: Proxy | None = None
    unix_socket: Path | None = None


class Origin(NamedTuple):
    """Where a URL leads."""

    tls: bool
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Opened(NamedTuple):
    """How long it took to open a connection, in parts; `None` for one that was not needed."""

    dns_ns: int | None = None
    connect_ns: int | None = None
    tls_ns: int | None = None


class OpeningError(Exception):
    """A connection that could not be opened; its text is one line."""

    def __init__(self, kind: ErrorKind, text: str) -> None:
        super().__init__(text)
        self.kind: ErrorKind = kind


@lru_cache(maxsize=8)
def tls_context(tls: Tls) -> ssl.SSLContext:
    """The context of a connection. Raises `AgentloadError` for a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ValueError) as error:
        raise AgentloadError(f"--ca-file {tls.ca_file}: {_unusable(error)}") from None
    context.set_alpn_protocols(["http/1.1"])
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert is not None:
        _show_certificate(context, tls.client_cert, tls.client_key)
    return context


def _show_certificate(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    def no_password() -> str:
        raise AgentloadError(f"{key or cert}: the key is encrypted; give one that needs no password")

    for option, path in (("--client-cert", cert), ("--client-key", key)):
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise AgentloadError(f"{option} {path}: {_unusable(error)}") from None
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except (OSError, ValueError) as error:
        files = f"{cert} and {key}" if key is not None else str(cert)
        raise AgentloadError(f"--client-cert: {files}: {_unusable(error)}") from None


def _unusable(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no PEM file that can be used here ({error.reason or 'nothing of the kind is in it'})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Opener:
    """Opens the connections of one client. stall_s: of the connections, see `HttpConnection`."""

    def __init__(self, connection: Connection, stall_s: float) -> None:
        self._how = connection
        self._stall_s = stall_s
        self._names: dict[tuple[str, int], tuple[float, asyncio.Task[list[_Address]]]] = {}

    async def open(
        self, origin: Origin, on_made: Callable[[HttpConnection], None]
    ) -> tuple[HttpConnection, Opened]:
        """Open a connection to `origin`; on_made: told of it while it is not yet usable.

        Raises `OpeningError`. Whoever cancels this closes the connection that `on_made` was told of.
        """
        connection, dns_ns, connect_ns = await self._connect(origin)
        on_made(connection)
        if not origin.tls:
            return connection, Opened(dns_ns, connect_ns)
        if (proxy := self._how.proxy) is not None:
            began_ns = perf_counter_ns()
            await self._tunnel(connection, origin, proxy)
            connect_ns += perf_counter_ns() - began_ns
        began_ns = perf_counter_ns()
        await self._start_tls(connection, origin)
        return connection, Opened(dns_ns, connect_ns, perf_counter_ns() - began_ns)

    async def _connect(self, origin: Origin) -> tuple[HttpConnection, int | None, int]:
        """A connection without TLS; how long the look-up of its name took, and the connecting."""
        loop = asyncio.get_running_loop()
        if (path := self._how.unix_socket) is not None:
            began_ns = perf_counter_ns()
            try:
                _, made = await loop.create_unix_connection(self._protocol, os.fspath(path))
            except (OSError, ValueError) as error:
                raise OpeningError("connect", f"cannot connect to {path}: {_reason(error)}") from None
            return made, None, perf_counter_ns() - began_ns
        proxy = self._how.proxy
        first = Origin(False, proxy.host, proxy.port) if proxy is not None else origin
        addresses, dns_ns = await self._addresses(first.host, first.port)
        began_ns = perf_counter_ns()
        try:
            sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop)
        except OSError as error:
            what = f"the proxy {first}" if proxy is not None else str(first)
            raise OpeningError("connect", f"cannot connect to {what}: {_reason(error)}") from None
        try:
            _, made = await loop.create_connection(self._protocol, sock=sock)
        except BaseException:
            sock.close()
            raise
        return made, dns_ns, perf_counter_ns() - began_ns

    def _protocol(self) -> HttpConnection:
        return HttpConnection(self._stall_s)

    async def _addresses(self, host: str, port: int) -> tuple[list[_Address], int | None]:
        """The addresses of a host, and how long looking them up took this time."""
        if (address := _numeric(host, port)) is not None:
            return [address], None
        loop = asyncio.get_running_loop()
        until_s, looking = self._names.get((host, port), (0.0, None))
        if looking is None or until_s <= loop.time():
            looking = loop.create_task(_look_up(host, port))
            looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left
            self._names[host, port] = (loop.time() + _NAMES_HOLD_S, looking)
        known = looking.done()
        began_ns = perf_counter_ns()
        try:
            found = await asyncio.shield(looking)
        except (OSError, UnicodeError) as error:
            self._names.pop((host, port), None)
            raise OpeningError("connect", f"cannot find the host {host}: {_reason(error)}") from None
        return found, None if known else perf_counter_ns() - began_ns

    async def _tunnel(self, connection: HttpConnection, origin: Origin, proxy: Proxy) -> None:
        head = f"CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n"
        if proxy.authorization is not None:
            head += f"Proxy-Authorization: {proxy.authorization}\r\n"
        exchange = Exchange(asyncio.get_running_loop(), only_head=True)
        connection.send([f"{head}\r\n".encode("ascii")], exchange)
        await exchange.done
        status = exchange.reader.status
        if exchange.error is not None or status is None or status >= 300 or not connection.usable:
            connection.abort()
            told = exchange.error or f"HTTP {status}"
            raise OpeningError(
                "connect", f"the proxy {proxy.host}:{proxy.port} opens no way to {origin}: {told}"
            )

    async def _start_tls(self, connection: HttpConnection, origin: Origin) -> None:
        loop = asyncio.get_running_loop()
        below = connection.transport
        try:
            over = await loop.start_tls(
                below, connection, tls_context(self._how.tls), server_hostname=origin.host
            )
        except AgentloadError as error:
            below.abort()
            raise OpeningError("tls", str(error)) from None
        except (OSError, ValueError) as error:
            below.abort()
            raise OpeningError("tls", f"no TLS with {origin}: {_reason(error)}") from None
        if over is None:  # closed meanwhile
            below.abort()
            raise OpeningError("tls", f"no TLS with {origin}: the connection was closed")
        connection.use(over)


_Address = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]


async def _look_up(host: str, port: int) -> list[_Address]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, kind, proto, name, address) for family, kind, proto, name, address in found]


def _numeric(host: str, port: int) -> _Address | None:
    try:
        version = ip_address(host).version
    except ValueError:
        return None
    if version == 4:
        return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port)
    if "%" in host:  # the zone must be looked up
        return None
    return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0)


def _reason(error: BaseException) -> str:
    """Why something failed, in one line and without the address, which the caller names."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    if isinstance(error, ConnectionError) and not str(error):
        return "the connection was closed"
    return " ".join(str(error).split()) or type(error).__name__
