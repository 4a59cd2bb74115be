"""The replayer's HTTP client: requests go out with as little ado as can be, every read is stamped.

It speaks HTTP/1.1 itself, for building and unbuilding the objects of a general client costs more than
sending a request and reading its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import NamedTuple
from urllib.parse import urlsplit

from agentload._http_connection import Exchange, HttpConnection
from agentload._http_framing import Marks
from agentload._http_open import Connection, Opened, Opener, OpeningError, Origin
from agentload_traces import ErrorKind

__all__ = ["Answer", "Connection", "HttpRequest", "Marks", "Opened", "StampingClient", "Timeouts"]

_KEPT_NS = 4_000_000_000
"""How long an idle connection is kept: less than common servers keep theirs (5 s), so that none is closed by
the other end just as a request goes out on it. Such a request may have been seen, so it is not sent again
unasked."""


class HttpRequest(NamedTuple):
    """What goes out. url: whole, with its query. headers: of this request, besides the client's own."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    method: str = "POST"


class Answer(NamedTuple):
    """An answer as it came in. Every time is `perf_counter_ns`.

    status: `None` if no answer began. headers: names in lower case.
    error: why it is not whole, in one line; `None` if it is. error_kind: set with it.
    sent_ns: when the client was asked to send. end_ns: the read that ended the answer, or its failure.
    opened: `None` if the connection was a used one. written_ns: when the operating system had taken the whole
        request (with TLS: the encrypting layer, if not the system).
    first_byte_ns: of the answer's head. unread_bytes: the most that lay unread when a read began, which is
        what one read brought; see `Exchange`.
    """

    status: int | None
    headers: Mapping[str, str]
    body: bytes
    marks: Marks
    sent_ns: int
    end_ns: int
    error: str | None
    error_kind: ErrorKind | None = None
    opened: Opened | None = None
    written_ns: int | None = None
    first_byte_ns: int | None = None
    unread_bytes: int = 0


class Timeouts(NamedTuple):
    """connect_s: to open a connection. first_token_s, total_s: from sending to the first token, and to the
    end; `None` is any time. stall_s: between two reads, and before the first one."""

    connect_s: float = 30.0
    first_token_s: float | None = None
    stall_s: float = 600.0
    total_s: float | None = None


class _Place(NamedTuple):
    """What a URL means for a request. head: its first lines, up to the headers of the request itself."""

    origin: Origin
    head: str


class StampingClient:
    """An HTTP client for streams whose arrival times matter; an async context manager.

    shows_token: whether so much of a body holds a token; asked only when `Timeouts.first_token_s` is over.
    """

    def __init__(
        self,
        *,
        connection: Connection | None = None,
        timeouts: Timeouts | None = None,
        shows_token: Callable[[bytes], bool] = bool,
    ) -> None:
        self._connection = connection or Connection()
        self._timeouts = timeouts or Timeouts()
        self._shows_token = shows_token
        self._opener = Opener(self._connection, self._timeouts.stall_s)
        self._idle: dict[Origin, list[HttpConnection]] = {}
        self._open: set[HttpConnection] = set()
        self._places: dict[tuple[str, str], _Place] = {}

    async def __aenter__(self) -> StampingClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._idle.clear()
        lost = [connection.lost for connection in self._open]
        for connection in self._open:
            connection.abort()
        if lost:
            # What is closed is told so by the event loop, which must still run then.
            await asyncio.wait(lost, timeout=1)

    async def post(self, request: HttpRequest) -> Answer:
        """Send a request once; never raises for what the network or the endpoint does."""
        sent_ns = perf_counter_ns()
        try:
            place = self._places.get((request.method, request.url)) or self._place(request)
            parts = self._parts(request, place)
        except ValueError as error:
            return _unsent(sent_ns, "internal", f"the request cannot be sent: {error}")
        connection = self._take_idle(place.origin)
        opened: Opened | None = None
        if connection is None:
            try:
                connection, opened = await self._opened(place.origin, sent_ns)
            except OpeningError as error:
                return _unsent(sent_ns, error.kind, str(error))
        exchange = await self._exchange(connection, parts, sent_ns)
        return self._answer(exchange, sent_ns, opened, connection, place.origin)

    def _place(self, request: HttpRequest) -> _Place:
        """Read the URL of a request; remembered, for there are few. Raises ValueError."""
        method, url = request.method, request.url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or " " in url:
            raise ValueError("its URL is not http(s)://HOST[:PORT]/PATH")
        tls = parts.scheme == "https"
        origin = Origin(tls, parts.hostname, parts.port or (443 if tls else 80))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        authority = parts.netloc.rpartition("@")[2]
        headers = {
            "Host": authority,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "User-Agent": "agentload",
        }
        proxy = self._connection.proxy
        if proxy is not None and not tls:
            path = f"http://{authority}{path}"
            if proxy.authorization is not None:
                headers["Proxy-Authorization"] = proxy.authorization
        own = {name.lower() for name in self._connection.headers}
        if "content-type" not in own and method == "POST":
            headers["Content-Type"] = "application/json"
        kept = {name: value for name, value in headers.items() if name.lower() not in own}
        head = f"{method} {path} HTTP/1.1\r\n{_lines(kept)}{_lines(self._connection.headers)}"
        place = _Place(origin, head)
        self._places[method, url] = place
        return place

    def _parts(self, request: HttpRequest, place: _Place) -> list[bytes]:
        """The bytes of a request. Raises ValueError."""
        body = request.body
        length = "" if request.method == "GET" else f"Content-Length: {len(body)}\r\n"
        head = f"{place.head}{_lines(request.headers)}{length}\r\n".encode("latin-1")
        return [head, body] if body else [head]

    def _take_idle(self, origin: Origin) -> HttpConnection | None:
        """The connection that was used last, for the others may then be let go."""
        idle = self._idle.get(origin)
        oldest_ns = perf_counter_ns() - _KEPT_NS
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since_ns > oldest_ns:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: HttpConnection, origin: Origin) -> None:
        idle = self._idle.setdefault(origin, [])
        idle.append(connection)
        while not idle[0].usable or idle[0].idle_since_ns <= connection.idle_since_ns - _KEPT_NS:
            idle.pop(0).abort()

    async def _opened(self, origin: Origin, sent_ns: int) -> tuple[HttpConnection, Opened]:
        """Open a connection within its time. Raises `OpeningError`."""
        times = self._timeouts
        gone_s = (perf_counter_ns() - sent_ns) / 1e9
        limits: list[tuple[float, ErrorKind, str]] = [
            (times.connect_s, "connect_timeout", f"no connection to {origin} within {times.connect_s:g} s")
        ]
        if times.first_token_s is not None:
            limits.append(
                (times.first_token_s - gone_s, "first_token_timeout", _no_token(times.first_token_s))
            )
        if times.total_s is not None:
            limits.append((times.total_s - gone_s, "total_timeout", _not_over(times.total_s)))
        within_s, kind, text = min(limits)
        made: list[HttpConnection] = []

        def on_made(connection: HttpConnection) -> None:
            made.append(connection)
            self._open.add(connection)
            connection.lost.add_done_callback(lambda _: self._open.discard(connection))

        try:
            async with asyncio.timeout(max(0.0, within_s)):
                return await self._opener.open(origin, on_made)
        except BaseException as error:
            for connection in made:
                connection.abort()
                connection.connection_lost(None)  # TLS that never began does not tell
            if isinstance(error, TimeoutError):
                raise OpeningError(kind, text) from None
            raise

    async def _exchange(self, connection: HttpConnection, parts: list[bytes], sent_ns: int) -> Exchange:
        exchange = Exchange(connection.loop)
        connection.send(parts, exchange)
        times = self._timeouts
        if (first_s := times.first_token_s) is not None and not exchange.done.done():
            gone_s = (perf_counter_ns() - sent_ns) / 1e9

            def look() -> None:
                if not self._shows_token(exchange.reader.body):
                    connection.fail("first_token_timeout", _no_token(first_s))

            connection.at(first_s - gone_s, look)
        if (total_s := times.total_s) is not None and not exchange.done.done():
            gone_s = (perf_counter_ns() - sent_ns) / 1e9
            connection.at(total_s - gone_s, lambda: connection.fail("total_timeout", _not_over(total_s)))
        try:
            await exchange.done
        except BaseException:
            connection.fail("interrupted", "the request was cancelled")
            connection.abort()
            raise
        return exchange

    def _answer(
        self,
        exchange: Exchange,
        sent_ns: int,
        opened: Opened | None,
        connection: HttpConnection,
        origin: Origin,
    ) -> Answer:
        if connection.usable:
            self._keep(connection, origin)
        reader = exchange.reader
        return Answer(
            reader.status,
            reader.headers,
            reader.body,
            reader.marks,
            sent_ns,
            exchange.end_ns,
            exchange.error,
            exchange.error_kind,
            opened,
            exchange.written_ns,
            reader.first_byte_ns,
            exchange.unread_bytes,
        )


def _unsent(sent_ns: int, kind: ErrorKind, error: str) -> Answer:
    return Answer(None, {}, b"", Marks([], []), sent_ns, perf_counter_ns(), error, kind)


def _no_token(within_s: float) -> str:
    return f"no token came within {within_s:g} s"


def _not_over(within_s: float) -> str:
    return f"the answer was not over within {within_s:g} s"


def _lines(headers: Mapping[str, str]) -> str:
    """The lines of headers. Raises ValueError for what would break them; values are not repeated."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or not lines.isascii():
        raise ValueError(f"a header holds what is no text ({', '.join(map(repr, headers))})")
    return lines
