"""The HTTP server: a simulated deployment behind an OpenAI-compatible API, in real time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from aiohttp import web
from aiohttp.typedefs import Handler

from agentload_simbackend._api import Engine
from agentload_simbackend._pacing import TICK_NS, Pacer
from agentload_simbackend._pacing_histogram import PacingSummary
from agentload_simbackend._scripted import FillerModel, ScriptedModel
from agentload_simbackend._server_chat import ChatApi
from agentload_simbackend._server_errors import ApiError, error_body
from agentload_simbackend._server_prompt import BLOCK_TOKENS
from agentload_traces._errors import AgentloadError
from agentload_traces._tokens import encode

_log = logging.getLogger(__name__)

CLIENT_MAX_BYTES = 64 * 2**20
"""Larger requests are answered with 413."""

_SHUTDOWN_S = 1.0


class SimServer:
    """Serves an engine over HTTP, every stream paced by the engine's own steps.

    An async context manager: it listens inside the `async with`. `POST /v1/chat/completions` (streamed or
    not), `GET /v1/models`, `GET /health`.

    seed: with session and turn it determines the text of every answer. model: the name in `/v1/models`;
    requests may name any. max_model_len: context length to tell clients, `None` if unknown.
    block_tokens: prompts are told to the engine in blocks of so many tokens, so that a prefix counts as
    cached in whole blocks: the engine's own cache block, or a divisor of it.
    port: 0 takes a free one, see `url`. clock: nanoseconds on the clock of the event loop.
    tick_ns: decode steps that are closer than this are written together. script: decides the
    answers; by default filler text of the length that the request asks for.
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
    ) -> None:
        self._engine = engine
        self._model = model
        self._max_model_len = max_model_len
        self._block_tokens = block_tokens
        self._host = host
        self._port = port
        self._clock = clock
        self._tick_ns = tick_ns
        self._script = script or FillerModel(seed)
        self._created = int(time.time())
        self._pacer: Pacer | None = None
        self._runner: web.AppRunner | None = None

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
        encode("warm")  # loads the vocabulary now, not within the first request
        self._pacer = Pacer(self._engine, self._clock, tick_ns=self._tick_ns)
        chat = ChatApi(self._pacer, self._script, self._clock, self._max_model_len, self._block_tokens)
        app = web.Application(middlewares=[_openai_errors], client_max_size=CLIENT_MAX_BYTES)
        app.router.add_post("/v1/chat/completions", chat.handle)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or str(error)
            raise AgentloadError(f"cannot listen on {self._host} port {self._port}: {reason}") from error
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, cut the streams that are still running and close all connections."""
        self._running_pacer().close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _running_pacer(self) -> Pacer:
        if self._pacer is None:
            raise RuntimeError("SimServer is not running; use it as `async with SimServer(...) as server`")
        return self._pacer

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "agentload",
            "max_model_len": self._max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        running = self._running_pacer().running
        body = {"status": "ok", "model": self._model, "running": running, "pacing": self.pacing}
        return web.json_response(body)


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors, aiohttp's own included, in OpenAI's shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return _json(error.body(), error.status)
    except web.HTTPRequestEntityTooLarge:
        return _json(error_body(f"The request has more than {CLIENT_MAX_BYTES:,} bytes.", 413), 413)
    except web.HTTPException as error:
        message = f"{error.reason}: {request.method} {request.path}"
        return _json(error_body(message, error.status), error.status, error.headers.get("Allow"))
    except ConnectionError:
        raise  # the client has gone
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return _json(error_body("The server had an error; its log tells which.", 500), 500)


def _json(body: bytes, status: int, allow: str | None = None) -> web.Response:
    headers = {} if allow is None else {"Allow": allow}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
