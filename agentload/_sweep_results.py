"""The results of a sweep: one row a point, and what each column means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentload._sweep_points import SweepPoint
from agentload_traces import decodable

if TYPE_CHECKING:
    import polars as pl

Row = dict[str, Any]
"""Values of `COLUMNS` by name."""

Kind = Literal["text", "count", "number", "flag"]


class Column(NamedTuple):
    """What a column of the results holds."""

    kind: Kind
    meaning: str


def _latency(name: str, what: str, unit: str = "ms") -> dict[str, Column]:
    names = {statistic: f"{name}_{statistic}_{unit}" for statistic in ("p50", "p90", "p99", "max")}
    return {
        f"{name}_count": Column("count", f"values that the percentiles of {name} stand on"),
        **{column: Column("number", f"{what}; {statistic}") for statistic, column in names.items()},
        **_scatter(column for statistic, column in names.items() if statistic != "max"),
    }


def _scatter(columns: Iterable[str]) -> dict[str, Column]:
    return {
        f"{column}_se": Column("number", f"standard error of {column}, by ten groups of sessions in order")
        for column in columns
    }


COLUMNS: dict[str, Column] = {
    "target": Column("text", "the deployment"),
    "mode": Column("text", "its co-execution mode; null if it could not be loaded"),
    "context_tokens": Column("count", "the first prompt of each session; null for a trace"),
    "concurrency": Column("count", "sessions at a time (closed loop)"),
    "error": Column("text", "why the point could not be run; null if it was, then all else is known"),
    "racks": Column("count", "racks of the deployment, each of which it uses a chip counted whole"),
    "sessions": Column("count", "sessions that count"),
    "turns": Column("count", "their turns: answered + failed + skipped"),
    "answered": Column("count", "turns answered whole; only these are in any latency"),
    "failed": Column("count", "turns that were refused or ended by a fault"),
    "skipped": Column("count", "turns not sent, for one that they wait for failed"),
    "first_error": Column("text", "of the failed turns"),
    "output_tokens": Column("count", "tokens of answered turns"),
    "run_s": Column("number", "from the first start to the last end of these"),
    "output_tokens_per_s": Column(
        "number", "of all users together, over the time in which these take all places, tools included"
    ),
    "output_tokens_per_s_per_rack": Column("number", "output_tokens_per_s / racks"),
    "speed_count": Column("count", "values that the percentiles of speed stand on"),
    **{
        f"speed_{statistic}_tokens_per_s": Column(
            "number", f"output tokens/s of one user: 1 / TPOT, one value a turn; {statistic} (low is slow)"
        )
        for statistic in ("p50", "p10", "p1", "min")
    },
    **_scatter(f"speed_{statistic}_tokens_per_s" for statistic in ("p50", "p10", "p1")),
    **_latency("ttft", "time to first token: first token - due"),
    **_latency("tpot", "time per output token: (end - first token) / tokens after the first arrival"),
    **_latency("itl", "gaps between tokens, pooled: a gap dt that brings k tokens is k gaps of dt / k"),
    "turn_itl_p99_count": Column("count", "turns with the 100 gaps that a p99 needs"),
    "turn_itl_p99_p50_ms": Column("number", "p99 of the gaps of each single turn; median over these turns"),
    "turn_itl_p99_max_ms": Column("number", "p99 of the gaps of each single turn; the worst of these turns"),
    **_latency("session", "session time (critical path) of the sessions answered whole", "s"),
    "queue_share": Column(
        "number", "queue / session time, over the critical paths of sessions answered whole"
    ),
    "holds": Column("flag", "whether the SLO holds; null without an SLO"),
    "broken": Column("text", "how the SLO is broken"),
}

SCATTERED = [name.removesuffix("_se") for name in COLUMNS if name.endswith("_se")]
"""The columns whose standard errors are columns, too."""

HOW_COUNTED = (
    "racks: every rack of which the deployment uses a chip counts whole: GPUs of all its parts together over"
    " the GPUs of a rack, rounded up, and each LPX rack that it names"
)


def point_row(point: SweepPoint, mode: str | None, error: str | None = None) -> Row:
    """The row of a point of which no number is known; `error`: why it could not be run."""
    row: Row = dict.fromkeys(COLUMNS)
    row.update(mode=mode, context_tokens=point.context_tokens, concurrency=point.concurrency)
    # A path may be a target, and stand in a reason.
    row.update(target=decodable(point.target), error=None if error is None else decodable(error))
    return row


def table(rows: list[Row]) -> pl.DataFrame:
    """Rows as a table with the columns of `COLUMNS`, whatever values are known."""
    import polars as pl

    kinds: dict[Kind, type[pl.DataType]] = {
        "text": pl.String,
        "count": pl.Int64,
        "number": pl.Float64,
        "flag": pl.Boolean,
    }
    return pl.DataFrame(rows, schema={name: kinds[column.kind] for name, column in COLUMNS.items()})
