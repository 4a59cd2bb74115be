"""A server in a process of its own, for as long as it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

from agentload._undisturbed import undisturbed
from agentload_traces import AgentloadError


class ChildServer(NamedTuple):
    """A server that runs. said: the line by which it told that it is ready. stdin: what it reads."""

    said: str
    stdin: IO[str]


@contextmanager
def child_server(name: str, arguments: Sequence[str]) -> Iterator[ChildServer]:
    """Run `python -m` with arguments; the server must print a line when it is ready, and end with its input.

    name: of the server, for the `AgentloadError` that is raised if it ends before it is ready.
    """
    # A group of its own, so that Ctrl-C reaches the caller alone, which then ends it in order.
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if not said:
                raise AgentloadError(f"{name} did not start (exit code {process.wait()})")
            yield ChildServer(said, process.stdin)
        finally:
            # Its standard input ends here, and it stops.
            with undisturbed():
                process.communicate()
