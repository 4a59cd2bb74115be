"""How late tokens were written: a histogram with 10 us bins."""

from __future__ import annotations

from typing import TypedDict

_BIN_NS = 10_000
_BINS = 10_000


class PacingSummary(TypedDict):
    """Lateness of writes, `None` before the first; percentiles are rounded up to 10 us."""

    writes: int
    lateness_p50_ms: float | None
    lateness_p99_ms: float | None
    lateness_max_ms: float | None


class PacingHistogram:
    """Counts, for each write, its actual time - the time at which its oldest event was due."""

    def __init__(self) -> None:
        self._bins = [0] * (_BINS + 1)
        self._max_ns = 0
        self._writes = 0

    def add(self, scheduled_ns: int, actual_ns: int) -> None:
        """Count one write."""
        late_ns = actual_ns - scheduled_ns
        index = late_ns // _BIN_NS
        self._bins[index if index < _BINS else _BINS] += 1
        self._writes += 1
        if late_ns > self._max_ns:
            self._max_ns = late_ns

    def percentile_ns(self, share: float) -> int | None:
        """Lateness that `share` (0 to 1) of the writes did not exceed, rounded up to 10 us."""
        wanted, seen = share * self._writes, 0
        for index, writes in enumerate(self._bins):
            seen += writes
            if writes and seen >= wanted:
                return min((index + 1) * _BIN_NS, self._max_ns) if index < _BINS else self._max_ns
        return None

    def summary(self) -> PacingSummary:
        """Return what `/health` and the line at shutdown show."""
        return {
            "writes": self._writes,
            "lateness_p50_ms": _ms(self.percentile_ns(0.5)),
            "lateness_p99_ms": _ms(self.percentile_ns(0.99)),
            "lateness_max_ms": _ms(self._max_ns if self._writes else None),
        }


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else round(duration_ns / 1e6, 3)
