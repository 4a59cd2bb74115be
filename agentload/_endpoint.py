"""The endpoint of a wall-clock replay: found and asked for its model, or started for the occasion."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from agentload_simbackend import SimulatedModel
from agentload_traces import AgentloadError

API_KEY_VARIABLE = "AGENTLOAD_API_KEY"
"""Environment variable that holds the endpoint's key; it is sent, but never logged or written to a run."""

_PROBE_TIMEOUT_S = 30

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
# The replay does not go through the environment's proxies, so the probe must not either.


class Endpoint(NamedTuple):
    """base_url: without `/v1` and trailing slash. headers: sent with every request; secret, for the key.

    simulated: what the endpoint says of itself if it is a simulator, so that reports can say it too.
    max_model_len: how long prompt and answer together may be; `None` if the endpoint does not tell.
    """

    base_url: str
    model: str
    headers: dict[str, str]
    simulated: SimulatedModel | None = None
    max_model_len: int | None = None


def probe_endpoint(url: str, model: str | None) -> Endpoint:
    """Make sure that an endpoint answers, and take its first model if none is named.

    Raises `AgentloadError` if the URL or the key is wrong, if the endpoint cannot be reached or does not
    speak HTTP, or if no model is named and it lists none.
    """
    base_url = _checked(url)
    if model is not None and not model.isprintable():
        raise AgentloadError(f"--model {model!r}: holds characters that are no text")
    headers = _authorization()
    listing = f"{base_url}/v1/models"
    try:
        request = urllib.request.Request(listing, headers=headers)
        with _open(request, timeout=_PROBE_TIMEOUT_S) as response:
            models, what = _models(response.read()), "no list of models"
    except urllib.error.HTTPError as error:
        models, what = [], f"HTTP {error.code}"
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise AgentloadError(f"cannot reach {base_url}: {reason}") from None
    except http.client.HTTPException as error:
        raise AgentloadError(f"{base_url} does not speak HTTP: {' '.join(str(error).split())}") from None
    found = models[0].id if models else None
    if model is None and not (isinstance(found, str) and found.isprintable()):
        raise AgentloadError(f"{listing} answers {what}: name the model to ask for with --model")
    simulated = _simulated(models[0]) if models else None
    asked = str(found) if model is None else model
    return Endpoint(base_url, asked, headers, simulated, _max_model_len(models, asked, simulated is not None))


def _checked(url: str) -> str:
    """The URL without `/v1`; raises `AgentloadError` if requests cannot be sent to it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.query or parts.fragment) and url.isascii() and url.isprintable()
    except ValueError:
        usable = False
    if not usable or " " in url:
        raise AgentloadError(f"{url!r}: not an endpoint; it must be http(s)://HOST[:PORT][/PATH]")
    if "@" in parts.netloc:
        raise AgentloadError(f"the URL of the endpoint holds a password; put the key into {API_KEY_VARIABLE}")
    return url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")


def _authorization() -> dict[str, str]:
    key = os.environ.get(API_KEY_VARIABLE, "").strip()
    if not key:
        return {}
    if not key.isascii() or not key.isprintable():
        raise AgentloadError(f"{API_KEY_VARIABLE}: holds characters that cannot stand in a header")
    return {"authorization": f"Bearer {key}"}


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


class Served(NamedTuple):
    """Where a run goes. start: called with the `time.monotonic_ns` at which the run's clock reads 0."""

    url: str
    start: Callable[[int], None]


@contextmanager
def simulator_process(deployment: str, seed: int, faults: Path | None) -> Iterator[Served]:
    """Serve a deployment in a process of its own on a free port.

    A process of its own, because a client and a server that share a core and a loop measure each other.
    Its clock stands at 0 until `Served.start`, so that faults come when they come in virtual time.
    """
    command = [sys.executable, "-m", "agentload", "serve", deployment]
    command += ["--port", "0", "--seed", str(seed), "--json", "--until-stdin-ends"]
    if faults is not None:
        command += ["--faults", str(faults)]
    # A group of its own, so that Ctrl-C reaches the replay alone, which then stops the server in order.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                raise AgentloadError(
                    f"the simulator of {deployment} did not start (exit code {process.wait()})"
                )
            yield Served(str(json.loads(ready)["url"]), partial(_tell_start, process))
        finally:
            # Its standard input ends here, and it stops.
            process.communicate()


def _tell_start(process: subprocess.Popen[str], origin_ns: int) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # a server that has died is found by the requests
        process.stdin.write(f"{origin_ns}\n")
        process.stdin.flush()
