"""The CPUs that run the tools of all sessions of a run: so many calls at a time, first come, first served."""

from __future__ import annotations

from heapq import heappush, heapreplace


class ToolPool:
    """Places for tool calls. slots: how many run at a time; `None` is without limit.

    How long a call takes is known when it comes, so its times are too: no event is needed when one ends.
    """

    def __init__(self, slots: int | None = None) -> None:
        self._slots = slots
        self._free_ns: list[int] = []  # when each slot that was ever used is free again, a heap

    def start(self, now_ns: int, takes_ns: int) -> tuple[int, int]:
        """A call of `takes_ns` comes at `now_ns`; returns when it starts and when it ends. O(log slots).

        Calls go first come, first served in the order in which they are told here. Where their times are not
        in that order (as on the wall clock, by microseconds) the slots are still never overbooked.
        """
        free_ns = self._free_ns
        if self._slots is None:
            return now_ns, now_ns + takes_ns
        if len(free_ns) < self._slots:
            heappush(free_ns, now_ns + takes_ns)
            return now_ns, now_ns + takes_ns
        start_ns = max(now_ns, free_ns[0])
        heapreplace(free_ns, start_ns + takes_ns)
        return start_ns, start_ns + takes_ns
