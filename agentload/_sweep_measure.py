"""Runs one point of a sweep in virtual time and works out its row; a pure function of the point."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec.structs

from agentload._context_limit import Overflow, context_limit
from agentload._player import Pace
from agentload._sweep_points import SweepPoint
from agentload._sweep_racks import racks_of
from agentload._sweep_results import Row, failed_row
from agentload._sweep_workload import feed_of, kinds_of_session
from agentload._tool_pool import ToolPool
from agentload._virtual import VirtualRun
from agentload_simbackend import Deployment, build_engine, load_deployment
from agentload_traces import AgentloadError, RequestRow, ToolCallRow

if TYPE_CHECKING:
    import polars as pl

_LEAST_GAPS = 100
"""How many gaps of a turn a p99 of its own needs."""


class _PointRows:
    """The rows of a run; keeps of a token timeline only how often each gap was there."""

    def __init__(self) -> None:
        self.requests: list[RequestRow] = []
        self.gaps: list[tuple[int, int, float, int]] = []

    def add_request(self, row: RequestRow) -> None:
        gaps, tokens = row.arrival_dt_us, row.arrival_tokens
        if gaps and tokens and row.status == "ok":
            found = Counter(zip(gaps[1:], tokens[1:], strict=True))
            number = len(self.requests)
            self.gaps += [
                (number, row.turn_index, dt / k / 1e3, times * k) for (dt, k), times in found.items() if k
            ]
        if gaps and tokens:
            row.arrival_dt_us, row.arrival_tokens = gaps[:1], tokens[:1]
        self.requests.append(row)

    def add_tool_call(self, row: ToolCallRow) -> None:
        pass

    def tick(self, now_ns: int) -> None:
        pass


def measure(point: SweepPoint) -> Row:
    """Run `point` and return its row; one that cannot be run has the reason in `error`."""
    deployment: Deployment | None = None
    try:
        deployment = load_deployment(point.target)
        _check_context(point, deployment)
        engine = build_engine(deployment, point.seed)
        sink = _PointRows()
        slots = deployment.spec.tool_slots
        tools = ToolPool(slots.whole if slots is not None else None)
        pace = Pace(tool_speed=point.workload.speed, think_speed=point.workload.speed)
        VirtualRun(engine, feed_of(point), sink, pace=pace, max_turns=point.workload.turns, tools=tools).run()
    except AgentloadError as error:
        mode = deployment.mode if deployment is not None else None
        return failed_row(point.target, mode, point.context_tokens, point.concurrency, str(error))
    racks = sum(racks_of(deployment).values())
    row = failed_row(point.target, deployment.mode, point.context_tokens, point.concurrency, "")
    row.update(error=None, racks=racks, **_numbers(sink.requests, sink.gaps, racks))
    return row


def _check_context(point: SweepPoint, deployment: Deployment) -> None:
    """Raise `AgentloadError` with the arithmetic if a turn outgrows what the deployment can serve."""
    overflow = Overflow(context_limit(deployment))
    for session in kinds_of_session(point):
        for turn in session.turns[: point.workload.turns]:
            if overflow.limit.excess(turn) is not None:
                overflow.add(turn, None)
    if overflow:
        raise AgentloadError(f"{overflow.sentence()}. --turns plays fewer turns")


def _numbers(rows: list[RequestRow], gap_rows: list[tuple[int, int, float, int]], racks: int) -> Row:
    import polars as pl

    from agentload_analysis import itl_table, overall, sessions
    from agentload_traces._polars_schema import schema_of

    requests = pl.DataFrame(
        [msgspec.structs.astuple(row) for row in rows], schema=schema_of(RequestRow), orient="row"
    ).lazy()
    schema = {"row": pl.Int64, "turn_index": pl.Int64, "gap_ms": pl.Float64, "weight": pl.Int64}
    gaps = pl.DataFrame(gap_rows, schema=schema, orient="row").lazy()
    latencies = overall(requests, gaps).collect().to_dicts()[0]
    per_turn = itl_table(gaps, ["row"]).filter(pl.col("itl_count") >= _LEAST_GAPS).collect()["itl_p99_ms"]
    errors = [row.error for row in rows if row.status == "failed"]
    names = ["turns", "answered", "failed", "skipped", "output_tokens", "speed_count"]
    names += (f"speed_{name}_tokens_per_s" for name in ("p50", "p10", "p1", "min"))
    for metric in ("ttft", "tpot", "itl"):
        names += (f"{metric}_count", *(f"{metric}_{name}_ms" for name in ("p50", "p90", "p99", "max")))
    return {
        **{name: latencies[name] for name in names},
        "first_error": errors[0] if errors else None,
        "turn_itl_p99_count": per_turn.len(),
        "turn_itl_p99_p50_ms": per_turn.median(),
        "turn_itl_p99_max_ms": per_turn.max(),
        **_of_sessions(sessions(requests).collect(), latencies["output_tokens"], racks),
    }


def _of_sessions(session_rows: pl.DataFrame, output_tokens: int, racks: int) -> dict[str, Any]:
    """Session times, and what is counted against the time of the whole run (which starts at 0)."""
    import polars as pl

    whole = session_rows.filter("answered_whole")
    times_s = whole["session_ns"] / 1e9
    end_ns = session_rows.select((pl.col("start_ns") + pl.col("session_ns")).max()).item()
    whole_ns = int(whole["session_ns"].sum())
    run_s = end_ns / 1e9 if end_ns else None
    per_s = output_tokens / run_s if run_s else None
    return {
        "sessions": session_rows.height,
        "run_s": run_s,
        "sessions_at_once_mean": int(session_rows["session_ns"].sum()) / end_ns if end_ns else None,
        "output_tokens_per_s": per_s,
        "output_tokens_per_s_per_rack": per_s / racks if per_s is not None else None,
        "session_count": whole.height,
        **{
            f"session_{name}_s": times_s.quantile(q, interpolation="linear")
            for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        },
        "session_max_s": times_s.max(),
        "queue_share": int(whole["queue_ns"].sum()) / whole_ns if whole_ns else None,
    }
