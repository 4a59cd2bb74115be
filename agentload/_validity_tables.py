"""What the rules of `_validity` look at: a run's turns and the client's intervals, as small tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agentload_traces import ClientRow, RequestRow, RunReader

if TYPE_CHECKING:
    import polars as pl

_TURN_COLUMNS = {
    "status": "String",
    "scheduled_ns": "Int64",
    "sent_ns": "Int64",
    "first_token_ns": "Int64",
    "end_ns": "Int64",
    "output_tokens": "Int64",
    "reported_output_tokens": "Int64",
    "attempt": "Int64",
    "warmup": "Boolean",
    "unread_bytes": "Int64",
}
_CLIENT_COLUMNS = ("at_ns", "span_ns", "worker", "active_turns", "loop_lag_ns", "cpu_ns")

_INTERVAL_NS = 100_000_000


class Measured(NamedTuple):
    """A run as its verdict needs it; nothing of the warm-up is in it.

    turns: a row a turn that was sent: late_ns (null for one that was sent again, for it had to wait),
    unread_bytes. intervals: a row an interval of a process with turns under way: lag_ns, cpu_share. Both have
    `bucket`: how many turns were under way, rounded down to a power of two.
    ttft_ns: the median TTFT of answers, from when turns were sent. gap_ns: the median over answers of
    (end - first token) / (output tokens - 1), which is TPOT if the first token came alone. Both are `None`
    if no answer tells them.
    counted_tokens, reported_tokens: of the answers of which both are known.
    """

    turns: pl.DataFrame
    intervals: pl.DataFrame
    answered: int
    most_active: int
    ttft_ns: float | None
    gap_ns: float | None
    counted_tokens: int
    reported_tokens: int


def read_turns(path: Path) -> pl.DataFrame:
    """The columns of a run's requests that are looked at; arrivals of tokens are never in memory.

    Raises `RunDirectoryError` for a run that cannot be read.
    """
    reader = RunReader(path)
    journal = path / "requests.jsonl"
    # There while the run goes on. `RunReader` would decode all of each row, timelines too.
    if not journal.is_file():
        return reader.requests().select(*_TURN_COLUMNS).collect()
    with journal.open("rb") as lines:
        return _turn_frame(_whole_lines(lines))


def _whole_lines(lines: Iterable[bytes]) -> Iterator[_JournalTurn]:
    decode = msgspec.json.Decoder(_JournalTurn).decode
    for line in lines:
        try:
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # the last line is being written


class _JournalTurn(msgspec.Struct, gc=False):
    """`_TURN_COLUMNS` of a line of the journal of requests; the rest of the line is passed over."""

    status: str = "ok"
    scheduled_ns: int | None = None
    sent_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    output_tokens: int | None = None
    reported_output_tokens: int | None = None
    attempt: int = 0
    warmup: bool = False
    unread_bytes: int | None = None


def measured(
    client: pl.DataFrame | Iterable[ClientRow], requests: pl.DataFrame | Iterable[RequestRow]
) -> Measured:
    """Put rows, or frames with their columns, into the tables of the rules."""
    import polars as pl

    sent = (
        _turn_frame(requests)
        .filter(pl.col("sent_ns").is_not_null() & pl.col("scheduled_ns").is_not_null())
        .with_columns(pl.col("warmup").fill_null(False), pl.col("attempt").fill_null(0))
        .with_columns(over_ns=pl.max_horizontal("end_ns", "scheduled_ns"))
        .sort("scheduled_ns", maintain_order=True)
    )
    active = _active(sent)
    sent = sent.join_asof(active, left_on="scheduled_ns", right_on="at_ns").with_columns(
        bucket=_bucket(pl.col("active"))
    )
    steady = sent.filter(~pl.col("warmup"))
    turns = steady.filter(pl.col("status") != "retried").select(
        "bucket",
        "unread_bytes",
        late_ns=pl.when(pl.col("attempt") == 0).then(pl.col("sent_ns") - pl.col("scheduled_ns")),
    )
    answered = steady.filter(pl.col("status") == "ok")
    later_tokens = pl.col("output_tokens") - 1
    gap_ns = (pl.col("end_ns") - pl.col("first_token_ns")) / later_tokens
    both = answered.filter(
        pl.col("output_tokens").is_not_null() & pl.col("reported_output_tokens").is_not_null()
    )
    return Measured(
        turns=turns,
        intervals=_intervals(_client_frame(client), _first_ns(steady)),
        answered=answered.height,
        most_active=_int(steady["active"].max()),
        ttft_ns=_float(answered.select((pl.col("first_token_ns") - pl.col("sent_ns")).median()).item()),
        gap_ns=_float(answered.filter(later_tokens > 0).select(gap_ns.median()).item()),
        counted_tokens=_int(both["output_tokens"].sum()),
        reported_tokens=_int(both["reported_output_tokens"].sum()),
    )


def _turn_frame(requests: pl.DataFrame | Iterable[RequestRow | _JournalTurn]) -> pl.DataFrame:
    import polars as pl

    if isinstance(requests, pl.DataFrame):
        return requests.select(*_TURN_COLUMNS)
    values = attrgetter(*_TURN_COLUMNS)
    schema = {name: getattr(pl, kind) for name, kind in _TURN_COLUMNS.items()}
    return pl.DataFrame([values(row) for row in requests], schema=schema, orient="row")


def _client_frame(client: pl.DataFrame | Iterable[ClientRow]) -> pl.DataFrame:
    import polars as pl

    if isinstance(client, pl.DataFrame):
        return client.select(*_CLIENT_COLUMNS)
    values = attrgetter(*_CLIENT_COLUMNS)
    schema = dict.fromkeys(_CLIENT_COLUMNS, pl.Int64)
    return pl.DataFrame([values(row) for row in client], schema=schema, orient="row")


def _active(sent: pl.DataFrame) -> pl.DataFrame:
    """How many turns were due and not over, at each time at which one fell due.

    By when they were due, not by when they were sent: lateness must not make the load look smaller.
    """
    import polars as pl

    starts = sent.select(at_ns="scheduled_ns", change=pl.lit(1, dtype=pl.Int64))
    ends = sent.select(at_ns="over_ns", change=pl.lit(-1, dtype=pl.Int64))
    return (
        pl.concat([starts, ends])
        .sort("at_ns", "change")
        .select("at_ns", active=pl.col("change").cum_sum())
        .group_by("at_ns", maintain_order=True)
        .last()
        .sort("at_ns")
    )


def _intervals(client: pl.DataFrame, from_ns: int) -> pl.DataFrame:
    """The client's intervals from a time on, each with the turns that all processes had under way then."""
    import polars as pl

    rows = client.filter((pl.col("at_ns") >= from_ns) & (pl.col("span_ns") > 0)).with_columns(
        slot=pl.col("at_ns") // _INTERVAL_NS
    )
    together = (
        rows.group_by("slot", "worker")
        .agg(pl.col("active_turns").max())
        .group_by("slot")
        .agg(pl.col("active_turns").sum().alias("active"))
    )
    # A last row of a few milliseconds says nothing of a share of CPU.
    whole = pl.col("span_ns") >= _INTERVAL_NS // 2
    return rows.join(together.filter(pl.col("active") > 0), on="slot").select(
        bucket=_bucket(pl.col("active")),
        lag_ns="loop_lag_ns",
        cpu_share=pl.when(whole).then(pl.col("cpu_ns") / pl.col("span_ns")),
    )


def _first_ns(steady: pl.DataFrame) -> int:
    """When the first turn fell due that counts; what was before is warm-up."""
    return _int(steady["scheduled_ns"].min())


def _bucket(active: pl.Expr) -> pl.Expr:
    """A number of turns, rounded down to a power of two; 0 is 0."""
    import polars as pl

    bucket = pl.lit(0, dtype=pl.Int64)
    for power in range(20):
        bucket = pl.when(active >= 1 << power).then(1 << power).otherwise(bucket)
    return bucket


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
