"""Latency tables: one row per turn index, range of turn indices, context bucket, or any other columns.

Columns of every table after its key:

    turns, answered, failed, skipped    rows of each status; the first is their sum (attempts that were
                                        followed by another are no turns)
    subagent_turns                      those of them that sub-agents sent
    output_tokens                       tokens received, summed
    input_tokens_p50                    median prompt length of the answered turns; what follows is without
                                        the run's warm-up
    <m>_count                           how many values the percentiles of <m> stand on
    <m>_p50_<u>, _p90_, _p99_, _max_    for <m>, <u>: ttft, ms; queue, ms; tpot, ms; itl, ms;
                                        speed, tokens_per_s (of one user, 1 / TPOT)
    speed_p10_, _p1_, _min_tokens_per_s the slow side of speed
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from agentload_analysis._itl import itl_gaps, itl_table
from agentload_analysis._metrics import (
    ANSWERED,
    QUANTILES,
    context_from_tokens,
    context_label,
    counts,
    turns_only,
    with_metrics,
)

METRICS = {
    "ttft_ms": ("ttft", "_ms"),
    "queue_ms": ("queue", "_ms"),
    "tpot_ms": ("tpot", "_ms"),
    "output_tokens_per_s": ("speed", "_tokens_per_s"),
}
"""Metric column → how its columns in a table begin and end."""

GAP_KEYS = ("turn_index", "context_from_tokens")
"""By what the gaps must be told apart to serve all tables of a report at once."""

_RANGE_WIDTHS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000)


def latency_table(
    requests: pl.LazyFrame, by: Sequence[str], gaps: pl.LazyFrame | None = None
) -> pl.LazyFrame:
    """One row per values of the columns `by`, in their order; the columns are those of every table.

    by: columns of `requests`, such as "replica", "agent_depth", or one that the caller has added.
    gaps: `itl_gaps(requests, by)`, or by more columns, if the caller has them already.
    """
    columns = [*counts(), pl.col("input_tokens").filter(ANSWERED).median().alias("input_tokens_p50")]
    for column, (head, tail) in METRICS.items():
        value = pl.col(column)
        columns.append(value.count().cast(pl.Int64).alias(f"{head}_count"))
        columns.extend(
            value.quantile(q, interpolation="linear").alias(f"{head}_{name}{tail}")
            for name, q in QUANTILES.items()
        )
        columns.append(value.max().alias(f"{head}_max{tail}"))
    speed = pl.col("output_tokens_per_s")
    columns.append(speed.quantile(0.1, interpolation="linear").alias("speed_p10_tokens_per_s"))
    columns.append(speed.quantile(0.01, interpolation="linear").alias("speed_p1_tokens_per_s"))
    columns.append(speed.min().alias("speed_min_tokens_per_s"))
    table = with_metrics(turns_only(requests)).group_by(*by).agg(columns)
    itl = itl_table(itl_gaps(requests, by) if gaps is None else gaps, by)
    joined = table.join(itl, on=list(by), how="left", nulls_equal=True).sort(*by)
    return joined.with_columns(pl.col("itl_count").fill_null(0))


def with_context(requests: pl.LazyFrame) -> pl.LazyFrame:
    """Add `context_from_tokens`, the lower edge of the context bucket of each turn."""
    return requests.with_columns(context_from_tokens=context_from_tokens())


def per_turn(requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row per `turn_index` (0-based, counted within each agent; sub-agents' turns included).

    gaps: `itl_gaps(with_context(requests), GAP_KEYS)`, here and below, if the caller has them already.
    """
    return latency_table(requests, ["turn_index"], gaps)


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
    last = pl.when(index == 0).then(0).otherwise(pl.min_horizontal(first + width - 1, pl.lit(highest)))

    def ranged(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.with_columns(turn_index=first, last_turn_index=last)

    return latency_table(
        ranged(requests), ["turn_index", "last_turn_index"], None if gaps is None else ranged(gaps)
    )


def per_context(requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row per bucket of `input_tokens`; keys: `context_from_tokens` and its name `context` ("8K-16K").

    A prompt that is exactly as long as an edge falls into the bucket that begins there.
    """
    names = pl.col("context_from_tokens").map_elements(context_label, return_dtype=pl.String)
    table = latency_table(with_context(requests), ["context_from_tokens"], gaps)
    return table.with_columns(context=names)


def overall(requests: pl.LazyFrame, gaps: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """One row over all turns; none without any."""

    def together(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.with_columns(everything=pl.lit(0))

    table = latency_table(together(requests), ["everything"], None if gaps is None else together(gaps))
    return table.drop("everything")


def range_width(highest_index: int, max_ranges: int) -> int:
    """The smallest round width that covers turns 1 to `highest_index` in `max_ranges` - 1 ranges."""
    for width in _RANGE_WIDTHS:
        if -(-highest_index // width) < max_ranges:
            return width
    return -(-highest_index // (max_ranges - 1))
