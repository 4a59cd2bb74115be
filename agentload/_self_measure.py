"""What the replayer sees of itself while it runs: lateness, lag, unread bytes, CPU, memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from time import process_time_ns

from agentload._loop_ticks import LoopTicks
from agentload_traces import ClientRow

INTERVAL_NS = 100_000_000
"""How much time one `ClientRow` is about."""

_TICK_NS = 25_000_000
"""How often the loop's lag is looked at: a longer stall is never missed, and shown at its length less this.

A wake-up of an idle loop costs up to 80 us of CPU, so that all of the measuring costs about 0.4 % of a core.
"""


class SelfMeasure:
    """Watches one process of a wall-clock run; an async context manager, on the loop that is watched.

    Every `INTERVAL_NS` a `ClientRow` goes to `sink`; the last one, of what is left, on the way out. A sink
    that fails is called no more, and its failure is raised on the way out.
    now_ns: the run's clock. worker: number of this worker process.
    """

    def __init__(
        self, sink: Callable[[ClientRow], None], *, now_ns: Callable[[], int], worker: int = 0
    ) -> None:
        self._sink = sink
        self._now_ns = now_ns
        self._worker = worker
        self._active = 0
        self._most_active = 0
        self._late_ns: int | None = None
        self._unread: int | None = None
        self._lag_ns = 0
        self._failure: BaseException | None = None

    async def __aenter__(self) -> SelfMeasure:
        self._statm = _open_statm()
        self._since_ns = self._now_ns()
        self._cpu_ns = process_time_ns()
        self._ticks = LoopTicks(_TICK_NS, self._tick)
        return self

    async def __aexit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        self._ticks.close()
        try:
            if self._failure is None and self._now_ns() > self._since_ns:
                self._write_row()
        finally:
            if self._statm is not None:
                os.close(self._statm)
        if self._failure is not None and exc is None:
            raise self._failure

    def turn_sent(self, late_ns: int) -> None:
        """A turn goes out, so much after it was due."""
        self._active += 1
        if self._active > self._most_active:
            self._most_active = self._active
        if self._late_ns is None or late_ns > self._late_ns:
            self._late_ns = late_ns

    def turn_ended(self) -> None:
        """A turn that was sent is over, however it ended."""
        self._active -= 1

    def unread(self, bytes_left: int) -> None:
        """So much lay unread in a socket."""
        if self._unread is None or bytes_left > self._unread:
            self._unread = bytes_left

    def _tick(self, late_ns: int) -> None:
        if late_ns > self._lag_ns:
            self._lag_ns = late_ns
        # Half a tick early is on time: what is late in one interval must not make the next one longer.
        if self._now_ns() - self._since_ns < INTERVAL_NS - _TICK_NS // 2:
            return
        try:
            self._write_row()
        except Exception as failure:
            self._failure = failure
            self._ticks.close()

    def _write_row(self) -> None:
        at_ns, cpu_ns = self._now_ns(), process_time_ns()
        row = ClientRow(
            at_ns=at_ns,
            span_ns=at_ns - self._since_ns,
            worker=self._worker,
            active_turns=self._most_active,
            loop_lag_ns=self._lag_ns,
            send_late_ns=self._late_ns,
            unread_bytes=self._unread,
            cpu_ns=cpu_ns - self._cpu_ns,
            rss_bytes=_rss_bytes(self._statm),
        )
        self._since_ns, self._cpu_ns = at_ns, cpu_ns
        self._most_active = self._active
        self._late_ns = self._unread = None
        self._lag_ns = 0
        self._sink(row)


def _open_statm() -> int | None:
    with suppress(OSError):
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    return None


def _rss_bytes(statm: int | None) -> int | None:
    """Resident memory of this process; `None` where the system does not tell it this way."""
    if statm is None:
        return None
    return int(os.pread(statm, 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
