"""Inter-token latency: the gaps between tokens, pooled over the requests of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from agentload_analysis._metrics import QUANTILES, measured, with_metrics

ItlSource = Literal["arrivals", "tpot"]
"""arrivals: every gap between tokens. tpot: one mean gap a request, for arrivals were not recorded."""


def itl_source(requests: pl.LazyFrame) -> ItlSource:
    """Which of the two the run allows: "arrivals" if any measured answer has its arrivals recorded."""
    recorded = (
        requests.select((measured(requests) & pl.col("arrival_dt_us").is_not_null()).any())
        .collect(engine="streaming")
        .item()
    )
    return "arrivals" if recorded else "tpot"


def itl_gaps(requests: pl.LazyFrame, by: Sequence[str] = ()) -> pl.LazyFrame:
    """The gaps between tokens: the columns `by` of their request, gap_ms, weight (how many such gaps).

    With "arrivals" a gap of dt that brings k tokens counts as k gaps of dt/k, the first arrival (TTFT) is
    left out, and a request without recorded arrivals adds nothing. With "tpot" each request is one gap.
    Equal gaps are merged, so that what is sorted later is far smaller than what was recorded.
    """
    if itl_source(requests) == "tpot":
        return (
            with_metrics(requests)
            .filter(pl.col("tpot_ms").is_not_null())
            .select(*by, gap_ms="tpot_ms", weight=pl.lit(1, dtype=pl.Int64))
        )
    counted = (
        requests.filter(measured(requests) & (pl.col("arrival_dt_us").list.len() > 1))
        .select(
            *by,
            dt_us=pl.col("arrival_dt_us").list.slice(1),
            tokens=pl.col("arrival_tokens").list.slice(1),
        )
        .explode("dt_us", "tokens", empty_as_null=False)
        .filter(pl.col("tokens") > 0)
        .group_by(*by, "dt_us", "tokens")
        .agg(pl.len().cast(pl.Int64).alias("times"))
    )
    return counted_gaps(counted, by)


def counted_gaps(counted: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """Arrivals of `tokens` tokens `dt_us` after those before, each there `times` times, as `itl_gaps`.

    counted: the columns `by`, dt_us, tokens (1 or more), times.
    """
    return counted.select(
        *by,
        gap_ms=pl.col("dt_us") / pl.col("tokens") / 1e3,
        weight=pl.col("times") * pl.col("tokens"),
    )


def itl_table(gaps: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """Per values of the columns `by`: itl_count, itl_p50_ms, itl_p90_ms, itl_p99_ms, itl_max_ms.

    gaps: from `itl_gaps`. Each gap counts `weight` times, without being repeated; percentiles are linear.
    """
    ranked = gaps.sort(*by, "gap_ms").with_columns(until=pl.col("weight").cum_sum().over(*by))
    last = pl.col("weight").sum() - 1

    def value_at(rank: pl.Expr) -> pl.Expr:
        return pl.col("gap_ms").filter(pl.col("until") > rank).min()

    def quantile(q: float) -> pl.Expr:
        rank = last * q
        below = value_at(rank.floor())
        return below + (value_at(rank.ceil()) - below) * (rank - rank.floor())

    return ranked.group_by(*by).agg(
        pl.col("weight").sum().alias("itl_count"),
        *(quantile(q).alias(f"itl_{name}_ms") for name, q in QUANTILES.items()),
        pl.col("gap_ms").max().alias("itl_max_ms"),
    )
