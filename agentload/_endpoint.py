"""The endpoint of a wall-clock replay: found and asked for its model, or started for the occasion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentload_traces import AgentloadError

API_KEY_VARIABLE = "AGENTLOAD_API_KEY"
"""Environment variable that holds the endpoint's key; it is sent, but never logged or written to a run."""

_PROBE_TIMEOUT_S = 30


class Endpoint(NamedTuple):
    """base_url: without `/v1` and trailing slash. headers: sent with every request; secret, for the key."""

    base_url: str
    model: str
    headers: dict[str, str]


def probe_endpoint(url: str, model: str | None) -> Endpoint:
    """Make sure that an endpoint answers, and take its first model if none is named.

    Raises `AgentloadError` if it cannot be reached, or if no model is named and it lists none.
    """
    base_url = url.rstrip("/").removesuffix("/v1")
    key = os.environ.get(API_KEY_VARIABLE)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    listing = f"{base_url}/v1/models"
    try:
        request = urllib.request.Request(listing, headers=headers)
        with urllib.request.urlopen(request, timeout=_PROBE_TIMEOUT_S) as response:
            found = json.load(response)["data"][0]["id"]
    except urllib.error.HTTPError as error:
        found = None
        what = f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
            found, what = None, "no JSON"
        else:
            reason = getattr(error, "reason", error)
            raise AgentloadError(f"cannot reach {base_url}: {reason}") from None
    except (LookupError, TypeError):
        found, what = None, "no model"
    if model is None and not isinstance(found, str):
        raise AgentloadError(f"{listing} answers {what}: name the model to ask for with --model")
    return Endpoint(base_url, model or str(found), headers)


@contextmanager
def simulator_process(deployment: str, seed: int) -> Iterator[str]:
    """Serve a deployment in a process of its own on a free port; yields its URL.

    A process of its own, because a client and a server that share a core and a loop measure each other.
    """
    command = [sys.executable, "-m", "agentload", "serve", deployment]
    command += ["--port", "0", "--seed", str(seed), "--json"]
    # A group of its own, so that Ctrl-C reaches the replay alone, which then stops the server in order.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                raise AgentloadError(
                    f"the simulator of {deployment} did not start (exit code {process.wait()})"
                )
            yield str(json.loads(ready)["url"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
