"""How many sessions were under way at once."""

from __future__ import annotations

import polars as pl


def sessions_at_once(requests: pl.LazyFrame) -> dict[str, int | None]:
    """`sessions_at_once_max`, and at how many different times sessions started (`session_start_times`).

    A session is under way from its start (due time - think - tool of its first turn) to the last end of a
    turn that was sent, answered or not; one that ends at the moment at which another starts is not under way
    with it. Both are `None` if no turn was sent.
    """
    start_ns = pl.col("scheduled_ns") - pl.col("tool_ns") - pl.col("think_ns")
    spans = (
        requests.filter(pl.col("scheduled_ns").is_not_null())
        .group_by("session_id")
        .agg(
            start_ns.min().alias("start_ns"),
            pl.max_horizontal("end_ns", "scheduled_ns").max().alias("end_ns"),
        )
        .collect()
    )
    if spans.is_empty():
        return {"sessions_at_once_max": None, "session_start_times": None}
    starts = spans.select(at_ns="start_ns", change=1)
    # A session of no length is under way at its start.
    ends = spans.select(at_ns=pl.max_horizontal("end_ns", pl.col("start_ns") + 1), change=-1)
    under_way = pl.concat([starts, ends]).sort("at_ns", "change")["change"].cum_sum()
    most = under_way.max()
    assert isinstance(most, int)
    return {"sessions_at_once_max": most, "session_start_times": spans["start_ns"].n_unique()}
