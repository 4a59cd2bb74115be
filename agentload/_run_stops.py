"""Being told to stop while a run goes on: once drains it, twice ends it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from agentload_traces import counted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


T = TypeVar("T")


def run_to_its_end(main: Coroutine[Any, Any, T]) -> T:
    """Run on a new event loop, uvloop's where there is one."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


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
