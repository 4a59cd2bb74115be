"""The HTTP server: a simulated deployment behind an OpenAI-compatible API, in real time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from agentload_simbackend._api import Engine
from agentload_simbackend._pacing import TICK_NS, Pacer
from agentload_simbackend._pacing_histogram import PacingSummary
from agentload_simbackend._scripted import FillerModel, ScriptedModel
from agentload_simbackend._server_chat import ChatApi
from agentload_simbackend._server_connection import Connection, json_answer, protocol_message
from agentload_simbackend._server_errors import ApiError, error_body
from agentload_simbackend._server_prompt import BLOCK_TOKENS
from agentload_simbackend._usloop import new_event_loop
from agentload_simbackend._wire import SimulatedModel
from agentload_traces import AgentloadError
from agentload_traces._tokens import encode

_log = logging.getLogger(__name__)

CLIENT_MAX_BYTES = 64 * 2**20
"""Larger requests are answered with 413."""

_SHUTDOWN_S = 1.0
_BACKLOG = 128
_CONNECTION: dict[str, Any] = {"access_log": None}


class SimServer:
    """Serves an engine over HTTP, every stream paced by the engine's own steps.

    An async context manager: it listens inside the `async with`. `POST /v1/chat/completions` (streamed or
    not), `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`. A client that closes its sending side counts
    as gone, and its request is cancelled.

    seed: with session and turn it determines the text of every answer. model: the name in `/v1/models`;
    requests may name any. max_model_len: context length to tell clients, `None` if unknown.
    block_tokens: prompts are told to the engine in blocks of so many tokens, so that a prefix counts as
    cached in whole blocks: the engine's own cache block, or a divisor of it.
    port: 0 takes a free one, see `url`. clock: nanoseconds on the clock of the event loop.
    tick_ns: decode steps that are closer than this are written together. script: decides the
    answers; by default filler text of the length that the request asks for.
    contents: the content classes that a request may name (`None`: any).
    about: what `/v1/models` says of the simulation.
    Raises `AgentloadError` on entry if it cannot listen.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        seed: int = 0,
        model: str = "simulated",
        max_model_len: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        tick_ns: int = TICK_NS,
        script: ScriptedModel | None = None,
        contents: Collection[str] | None = None,
        about: SimulatedModel | None = None,
    ) -> None:
        self._engine = engine
        self._about = about
        self._model = model
        self._max_model_len = max_model_len
        self._block_tokens = block_tokens
        self._host = host
        self._port = port
        self._clock = clock
        self._tick_ns = tick_ns
        self._script = script or FillerModel(seed)
        self._contents = contents
        self._created = int(time.time())
        self._pacer: Pacer | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    @staticmethod
    def new_event_loop() -> asyncio.AbstractEventLoop:
        """A loop for it to run in, whose timers are good to microseconds where the platform allows it."""
        return new_event_loop()

    @property
    def url(self) -> str:
        """Where it listens, without a path; clients of OpenAI's API want `{url}/v1`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def pacing(self) -> PacingSummary:
        """How late events were written, against the engine's schedule."""
        return self._running_pacer().histogram.summary()

    async def __aenter__(self) -> SimServer:
        if not self._host.strip():
            raise AgentloadError(
                "cannot listen on host '': name an address, such as 127.0.0.1 (or 0.0.0.0 for all)"
            )
        encode("warm \ufffd")  # loads the vocabulary now, not within the first request; then what only
        # text beyond ASCII needs, another 0.1 s in which no stream would be written
        self._pacer = Pacer(self._engine, self._clock, tick_ns=self._tick_ns)
        chat = ChatApi(
            self._pacer,
            self._script,
            self._clock,
            max_model_len=self._max_model_len,
            block_tokens=self._block_tokens,
            contents=self._contents,
        )
        app = web.Application(middlewares=[_openai_errors], client_max_size=CLIENT_MAX_BYTES)
        app.router.add_post("/v1/chat/completions", chat.handle)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._one_model)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        assert self._runner.server is not None
        connection = partial(Connection, self._runner.server, loop=loop, **_CONNECTION)
        try:
            # Not a site of aiohttp's, which would make connections of its own kind.
            self._listener = await loop.create_server(connection, self._host, self._port, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:  # some strings cannot be the name of a host
            await self._runner.cleanup()
            reason = getattr(error, "strerror", None) or str(error)
            raise AgentloadError(f"cannot listen on {self._host} port {self._port}: {reason}") from error
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, cut the streams that are still running and close all connections."""
        self._running_pacer().close()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _running_pacer(self) -> Pacer:
        if self._pacer is None:
            raise RuntimeError("SimServer is not running; use it as `async with SimServer(...) as server`")
        return self._pacer

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model_object()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self._model:
            message = f"The model '{name}' does not exist; this server has '{self._model}'."
            raise ApiError(message, status=404, param="model", code="model_not_found")
        return web.json_response(self._model_object())

    def _model_object(self) -> dict[str, object]:
        return {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "agentload",
            "max_model_len": self._max_model_len,
            "agentload": None if self._about is None else msgspec.to_builtins(self._about),
        }

    async def _health(self, request: web.Request) -> web.Response:
        running = self._running_pacer().running
        body = {"status": "ok", "model": self._model, "running": running, "pacing": self.pacing}
        return web.json_response(body)


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors of the handlers in OpenAI's shape; `Connection` does so with aiohttp's own."""
    try:
        return await handler(request)
    except ApiError as error:
        return json_answer(error.body(), error.status, error.headers)
    except web.RequestPayloadError as error:
        return json_answer(error_body(protocol_message(error), 400), 400)
    except web.HTTPRequestEntityTooLarge:
        message = f"The request has more than {CLIENT_MAX_BYTES:,} bytes."
        return json_answer(error_body(message, 413), 413)
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return json_answer(error_body("The server had an error; its log tells which.", 500), 500)
