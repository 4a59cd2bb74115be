"""The endpoint of a wall-clock replay: its URLs, asked for its model before the run."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentload._endpoint_options import base_url_of, check_endpoint, check_target, connection_of, query_of
from agentload._http_client import Answer, HttpRequest, StampingClient, Timeouts
from agentload._http_open import Connection
from agentload._options import Api, EndpointOptions
from agentload._simulator_process import Served, simulator_process
from agentload_simbackend import SimulatedModel
from agentload_traces import AgentloadError

__all__ = [
    "Connection",
    "Endpoint",
    "Served",
    "check_endpoint",
    "connection_of",
    "pick_url",
    "probe_endpoint",
    "simulator_process",
]

_PROBE_TIMEOUT_S = 30.0

_PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
}


def pick_url(balance: Literal["session", "turn"], urls: int, session_id: str, sent: int) -> int:
    """Which of so many URLs a turn goes to. sent: how many turns went out before it."""
    if urls == 1:
        return 0
    if balance == "turn":
        return sent % urls
    digest = hashlib.blake2b(session_id.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % urls


@dataclass
class Endpoint:
    """An endpoint that has answered.

    urls: its base URLs, without `/v1` and trailing slash. query: to follow the path of each, with its "?".
    simulated: what the endpoint says of itself if it is a simulator, so that reports can say it too.
    max_model_len: how long prompt and answer together may be; `None` if the endpoint does not tell.
    """

    urls: tuple[str, ...]
    model: str
    api: Api = "chat"
    connection: Connection = field(default_factory=Connection)
    query: str = field(default="", repr=False)
    balance: Literal["session", "turn"] = "session"
    simulated: SimulatedModel | None = None
    max_model_len: int | None = None
    _sent: int = field(default=0, repr=False, compare=False)

    @property
    def base_url(self) -> str:
        """The first of its URLs, which names it."""
        return self.urls[0]

    def url_for(self, api: Api, number: int = 0) -> str:
        """Where requests go at URL `number`."""
        return f"{self.urls[number]}{_PATHS[api]}{self.query}"

    def pick(self, session_id: str) -> int:
        """The number of the URL for the next turn to be sent, see `pick_url`."""
        self._sent += 1
        return pick_url(self.balance, len(self.urls), session_id, self._sent - 1)


def probe_endpoint(options: EndpointOptions, target: str) -> Endpoint:
    """Make sure that all URLs of an endpoint answer, and take its first model if none is named.

    Goes the way that the run will go: same headers, TLS, proxy, socket. Not to be called in an event loop.
    Raises `AgentloadError` if the URL or an option is wrong, if the endpoint cannot be reached or does not
    speak HTTP, or if no model is named and it lists none.
    """
    connection = check_endpoint(options)
    check_target(options, target)
    urls = tuple(dict.fromkeys((base_url_of(target), *map(base_url_of, options.more_urls))))
    query = query_of(options.query)
    listings = asyncio.run(_listings(connection, [f"{url}/v1/models{query}" for url in urls]))
    listed = [_checked(url, answer) for url, answer in zip(urls, listings, strict=True)]
    models = listed[0]
    found = models[0].id if models else None
    if options.model is None and not (isinstance(found, str) and found.isprintable()):
        answers = "no list of models" if listings[0].status == 200 else f"HTTP {listings[0].status}"
        raise AgentloadError(f"{urls[0]}/v1/models answers {answers}: name the model to ask for with --model")
    simulated = _simulated(models[0]) if models else None
    asked = str(found) if options.model is None else options.model
    for url, others in zip(urls[1:], listed[1:], strict=True):
        if options.model is None and others and asked not in [each.id for each in others]:
            raise AgentloadError(
                f"{url} lists no model {asked!r}, the first one of {urls[0]}; name one with --model"
            )
    lengths = [_max_model_len(each, asked, simulated is not None) for each in listed]
    return Endpoint(
        urls=urls,
        model=asked,
        api=options.api,
        connection=connection,
        query=query,
        balance=options.balance,
        simulated=simulated,
        max_model_len=min((length for length in lengths if length is not None), default=None),
    )


async def _listings(connection: Connection, urls: list[str]) -> list[Answer]:
    timeouts = Timeouts(_PROBE_TIMEOUT_S, None, _PROBE_TIMEOUT_S, 2 * _PROBE_TIMEOUT_S)
    async with StampingClient(connection=connection, timeouts=timeouts) as client:
        return await asyncio.gather(*(client.post(HttpRequest(url, b"", {}, "GET")) for url in urls))


def _checked(url: str, answer: Answer) -> list[_Model]:
    """The models that a URL lists. Raises `AgentloadError` if requests to it would come to nothing."""
    if answer.status is None:
        if answer.error_kind == "bad_stream":
            raise AgentloadError(f"{url} does not speak HTTP: {answer.error}")
        raise AgentloadError(f"cannot reach {url}: {answer.error}")
    if answer.status == 401:
        raise AgentloadError(f"{url}/v1/models answers HTTP 401: the key is missing or wrong; see --key-env")
    if answer.error is not None:
        raise AgentloadError(f"{url}/v1/models: the list of models broke off: {answer.error}")
    return _models(answer.body) if answer.status == 200 else []


class _Model(msgspec.Struct):
    """What is listed of a model; nothing of it is believed before it is looked at."""

    id: Any = None
    agentload: Any = None
    max_model_len: Any = None


def _models(body: bytes) -> list[_Model]:
    try:
        return [msgspec.convert(each, _Model) for each in json.loads(body)["data"] if isinstance(each, dict)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _simulated(model: _Model) -> SimulatedModel | None:
    """What a simulator adds to its model."""
    try:
        return msgspec.convert(model.agentload, SimulatedModel)
    except msgspec.ValidationError:
        return None


def _max_model_len(models: list[_Model], asked: str, simulated: bool) -> int | None:
    """What is told of the model asked for; a simulator serves its one model by any name."""
    told = next((each.max_model_len for each in models if simulated or each.id == asked), None)
    return told if type(told) is int and told > 0 else None
