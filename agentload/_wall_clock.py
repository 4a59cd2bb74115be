"""The clock of a wall-clock run, and waiting on it until something is due or the run is ending."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic_ns, perf_counter_ns

from agentload._exact_timers import ExactTimers

_NS_PER_S = 1_000_000_000


class RunClock:
    """Nanoseconds since the run began. `end` ends all waits, from then on.

    A context manager: within it waits end within tens of microseconds, else as the event loop's timers do.
    """

    def __init__(self) -> None:
        self.origin_ns = 0
        self._ending = False
        self._woken = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._timers: ExactTimers | None = None

    def __enter__(self) -> RunClock:
        self._timers = ExactTimers()
        self._timers.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._timers is not None
        self._timers.__exit__(*exc_info)
        self._timers = None

    def start(self, reads_ns: int) -> int:
        """Have the clock read `reads_ns` now; returns when, by `time.monotonic_ns`, it read 0."""
        self.origin_ns = perf_counter_ns() - reads_ns
        return self.origin_ns + monotonic_ns() - perf_counter_ns()

    def now_ns(self) -> int:
        """The time of the run."""
        return perf_counter_ns() - self.origin_ns

    def ending(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._ending

    def end(self) -> None:
        """Wake all that wait; nobody waits any more."""
        self._ending = True
        self.wake()

    def wake(self) -> None:
        """Wake all that wait, to look again whether they are still to wait."""
        self._woken += 1
        for future in self._waiting:
            _wake(future)

    async def until(self, at_ns: int) -> None:
        """Wait until the clock reads `at_ns`, or all are woken."""
        loop = asyncio.get_running_loop()
        woken_before = self._woken
        # Event loops wake up to a millisecond early, and nothing is to be done before it is due.
        while not self._ending and self._woken == woken_before and (left_ns := at_ns - self.now_ns()) > 0:
            future = loop.create_future()
            self._waiting.add(future)
            timer = (
                loop.call_later(min(left_ns / _NS_PER_S, 1e6), _wake, future)
                if self._timers is None
                else self._timers.call_at(at_ns + self.origin_ns, partial(_wake, future))
            )
            try:
                await future
            finally:
                timer.cancel()
                self._waiting.discard(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
