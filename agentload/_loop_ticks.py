"""Regular wake-ups of an event loop, and how late each came."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter_ns

from agentload._timerfd import open_timerfd, read_timerfd, set_timerfd

CALL_LATER_GRAIN_NS = 2_000_000
"""How late an idle loop may be with its own timers: uvloop rounds to whole milliseconds, twice."""


class LoopTicks:
    """Calls `on_tick(late_ns)` on the running loop every `tick_ns`, on an absolute schedule.

    late_ns: how much later than due the loop came to the call; of ticks that were missed together, the
    first's. On Linux the ticks come from the kernel, so lateness is good to microseconds: what remains on an
    idle loop is its wake-up, tens of microseconds, which every read of a socket meets too. Elsewhere they
    are timers of the loop; their grain, `CALL_LATER_GRAIN_NS`, is taken off.
    """

    def __init__(self, tick_ns: int, on_tick: Callable[[int], None]) -> None:
        self._tick_ns = tick_ns
        self._on_tick = on_tick
        self._loop = asyncio.get_running_loop()
        self._due_ns = perf_counter_ns() + tick_ns
        self._timer: asyncio.TimerHandle | None = None
        self._fd = open_timerfd()
        if self._fd is not None:
            set_timerfd(self._fd, self._due_ns, tick_ns)
            self._loop.add_reader(self._fd, self._expired, self._fd)
        else:
            self._timer = self._loop.call_later(tick_ns / 1e9, self._called)

    def close(self) -> None:
        """Stop; harmless when done before."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self, fd: int) -> None:
        late_ns = perf_counter_ns() - self._due_ns
        if ticks := read_timerfd(fd):
            self._due_ns += ticks * self._tick_ns
            self._on_tick(late_ns)

    def _called(self) -> None:
        late_ns = perf_counter_ns() - self._due_ns
        ticks = max(1, late_ns // self._tick_ns + 1)
        self._due_ns += ticks * self._tick_ns
        wait_ns = self._due_ns - perf_counter_ns()
        self._timer = self._loop.call_later(max(0, wait_ns) / 1e9, self._called)
        self._on_tick(max(0, late_ns - CALL_LATER_GRAIN_NS))
