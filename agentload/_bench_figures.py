"""The figures of a benchmark of single requests, worked out from the rows of a run."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import polars as pl

_CONFIDENCE = 0.95


class Spread(msgspec.Struct, kw_only=True):
    """A distribution over requests.

    median_low, median_high, p80_low, p80_high: between which the value of endlessly many such requests lies,
    with 95 % confidence, whatever the distribution; `None` where there are too few.
    """

    count: int
    median: float
    median_low: float | None
    median_high: float | None
    p5: float
    p80: float
    p80_low: float | None
    p80_high: float | None
    p95: float


class RequestFigures(msgspec.Struct, kw_only=True):
    """What a run of single requests gave; figures are of answered ones, tokens in o200k_base.

    speed_tokens_per_s: `None` where no answer came in more than one arrival. shorter: answers with fewer
    tokens than were asked for. output_tokens: their median number. reported_per_counted: the endpoint's own
    count of output tokens over ours, of all answers together. cached: requests of whose prompt something
    was in the endpoint's cache, by its own count. first_failure: what the first failed one met.
    """

    requests: int
    answered: int
    failed: int
    first_failure: str | None
    shorter: int
    output_tokens: float | None
    sent_tokens: float | None
    reported_per_counted: float | None
    cached: int
    speed_tokens_per_s: Spread | None
    ttft_ms: Spread | None
    end_to_end_s: Spread | None


def request_figures(rows: pl.LazyFrame) -> RequestFigures:
    """Work out the figures from the request rows of a run directory."""
    import polars as pl

    ended = rows.filter(pl.col("status") != "retried").sort("scheduled_ns", nulls_last=True)
    tokens, dt_us = pl.col("arrival_tokens").list, pl.col("arrival_dt_us").list
    later_tokens = pl.col("output_tokens") - tokens.first()
    span_us = dt_us.sum() - dt_us.first()
    table = ended.with_columns(
        speed=pl.when(span_us > 0).then(later_tokens * 1e6 / span_us),
        ttft_ms=(pl.col("first_token_ns") - pl.col("sent_ns")) / 1e6,
        end_to_end_s=(pl.col("end_ns") - pl.col("sent_ns")) / 1e9,
    ).collect()
    ok = table.filter(pl.col("status") == "ok")
    failures = table.filter(pl.col("status") != "ok")["error"]
    both = ok.drop_nulls(["reported_output_tokens", "output_tokens"])
    counted = int(both["output_tokens"].sum())
    return RequestFigures(
        requests=table.height,
        answered=ok.height,
        failed=len(failures),
        first_failure=failures[0] if len(failures) else None,
        shorter=ok.filter(pl.col("output_tokens") < pl.col("output_tokens_asked")).height,
        output_tokens=_median(ok["output_tokens"]),
        sent_tokens=_median(ok["sent_tokens"]),
        reported_per_counted=int(both["reported_output_tokens"].sum()) / counted if counted else None,
        cached=ok.filter(pl.col("cached_tokens") > 0).height,
        speed_tokens_per_s=_spread(ok["speed"]),
        ttft_ms=_spread(ok["ttft_ms"]),
        end_to_end_s=_spread(ok["end_to_end_s"]),
    )


def _median(values: pl.Series) -> float | None:
    return _quantile(values.drop_nulls(), 0.5)


def _quantile(values: pl.Series, q: float) -> float | None:
    value: Any = values.quantile(q, interpolation="linear")
    return None if value is None else float(value)


def _spread(values: pl.Series) -> Spread | None:
    known = values.drop_nulls().sort()
    if known.is_empty():
        return None
    found = {name: _quantile(known, q) or 0.0 for name, q in _QUANTILES.items()}
    median, p80 = (_within(known, q) for q in (0.5, 0.8))
    return Spread(
        count=len(known),
        median_low=median[0],
        median_high=median[1],
        p80_low=p80[0],
        p80_high=p80[1],
        **found,
    )


_QUANTILES = {"p5": 0.05, "median": 0.5, "p80": 0.8, "p95": 0.95}


def _within(known: pl.Series, q: float) -> tuple[float | None, float | None]:
    low, high = interval_ranks(len(known), q)
    return (
        None if low is None else float(known[low - 1]),
        None if high is None else float(known[high - 1]),
    )


def interval_ranks(count: int, q: float) -> tuple[int | None, int | None]:
    """Which of `count` values in order, from 1 on, hold the true quantile between them with 95 % confidence.

    How many of the values lie below it follows the binomial law; each side may be wrong in 2.5 %.
    """
    below, chances = 0.0, []
    for number in range(count + 1):
        below += comb(count, number) * q**number * (1 - q) ** (count - number)
        chances.append(below)
    each = (1 - _CONFIDENCE) / 2
    low = max((rank for rank in range(1, count + 1) if chances[rank - 1] <= each), default=None)
    high = min((rank for rank in range(1, count + 1) if chances[rank - 1] >= 1 - each), default=None)
    return low, high
