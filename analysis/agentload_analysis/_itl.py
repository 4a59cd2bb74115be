"""Inter-token latency: the gaps between tokens, pooled over the requests of a group."""

from __future__ import annotations

from typing import Literal

import polars as pl

from agentload_analysis._metrics import ANSWERED, QUANTILES, context_from_tokens, with_metrics

ItlSource = Literal["arrivals", "tpot"]
"""arrivals: every gap between tokens. tpot: one mean gap a request, for arrivals were not recorded."""


_KEYS = ("turn_index", "context_from_tokens")


def itl_source(requests: pl.LazyFrame) -> ItlSource:
    """Which of the two the run allows: "arrivals" if any answered request has its arrivals recorded."""
    recorded = (
        requests.select((ANSWERED & pl.col("arrival_dt_us").is_not_null()).any())
        .collect(engine="streaming")
        .item()
    )
    return "arrivals" if recorded else "tpot"


def itl_gaps(requests: pl.LazyFrame) -> pl.LazyFrame:
    """The gaps between tokens: turn_index, context_from_tokens, gap_ms, weight (how many such gaps).

    With "arrivals" a gap of dt that brings k tokens counts as k gaps of dt/k, the first arrival (TTFT) is
    left out, and a request without recorded arrivals adds nothing. With "tpot" each request is one gap.
    Equal gaps are merged, so that what is sorted later is far smaller than what was recorded.
    """
    keyed = requests.with_columns(context_from_tokens=context_from_tokens())
    if itl_source(requests) == "tpot":
        return (
            with_metrics(keyed)
            .filter(pl.col("tpot_ms").is_not_null())
            .select(*_KEYS, gap_ms="tpot_ms", weight=pl.lit(1, dtype=pl.Int64))
        )
    return (
        keyed.filter(ANSWERED & (pl.col("arrival_dt_us").list.len() > 1))
        .select(
            *_KEYS,
            dt_us=pl.col("arrival_dt_us").list.slice(1),
            tokens=pl.col("arrival_tokens").list.slice(1),
        )
        .explode("dt_us", "tokens", empty_as_null=False)
        .filter(pl.col("tokens") > 0)
        .group_by(*_KEYS, "dt_us", "tokens")
        .agg(pl.len().cast(pl.Int64).alias("times"))
        .select(
            *_KEYS,
            gap_ms=pl.col("dt_us") / pl.col("tokens") / 1e3,
            weight=pl.col("times") * pl.col("tokens"),
        )
    )


def itl_table(gaps: pl.LazyFrame, key: str) -> pl.LazyFrame:
    """Per value of column `key`: itl_count, itl_p50_ms, itl_p90_ms, itl_p99_ms, itl_max_ms.

    gaps: from `itl_gaps`. Each gap counts `weight` times, without being repeated; percentiles are linear.
    """
    ranked = gaps.sort(key, "gap_ms").with_columns(until=pl.col("weight").cum_sum().over(key))
    last = pl.col("weight").sum() - 1

    def value_at(rank: pl.Expr) -> pl.Expr:
        return pl.col("gap_ms").filter(pl.col("until") > rank).min()

    def quantile(q: float) -> pl.Expr:
        rank = last * q
        below = value_at(rank.floor())
        return below + (value_at(rank.ceil()) - below) * (rank - rank.floor())

    return ranked.group_by(key).agg(
        pl.col("weight").sum().alias("itl_count"),
        *(quantile(q).alias(f"itl_{name}_ms") for name, q in QUANTILES.items()),
        pl.col("gap_ms").max().alias("itl_max_ms"),
    )
