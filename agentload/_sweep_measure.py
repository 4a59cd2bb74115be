"""Runs one point of a sweep in virtual time and works out its row; a pure function of the point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import fsum
from statistics import stdev
from typing import TYPE_CHECKING, Any

from agentload._context_limit import Overflow, context_limit
from agentload._player import Pace
from agentload._sweep_gaps import Gaps
from agentload._sweep_points import SweepPoint
from agentload._sweep_results import SCATTERED, Row, point_row
from agentload._sweep_workload import feed_of, kinds_of_session, sessions_of
from agentload._tool_pool import ToolPool
from agentload._virtual import VirtualRun
from agentload_simbackend import Deployment, build_engine, load_deployment
from agentload_traces import AgentloadError, RequestRow, Session, ToolCallRow

if TYPE_CHECKING:
    import polars as pl

_GROUPS = 10
"""Groups of sessions whose scatter gives the standard errors: one after the other, for what runs together
shares its load and scatters together."""

_TEXTS = ("session_id", "turn_id", "agent_id", "gate_turn_id", "status")
_COUNTS = (
    *("turn_index", "session_turns", "input_tokens", "output_tokens", "steps"),
    *("scheduled_ns", "first_token_ns", "end_ns", "tool_ns", "think_ns"),
    *("queue_ns", "prefill_ns", "handoff_ns", "first_token_wait_ns", "decode_ns"),
)
"""What the analysis needs to know of a turn."""


class _AllHere(Exception):
    """All that counts was played; the rest need not be played to its end."""


class _PointRows:
    """The rows of the sessions that count; raises `_AllHere` with the last of them.

    Of a token timeline it keeps the first arrival, and how often each gap was there.
    """

    def __init__(self, sessions: Iterable[Session], max_turns: int | None) -> None:
        turns = {session.session_id: len(session.turns[:max_turns]) for session in sessions}
        self.group_of = {name: number * _GROUPS // len(turns) for number, name in enumerate(turns)}
        self._turns = sum(turns.values())
        self.requests: list[RequestRow] = []
        self.gaps = Gaps()

    def add_request(self, row: RequestRow) -> None:
        group = self.group_of.get(row.session_id)
        if group is None:
            return
        gaps, tokens = row.arrival_dt_us, row.arrival_tokens
        if gaps and tokens:
            if row.status == "ok":
                self.gaps.add(group, gaps, tokens)
            row.arrival_dt_us, row.arrival_tokens = gaps[:1], tokens[:1]
        self.requests.append(row)
        if len(self.requests) == self._turns:
            raise _AllHere

    def add_tool_call(self, row: ToolCallRow) -> None:
        pass

    def tick(self, now_ns: int) -> None:
        pass

    def table(self) -> pl.LazyFrame:
        """The rows, with the group of their session."""
        import polars as pl

        columns: dict[str, list[Any]] = {
            name: [getattr(row, name) for row in self.requests]
            for name in (*_TEXTS, *_COUNTS, "arrival_tokens")
        }
        schema: dict[str, pl.DataType] = {
            **{name: pl.String() for name in _TEXTS},
            **{name: pl.Int64() for name in _COUNTS},
            "arrival_tokens": pl.List(pl.Int64()),
        }
        columns["group"] = [self.group_of[row.session_id] for row in self.requests]
        return pl.DataFrame(columns, schema=schema | {"group": pl.Int64()}).lazy()


def measure(point: SweepPoint) -> Row:
    """Run `point` and return its row; one that cannot be run has the reason in `error`."""
    deployment: Deployment | None = None
    try:
        deployment = load_deployment(point.target)
        _check_context(point, deployment)
        engine = build_engine(deployment, point.seed)
        sink = _PointRows(sessions_of(point), point.workload.turns)
        tools = ToolPool(deployment.tool_slots)
        pace = Pace(tool_speed=point.workload.speed, think_speed=point.workload.speed)
        run = VirtualRun(engine, feed_of(point), sink, pace=pace, max_turns=point.workload.turns, tools=tools)
        with suppress(_AllHere):
            run.run()
    except AgentloadError as error:
        mode = deployment.mode if deployment is not None else None
        return point_row(point, mode, str(error))
    racks = sum(count for _, count in deployment.racks)
    row = point_row(point, deployment.mode)
    row.update(racks=racks, **_numbers(sink, racks, point.concurrency))
    return row


def why_not(point: SweepPoint) -> str | None:
    """Why `point` cannot be run, as far as that is known before it runs."""
    try:
        _check_context(point, load_deployment(point.target))
    except AgentloadError as error:
        return str(error)
    return None


def _check_context(point: SweepPoint, deployment: Deployment) -> None:
    """Raise `AgentloadError` with the arithmetic if a turn outgrows what the deployment can serve."""
    overflow, first_fits = Overflow(context_limit(deployment)), True
    for session in kinds_of_session(point):
        for index, turn in enumerate(session.turns[: point.workload.turns]):
            if overflow.limit.excess(turn) is not None:
                overflow.add(turn, None)
                first_fits &= index > 0
    if not overflow:
        return
    remedy = ". --turns plays fewer turns" if first_fits else ""
    if not first_fits and point.workload.trace is None:
        remedy = "; give a shorter --context"
    raise AgentloadError(f"{overflow.sentence()}{remedy}")


def _numbers(sink: _PointRows, racks: int, concurrency: int) -> Row:
    from agentload_analysis import latency_table, overall, sessions

    requests, gaps = sink.table(), sink.gaps.pooled()
    latencies = overall(requests, gaps).collect().to_dicts()[0]
    session_rows = sessions(requests).collect()
    by_group = latency_table(requests, ["group"], gaps).collect()
    turn_p99_ms = sink.gaps.turn_p99_ms()
    whole = _of_the_whole(session_rows, requests, concurrency)
    per_s = whole["output_tokens_per_s"]
    errors = [row.error for row in sink.requests if row.status == "failed"]
    names = ["turns", "answered", "failed", "skipped", "output_tokens", "speed_count"]
    names += (f"speed_{name}_tokens_per_s" for name in ("p50", "p10", "p1", "min"))
    for metric in ("ttft", "tpot", "itl"):
        names += (f"{metric}_count", *(f"{metric}_{name}_ms" for name in ("p50", "p90", "p99", "max")))
    return {
        **{name: latencies[name] for name in names},
        **{
            f"{name}_se": _standard_error(by_group[name].to_list())
            for name in SCATTERED
            if name in by_group.columns
        },
        "first_error": errors[0] if errors else None,
        "turn_itl_p99_count": turn_p99_ms.len(),
        "turn_itl_p99_p50_ms": turn_p99_ms.median(),
        "turn_itl_p99_max_ms": turn_p99_ms.max(),
        **_session_times(session_rows, sink),
        **whole,
        "output_tokens_per_s_per_rack": None if per_s is None else per_s / racks,
    }


def _standard_error(values: Sequence[float | None]) -> float | None:
    """Of a number of which each group of sessions has given a value of its own."""
    known = [value for value in values if value is not None]
    return stdev(known) / len(known) ** 0.5 if len(known) > 1 else None


def _session_times(session_rows: pl.DataFrame, sink: _PointRows) -> Row:
    import polars as pl

    whole = session_rows.filter("answered_whole")
    times_s = whole.select(
        pl.col("session_id").replace_strict(sink.group_of, return_dtype=pl.Int64()).alias("group"),
        s=pl.col("session_ns") / 1e9,
    )
    row: Row = {"session_count": whole.height, "session_max_s": times_s["s"].max()}
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        quantile = pl.col("s").quantile(q, interpolation="linear")
        row[f"session_{name}_s"] = times_s.select(quantile).item()
        row[f"session_{name}_s_se"] = _standard_error(times_s.group_by("group").agg(quantile)["s"].to_list())
    return row


def _of_the_whole(session_rows: pl.DataFrame, requests: pl.LazyFrame, concurrency: int) -> Row:
    """What is counted against the time of the whole run, which starts at 0, or of its full part."""
    import polars as pl

    whole = session_rows.filter("answered_whole")
    whole_ns = int(whole["session_ns"].sum())
    times = session_rows.drop_nulls("session_ns").select(
        "start_ns", end_ns=pl.col("start_ns") + pl.col("session_ns")
    )
    starts_ns, ends_ns = times["start_ns"].sort().to_list(), times["end_ns"].sort().to_list()
    end_ns = ends_ns[-1] if ends_ns else None
    return {
        "sessions": session_rows.height,
        "run_s": end_ns / 1e9 if end_ns else None,
        "output_tokens_per_s": _tokens_per_s(requests, *_full_ns(starts_ns, ends_ns, concurrency)),
        "queue_share": int(whole["queue_ns"].sum()) / whole_ns if whole_ns else None,
    }


def _full_ns(starts_ns: list[int], ends_ns: list[int], concurrency: int) -> tuple[int, int]:
    """From when to when sessions that count take all places: until the first of the others starts."""
    count = len(ends_ns)
    places = min(concurrency, count)
    if not places:
        return 0, 0
    from_ns, until_ns = starts_ns[places - 1], ends_ns[count - places]
    return (from_ns, until_ns) if from_ns < until_ns else (0, ends_ns[-1])


def _tokens_per_s(requests: pl.LazyFrame, from_ns: int, until_ns: int) -> float | None:
    """Output tokens that answered turns got within a time; between first and last they come evenly."""
    import polars as pl

    if from_ns >= until_ns:
        return None
    first_ns, end_ns, tokens = pl.col("first_token_ns"), pl.col("end_ns"), pl.col("output_tokens")
    within_ns = pl.min_horizontal(end_ns, until_ns) - pl.max_horizontal(first_ns, from_ns)
    share = (
        pl.when(end_ns > first_ns)
        .then(within_ns.clip(0) / (end_ns - first_ns))
        .otherwise(((from_ns < end_ns) & (end_ns <= until_ns)).cast(pl.Float64))
    )
    answered = requests.filter((pl.col("status") == "ok") & first_ns.is_not_null())
    shares = answered.select(tokens=share * tokens).collect()["tokens"].to_list()
    return fsum(shares) / ((until_ns - from_ns) / 1e9)
