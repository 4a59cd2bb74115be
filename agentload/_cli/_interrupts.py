"""Being told to stop while a file is written."""

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
def interruptible_write(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the block as an exception, then say so and exit with 1.

    The block removes what it has written of `path` so far. A SIGHUP that is ignored (`nohup`) stays so.
    """
    before = {number: signal.getsignal(number) for number in _LIKE_CTRL_C}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted: {printable(Path(path))} is not written", err=True)
        sys.exit(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
