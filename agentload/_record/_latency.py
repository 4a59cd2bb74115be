"""How long the proxy has held bytes back: a histogram that does not grow."""

from __future__ import annotations

from array import array

import msgspec

_BUCKETS = 100_000
"""One a microsecond; what takes longer than 100 ms is told as the longest."""


class LatencySummary(msgspec.Struct, frozen=True):
    """Milliseconds between a read and the write of what was read. count: reads; `None` without any."""

    count: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class Latency:
    """Counts times by microsecond."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (_BUCKETS + 1)))
        self._max_ns = 0

    def add(self, taken_ns: int) -> None:
        """Count one."""
        place = taken_ns // 1_000
        self._counts[place if place < _BUCKETS else _BUCKETS] += 1
        if taken_ns > self._max_ns:
            self._max_ns = taken_ns

    def summary(self) -> LatencySummary:
        """What has been counted; a time is told as the end of its microsecond."""
        total = sum(self._counts)
        if not total:
            return LatencySummary(0, None, None, None)
        longest = round(self._max_ns / 1e6, 3)
        p50, p99 = (self._at(-(-total * share // 100)) for share in (50, 99))
        return LatencySummary(total, min(p50, longest), min(p99, longest), longest)

    def _at(self, rank: int) -> float:
        place, seen = -1, 0
        while seen < rank:
            place += 1
            seen += self._counts[place]
        return self._max_ns / 1e6 if place == _BUCKETS else (place + 1) / 1e3
