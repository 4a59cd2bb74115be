"""The gaps between tokens of a point, counted as they come, for there are too many to be held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentload_analysis import VALUES_NEEDED

if TYPE_CHECKING:
    import polars as pl

_HELD = 200_000
"""Counts of gaps of single turns that are held before they are summed up."""


class Gaps:
    """Gaps by length: of each turn by itself, and pooled over groups of sessions."""

    def __init__(self) -> None:
        self._turns = 0
        self._held: list[tuple[int, int, int, int]] = []
        self._pooled: Counter[tuple[int, int, int]] = Counter()
        self._p99_ms: list[float] = []

    def add(self, group: int, dt_us: Sequence[int], tokens: Sequence[int]) -> None:
        """Take the arrivals of an answered turn. The first is no gap."""
        self._turns += 1
        for (dt, count), times in Counter(zip(dt_us[1:], tokens[1:], strict=True)).items():
            if count:
                self._held.append((self._turns, dt, count, times))
                self._pooled[group, dt, count] += times
        if len(self._held) >= _HELD:
            self._sum_up()

    def turn_p99_ms(self) -> pl.Series:
        """The p99 of each turn that has as many gaps as that needs."""
        import polars as pl

        self._sum_up()
        return pl.Series(self._p99_ms, dtype=pl.Float64)

    def pooled(self) -> pl.LazyFrame:
        """All gaps as `agentload_analysis.itl_table` takes them, with the column `group`."""
        return _gaps("group", [(*gap, times) for gap, times in self._pooled.items()])

    def _sum_up(self) -> None:
        from agentload_analysis import itl_table

        table = itl_table(_gaps("turn", self._held), ["turn"]).sort("turn").collect()
        self._p99_ms += table.filter(table["itl_count"] >= VALUES_NEEDED["p99"])["itl_p99_ms"].to_list()
        self._held = []


def _gaps(key: str, counted: list[tuple[int, int, int, int]]) -> pl.LazyFrame:
    import polars as pl

    from agentload_analysis import counted_gaps

    schema = dict.fromkeys((key, "dt_us", "tokens", "times"), pl.Int64)
    return counted_gaps(pl.DataFrame(counted, schema=schema, orient="row").lazy(), [key])
