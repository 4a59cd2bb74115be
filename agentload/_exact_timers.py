"""Timers that are good to tens of microseconds on any event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import perf_counter_ns

from agentload._timerfd import open_timerfd, read_timerfd, set_timerfd


class ExactTimer:
    """A call that is to be made. `cancel` it when it is not."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Let it not be made; harmless when it was."""
        self._call = None

    @property
    def cancelled(self) -> bool:
        """Whether there is nothing to be called any more."""
        return self._call is None

    def run(self) -> None:
        """Make the call, once."""
        call, self._call = self._call, None
        if call is not None:
            call()


class ExactTimers:
    """Calls at given times on the running loop; one timer of the kernel serves all. A context manager.

    Where the kernel has none (only Linux has), the loop's own timers are used, which may be a millisecond
    early or late.
    """

    def __enter__(self) -> ExactTimers:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, ExactTimer]] = []
        self._order = count()
        self._set_ns: int | None = None
        self._fd = open_timerfd()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._expired, self._fd)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def call_at(self, at_ns: int, call: Callable[[], None]) -> ExactTimer | asyncio.TimerHandle:
        """Call at `at_ns` (`perf_counter_ns`), or soon if that has passed."""
        if self._fd is None:
            return self._loop.call_later(min(max(0, at_ns - perf_counter_ns()) / 1e9, 1e6), call)
        timer = ExactTimer(call)
        heappush(self._waiting, (at_ns, next(self._order), timer))
        if self._set_ns is None or at_ns < self._set_ns:
            self._set(self._fd)
        return timer

    def _set(self, fd: int) -> None:
        self._set_ns = self._waiting[0][0]
        set_timerfd(fd, self._set_ns)

    def _expired(self, fd: int) -> None:
        read_timerfd(fd)
        now_ns, waiting = perf_counter_ns(), self._waiting
        due: list[ExactTimer] = []
        while waiting and (waiting[0][0] <= now_ns or waiting[0][2].cancelled):
            due.append(heappop(waiting)[2])
        self._set_ns = None
        if waiting:
            self._set(fd)
        for timer in due:
            timer.run()
