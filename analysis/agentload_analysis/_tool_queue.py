"""How long tools waited for a slot."""

from __future__ import annotations

from typing import Any

import polars as pl

from agentload_analysis._metrics import QUANTILES


def tool_queue(tool_calls: pl.LazyFrame) -> dict[str, Any]:
    """`tool_queue_ms` over the calls that waited, and `tool_queue_share` of the time of all calls.

    The time of a call is its wait and its run; the share is `None` where that is 0, or waits are unknown.
    """
    wait_ns = pl.col("queue_ns")
    waited_ms = (wait_ns / 1e6).filter(wait_ns > 0)
    row = (
        tool_calls.select(
            waited_ms.count().cast(pl.Int64).alias("count"),
            *(waited_ms.quantile(q, interpolation="linear").alias(name) for name, q in QUANTILES.items()),
            waited_ms.max().alias("max"),
            wait_ns.sum().alias("wait_ns"),
            (wait_ns + pl.col("end_ns") - pl.col("start_ns")).sum().alias("time_ns"),
        )
        .collect()
        .to_dicts()[0]
    )
    of_ns, time_ns = row.pop("wait_ns"), row.pop("time_ns")
    return {"tool_queue_ms": row, "tool_queue_share": of_ns / time_ns if time_ns else None}
