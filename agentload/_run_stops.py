"""Being told to stop while a run goes on: once drains it, twice ends it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from agentload_traces import counted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stoppable(Protocol):
    """What is told to stop, on its loop."""

    def drain(self) -> int:
        """Begin nothing more; returns how many turns are on their way."""
        ...

    def stop(self) -> None:
        """End at once."""
        ...


@contextmanager
def stopped_by_signals(run: Stoppable, tell: Callable[[str], None]) -> Iterator[None]:
    """On the running loop, let Ctrl-C, SIGTERM and SIGHUP stop `run`; a SIGHUP that is ignored stays so.

    tell: told what happens and what once more would do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread only
        return
    loop = asyncio.get_running_loop()
    told = False

    def stop() -> None:
        nonlocal told
        if told:
            run.stop()
            return
        told = True
        turns = run.drain()
        if turns:
            tell(f"finishing {counted(turns, 'turn')} on the way; once more stops them, too")

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
