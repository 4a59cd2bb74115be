"""Being told to stop while something is written."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from agentload_traces import printable

_LIKE_CTRL_C = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP do what Ctrl-C does; a SIGHUP that is ignored (`nohup`) stays so.

    A shell that starts a job in the background ignores SIGINT for it. Ctrl-C cannot reach such a job, but
    what it does must still be there to be done.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_LIKE_CTRL_C)}
    if before[signal.SIGINT] is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _LIKE_CTRL_C:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible_write(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the block as an exception, then say so and exit with 130.

    The block removes what it has written of `path` so far.
    """
    try:
        with like_ctrl_c():
            yield
    except KeyboardInterrupt:
        click.echo(f"interrupted: {printable(Path(path))} is not written", err=True)
        sys.exit(130)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    # asyncio's runner has a handler of its own for SIGINT, which ends its tasks in order.
    signal.raise_signal(signal.SIGINT)
