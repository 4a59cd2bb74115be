"""Session end-to-end time: the critical path of each session, split without remainder.

The path starts at the turn that ends last and goes back over `gate_turn_id`, from each turn to the one
that released it. All arithmetic is on integer nanoseconds, so the parts add up to the session exactly.
"""

from __future__ import annotations

import polars as pl

from agentload_analysis._metrics import ANSWERED, counts, turns_only

SPLIT = ("queue", "prefill", "handoff", "first_token_wait", "decode", "tool", "think", "client")
"""The parts of a session's time; an endpoint that does not tell the first three tells `first_token_wait`."""

SPLIT_NS = tuple(f"{part}_ns" for part in SPLIT)

_TOLD_NS = ("queue_ns", "prefill_ns", "handoff_ns", "first_token_wait_ns", "decode_ns")


def critical_path(requests: pl.LazyFrame) -> pl.LazyFrame:
    """The turns on the critical path of each session, in order of time.

    Columns: session_id, turn_id, turn_index, agent_id, gate_turn_id, path_index (0-based), start_ns (end of
    what released the turn, or the session's start), scheduled_ns, end_ns, and `SPLIT_NS`, which add up to
    end_ns - start_ns. client_ns is what is left of the turn when the phases that the endpoint told are
    taken off: network, client, and the rest of the server. Only answered turns take part.
    """
    turns = _answered_turns(requests)
    path = pl.DataFrame(_walk(turns), schema={"row": pl.Int64, "path_index": pl.Int64})
    on_path = path.join(turns, on="row", how="left", maintain_order="left")
    start_ns = pl.coalesce("gate_end_ns", "session_start_ns")
    origin_ns = pl.col("scheduled_ns") - pl.col("tool_ns") - pl.col("think_ns")
    waited_ns = origin_ns - start_ns
    told_ns = pl.sum_horizontal(_TOLD_NS)
    return (
        on_path.lazy()
        .with_columns(pl.col(_TOLD_NS).fill_null(0))
        .with_columns(
            start_ns=start_ns,
            # A root that is due later than its session's start waits for its recorded time: think time.
            think_ns=pl.col("think_ns") + pl.when(pl.col("gate_row").is_null()).then(waited_ns).otherwise(0),
            client_ns=pl.col("end_ns")
            - pl.col("scheduled_ns")
            - told_ns
            + pl.when(pl.col("gate_row").is_null()).then(0).otherwise(waited_ns),
        )
        .select(
            *("session_id", "turn_id", "turn_index", "agent_id", "gate_turn_id", "path_index"),
            *("start_ns", "scheduled_ns", "end_ns", *SPLIT_NS),
        )
    )


def sessions(requests: pl.LazyFrame) -> pl.LazyFrame:
    """One row a session, in order of first appearance.

    session_id; turns, answered, failed, skipped, subagent_turns; output_tokens (received);
    session_turns (how many the run was to play; null if its rows do not tell), cut_off: it has fewer rows
    than that; start_ns, session_ns (start to the last end of an answered turn; null without one),
    `SPLIT_NS`, which add up to session_ns; path_turns; answered_whole: not cut off, and no turn failed or was
    skipped.
    """
    by_session = turns_only(requests).group_by("session_id", maintain_order=True)
    turns = by_session.agg(*counts(), pl.col("session_turns").max())
    times = (
        critical_path(requests)
        .group_by("session_id")
        .agg(
            pl.col("start_ns").filter(pl.col("path_index") == 0).first(),
            pl.col("end_ns").max().alias("session_ns"),
            pl.col(SPLIT_NS).sum(),
            pl.len().cast(pl.Int64).alias("path_turns"),
        )
    )
    times = times.with_columns(session_ns=pl.col("session_ns") - pl.col("start_ns"))
    cut_off = (pl.col("turns") < pl.col("session_turns")).fill_null(False)
    whole = (pl.col("answered") == pl.col("turns")) & ~pl.col("cut_off") & pl.col("session_ns").is_not_null()
    return (
        turns.join(times, on="session_id", how="left", maintain_order="left")
        .with_columns(cut_off=cut_off)
        .with_columns(answered_whole=whole)
    )


def _answered_turns(requests: pl.LazyFrame) -> pl.DataFrame:
    """Answered turns with `row` (their number), `gate_row`, `gate_end_ns` and `session_start_ns`."""
    turns = (
        requests.filter(ANSWERED & pl.col("scheduled_ns").is_not_null() & pl.col("end_ns").is_not_null())
        .select(
            *("session_id", "turn_id", "turn_index", "agent_id", "gate_turn_id"),
            *("scheduled_ns", "end_ns", "tool_ns", "think_ns", *_TOLD_NS),
        )
        .collect()
        .with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
    )
    gates = turns.unique(["session_id", "turn_id"], keep="last").select(
        "session_id", gate_turn_id="turn_id", gate_row="row", gate_end_ns="end_ns"
    )
    turns = turns.join(gates, on=["session_id", "gate_turn_id"], how="left", maintain_order="left")
    roots = turns.filter(pl.col("gate_row").is_null())
    starts = roots.group_by("session_id").agg(
        (pl.col("scheduled_ns") - pl.col("tool_ns") - pl.col("think_ns")).min().alias("session_start_ns")
    )
    return turns.join(starts, on="session_id", how="left", maintain_order="left")


def _walk(turns: pl.DataFrame) -> dict[str, list[int]]:
    """Row numbers of the turns on the path of each session, roots first, and their place on it."""
    last_rows = (
        turns.group_by("session_id", maintain_order=True)
        .agg(pl.col("row").sort_by("end_ns", "row").last())["row"]
        .to_list()
    )
    gate_rows: list[int | None] = turns["gate_row"].to_list()
    seen = bytearray(len(gate_rows))
    rows: list[int] = []
    indices: list[int] = []
    for last in last_rows:
        path = []
        row: int | None = last
        while row is not None and not seen[row]:
            seen[row] = 1
            path.append(row)
            row = gate_rows[row]
        rows.extend(reversed(path))
        indices.extend(range(len(path)))
    return {"row": rows, "path_index": indices}
