"""The latencies of one request: the only place where they are defined (in words: analysis/README.md).

Every function takes and returns lazy frames over the columns of `RequestRow`.
"""

from __future__ import annotations

import polars as pl

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""The percentiles of every table, linearly interpolated between neighbouring values."""

K_TOKENS = 1_000
CONTEXT_EDGES_TOKENS = tuple(8 * K_TOKENS * 2**power for power in range(8))
"""Where one context bucket ends and the next begins: 8K, 16K, ... 1024K (K = 1,000)."""

# The three statuses of a turn, and that of an attempt that was followed by another and so is no turn; nothing
# else in this package spells them out.
ANSWERED = pl.col("status") == "ok"
FAILED = pl.col("status") == "failed"
SKIPPED = pl.col("status") == "skipped"
RETRIED = pl.col("status") == "retried"


def turns_only(requests: pl.LazyFrame) -> pl.LazyFrame:
    """One row a turn: without the attempts that were followed by another."""
    return requests.filter(~RETRIED)


def in_warmup(requests: pl.LazyFrame) -> pl.Expr:
    """Whether a turn was due in the run's warm-up; tables that do not tell it had none."""
    known = "warmup" in requests.collect_schema()
    return pl.col("warmup").fill_null(False) if known else pl.lit(False)


def measured(requests: pl.LazyFrame) -> pl.Expr:
    """Whether a turn is in the latencies: answered, and not in the warm-up."""
    return ANSWERED & ~in_warmup(requests)


def counts() -> list[pl.Expr]:
    """What every table counts: turns, answered, failed, skipped, subagent_turns, output_tokens."""
    parts = {"answered": ANSWERED, "failed": FAILED, "skipped": SKIPPED}
    parts["subagent_turns"] = pl.col("agent_id").is_not_null()
    return [
        pl.len().cast(pl.Int64).alias("turns"),
        *(condition.sum().cast(pl.Int64).alias(name) for name, condition in parts.items()),
        pl.col("output_tokens").filter(ANSWERED).sum().alias("output_tokens"),
    ]


def with_metrics(requests: pl.LazyFrame) -> pl.LazyFrame:
    """Add the latencies of each answered request; they are null for others, and for those of the warm-up.

    ttft_ms: first_token - scheduled.
    tpot_ms: (end - first_token) / (output_tokens - k), with k the tokens of the first arrival, which were
    all there at first_token; null where no token came after it.
    output_tokens_per_s: 1 / TPOT; null where TPOT is null or 0 (all tokens in one read).
    queue_ms: time in the endpoint's queue; null if the endpoint does not tell it.
    """
    counts_here = measured(requests)
    later_tokens = pl.col("output_tokens") - first_arrival_tokens()
    tpot_ns = (pl.col("end_ns") - pl.col("first_token_ns")) / later_tokens
    return requests.with_columns(
        ttft_ms=pl.when(counts_here).then((pl.col("first_token_ns") - pl.col("scheduled_ns")) / 1e6),
        tpot_ms=pl.when(counts_here & (later_tokens > 0)).then(tpot_ns / 1e6),
        queue_ms=pl.when(counts_here).then(pl.col("queue_ns") / 1e6),
    ).with_columns(output_tokens_per_s=pl.when(pl.col("tpot_ms") > 0).then(1e3 / pl.col("tpot_ms")))


def first_arrival_tokens() -> pl.Expr:
    """Tokens that came at `first_token_ns`.

    As recorded; without recorded arrivals the mean of a decode step, if the steps are known; else 1.
    """
    mean_of_a_step = pl.when(pl.col("steps") > 0).then(pl.col("output_tokens") / pl.col("steps"))
    return pl.coalesce(pl.col("arrival_tokens").list.first(), mean_of_a_step, 1.0)


def context_from_tokens() -> pl.Expr:
    """Lower edge of the context bucket that a request's `input_tokens` fall into."""
    bucket = pl.lit(0, dtype=pl.Int64)
    for edge in CONTEXT_EDGES_TOKENS:
        bucket = pl.when(pl.col("input_tokens") >= edge).then(edge).otherwise(bucket)
    return bucket


def context_label(from_tokens: int) -> str:
    """Name of the context bucket that starts at `from_tokens`: "8K-16K"; the last is "1024K and more"."""
    start = from_tokens // K_TOKENS
    if from_tokens == CONTEXT_EDGES_TOKENS[-1]:
        return f"{start}K and more"
    return f"{start}K-{max(2 * start, CONTEXT_EDGES_TOKENS[0] // K_TOKENS)}K"
