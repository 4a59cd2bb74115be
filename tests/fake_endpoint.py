"""A real endpoint of the four APIs on loopback, for tests: it answers as scripted, and fails as scripted.

    async with FakeEndpoint() as endpoint:                      # in the test's own loop
        ... endpoint.url ...                                    # "http://127.0.0.1:port"
    with fake_endpoint_thread(script) as endpoint:              # in a thread, for commands and processes
        ...
    def script(number: int, body: dict[str, Any]) -> Reply:     # number: 0 for the first answer asked for
        return Reply(status=429, headers={"retry-after": "1"}) if number == 0 else Reply()

Without a script it answers as many tokens as asked for. Paths: anything that ends in /chat/completions,
/responses, /completions or /messages, and GET .../models. What it saw is in `endpoint.requests`. An answer
that stalls (see `fake_reply.Fault`) goes on after `endpoint.release()`; `await endpoint.stalled.wait()` tells
that one does. Nothing waits for time to pass but `chunk_delay_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from aiohttp import web
from fake_reply import COUNTED, FakeUsage, Fault, Reply, ToolUse
from fake_sending import Sending
from fake_wire import error_body, filled

from agentload._options import Api

__all__ = [
    "COUNTED",
    "FakeEndpoint",
    "FakeUsage",
    "Fault",
    "Reply",
    "Script",
    "Seen",
    "ToolUse",
    "fake_endpoint_thread",
]

Script = Callable[[int, dict[str, Any]], Reply]


@dataclass
class Seen:
    """A request that came. body: `{}` if it is no JSON object.

    peer: address and port it came from; requests of one connection have the same. received_ns: when its body
    was there (perf_counter). answered_ns: when its answer was written, or broken off by the fault; `None`
    while it is not. cancelled: the client went away before.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    peer: tuple[str, int] | None
    received_ns: int
    answered_ns: int | None = None
    cancelled: bool = False


class FakeEndpoint:
    """See the module. An async context manager.

    models: what GET /models lists; `None` answers 404. tls: serve https. unix_path: serve there instead.
    requests: all POSTs that came, in order; other: all other requests.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: tuple[str, ...] | None = ("m",),
        max_model_len: int | None = None,
        tls: ssl.SSLContext | None = None,
        unix_path: Path | None = None,
    ) -> None:
        self._script = script or (lambda number, body: Reply())
        self._models, self._max_model_len = models, max_model_len
        self._tls, self._unix_path = tls, unix_path
        self.requests: list[Seen] = []
        self.other: list[Seen] = []
        self.url = ""

    async def __aenter__(self) -> FakeEndpoint:
        self._loop = asyncio.get_running_loop()
        self._released = asyncio.Event()
        self.stalled = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        if self._unix_path is not None:
            await web.UnixSite(self._runner, str(self._unix_path), ssl_context=self._tls).start()
            self.url = "http://localhost"
        else:
            await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
            port = self._runner.addresses[0][1]
            self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._released.set()
        await self._runner.cleanup()

    def release(self) -> None:
        """Let all answers that stall, now and later, go on. From any thread."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        transport = request.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        seen = Seen(
            request.method,
            request.path,
            dict(request.query),
            request.headers,
            raw,
            body if isinstance(body, dict) else {},
            tuple(peer[:2]) if isinstance(peer, tuple) else None,
            perf_counter_ns(),
        )
        api = _api(request.path)
        if request.method != "POST" or api is None:
            self.other.append(seen)
            return self._list_models(request.path)
        number = len(self.requests)
        self.requests.append(seen)
        reply = filled(self._script(number, seen.body), api, seen.body)
        try:
            return await Sending(request, api, reply, seen.body, self._stall).send()
        except asyncio.CancelledError:
            seen.cancelled = True
            raise
        finally:
            seen.answered_ns = perf_counter_ns()

    async def _stall(self) -> None:
        self.stalled.set()
        await self._released.wait()

    def _list_models(self, path: str) -> web.Response:
        if self._models is None or not path.endswith("/models"):
            return web.json_response(error_body("chat", 404, "not found"), status=404)
        more = {} if self._max_model_len is None else {"max_model_len": self._max_model_len}
        data = [
            {"id": name, "object": "model", "created": 1764518400, "owned_by": "test", **more}
            for name in self._models
        ]
        return web.json_response({"object": "list", "data": data})


def _api(path: str) -> Api | None:
    ends: tuple[tuple[str, Api], ...] = (
        ("/chat/completions", "chat"),
        ("/completions", "completions"),
        ("/responses", "responses"),
        ("/messages", "messages"),
    )
    return next((api for end, api in ends if path.endswith(end)), None)


@contextlib.contextmanager
def fake_endpoint_thread(script: Script | None = None, **options: Any) -> Iterator[FakeEndpoint]:
    """Run a `FakeEndpoint` in a thread of its own; the script is called there."""
    ready = threading.Event()
    holder: list[tuple[FakeEndpoint, asyncio.AbstractEventLoop, asyncio.Event]] = []
    failure: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with FakeEndpoint(script, **options) as endpoint:
            holder.append((endpoint, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as problem:
            failure.append(problem)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="fake-endpoint")
    thread.start()
    ready.wait()
    if not holder:
        thread.join()
        raise failure[0]
    endpoint, loop, stop = holder[0]
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failure:
        raise failure[0]
