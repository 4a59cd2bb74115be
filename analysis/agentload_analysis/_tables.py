"""Latency tables: one row per turn index, per range of turn indices, per context bucket, or one in all.

Columns of every table after its key:

    turns, answered, failed, skipped    rows of each status; the first is their sum
    subagent_turns                      those of them that sub-agents sent
    input_tokens_p50                    median prompt length of the answered turns
    output_tokens                       tokens received, summed
    <m>_count                           how many values the percentiles of <m> stand on
    <m>_p50_<u>, _p90_, _p99_, _max_    for <m>, <u>: ttft, ms; queue, ms; tpot, ms; itl, ms;
                                        speed, tokens_per_s (of one user, 1 / TPOT)
"""

from __future__ import annotations

import polars as pl

from agentload_analysis._itl import itl_gaps, itl_table
from agentload_analysis._metrics import ANSWERED, QUANTILES, context_from_tokens, context_label, with_metrics

METRICS = {
    "ttft_ms": ("ttft", "_ms"),
    "queue_ms": ("queue", "_ms"),
    "tpot_ms": ("tpot", "_ms"),
    "output_tokens_per_s": ("speed", "_tokens_per_s"),
}
"""Metric column → how its columns in a table begin and end."""

_RANGE_WIDTHS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000)


def per_turn(requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row per `turn_index` (0-based, counted within each agent; sub-agents' turns included).

    gaps: `itl_gaps(requests)`, here and below, if the caller has them already.
    """
    return _table(requests, gaps, "turn_index", pl.col("turn_index"))


def per_turn_range(
    requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None, *, max_ranges: int = 15
) -> pl.LazyFrame:
    """As `per_turn`, over equal ranges of turn indices; the first turn always stands alone.

    Keys: `turn_index` (first of the range) and `last_turn_index`.
    """
    highest = requests.select(pl.col("turn_index").max()).collect().item() or 0
    width = range_width(highest, max_ranges)
    index = pl.col("turn_index")
    first = pl.when(index == 0).then(0).otherwise((index - 1) // width * width + 1).cast(pl.Int64)
    last = pl.when(index == 0).then(0).otherwise(pl.min_horizontal(index + width - 1, pl.lit(highest)))
    return _table(requests, gaps, "turn_index", first).with_columns(last_turn_index=last)


def per_context(requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row per bucket of `input_tokens`; keys: `context_from_tokens` and its name `context` ("8K-16K").

    A prompt that is exactly as long as an edge falls into the bucket that begins there.
    """
    keyed = requests.with_columns(context_from_tokens=context_from_tokens())
    key = pl.col("context_from_tokens")
    names = key.map_elements(context_label, return_dtype=pl.String)
    return _table(keyed, gaps, "context_from_tokens", key).with_columns(context=names)


def overall(requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row over all turns; `speed_p10_tokens_per_s`, `_p1_`, `_min_` tell the slow side as well."""
    return _table(requests, gaps, "everything", pl.lit(0), slow_side=True).drop("everything")


def range_width(highest_index: int, max_ranges: int) -> int:
    """The smallest round width that covers turns 1 to `highest_index` in `max_ranges` - 1 ranges."""
    for width in _RANGE_WIDTHS:
        if -(-highest_index // width) < max_ranges:
            return width
    return -(-highest_index // (max_ranges - 1))


def _table(
    requests: pl.LazyFrame, gaps: pl.LazyFrame | None, name: str, key: pl.Expr, *, slow_side: bool = False
) -> pl.LazyFrame:
    """Group by `key`, an expression over the columns of `requests` and of `gaps`, and call it `name`."""
    columns = [
        pl.len().cast(pl.Int64).alias("turns"),
        *(_count(pl.col("status") == status, name) for status, name in _STATUSES.items()),
        _count(pl.col("agent_id").is_not_null(), "subagent_turns"),
        pl.col("input_tokens").filter(ANSWERED).median().alias("input_tokens_p50"),
        pl.col("output_tokens").filter(ANSWERED).sum().alias("output_tokens"),
    ]
    for column, (head, tail) in METRICS.items():
        value = pl.col(column)
        columns.append(value.count().cast(pl.Int64).alias(f"{head}_count"))
        columns.extend(
            value.quantile(q, interpolation="linear").alias(f"{head}_{name}{tail}")
            for name, q in QUANTILES.items()
        )
        columns.append(value.max().alias(f"{head}_max{tail}"))
    if slow_side:
        speed = pl.col("output_tokens_per_s")
        columns.append(speed.quantile(0.1, interpolation="linear").alias("speed_p10_tokens_per_s"))
        columns.append(speed.quantile(0.01, interpolation="linear").alias("speed_p1_tokens_per_s"))
        columns.append(speed.min().alias("speed_min_tokens_per_s"))
    gaps = itl_gaps(requests) if gaps is None else gaps
    table = with_metrics(requests).group_by(key.alias(name)).agg(columns)
    itl = itl_table(gaps.with_columns(key.alias(name)), name)
    joined = table.join(itl, on=name, how="left").sort(name)
    return joined.with_columns(pl.col("itl_count").fill_null(0))


_STATUSES = {"ok": "answered", "failed": "failed", "skipped": "skipped"}


def _count(condition: pl.Expr, name: str) -> pl.Expr:
    return condition.sum().cast(pl.Int64).alias(name)
