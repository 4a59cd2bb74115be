"""A deployment served for the occasion, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from agentload_traces import AgentloadError


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
