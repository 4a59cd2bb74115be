"""A deployment served for the occasion, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from agentload._child_server import child_server


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
    arguments = ["agentload", "serve", deployment]
    arguments += ["--port", "0", "--seed", str(seed), "--json", "--until-stdin-ends"]
    if faults is not None:
        arguments += ["--faults", str(faults)]
    with child_server(f"the simulator of {deployment}", arguments) as server:
        yield Served(str(json.loads(server.said)["url"]), partial(_tell_start, server.stdin))


def _tell_start(stdin: IO[str], origin_ns: int) -> None:
    with suppress(OSError):  # a server that has died is found by the requests
        stdin.write(f"{origin_ns}\n")
        stdin.flush()
