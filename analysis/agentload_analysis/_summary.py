"""A run in one JSON-able dict; its keys are documented in analysis/README.md."""

from __future__ import annotations

from typing import Any

import polars as pl

from agentload_analysis._client_side import client_side
from agentload_analysis._itl import itl_gaps, itl_source
from agentload_analysis._metrics import ANSWERED, FAILED, QUANTILES, SKIPPED, in_warmup, measured
from agentload_analysis._overlap import sessions_at_once
from agentload_analysis._reasons import reasons
from agentload_analysis._sessions import SPLIT, SPLIT_NS, sessions
from agentload_analysis._snapshot import Run, Snapshot, readable_rows, take_snapshot
from agentload_analysis._tables import (
    GAP_KEYS,
    overall,
    per_context,
    per_turn,
    per_turn_range,
    with_context,
)
from agentload_traces import decodable

Summary = dict[str, Any]

_FORMAT = 1


def summarise(run: Run) -> Summary:
    """Analyse a run directory, finished or not, or a snapshot of one.

    Raises `RunDirectoryError` if it is missing, foreign, or has rows that cannot be read.
    """
    snapshot = take_snapshot(run)
    with readable_rows(snapshot.path):
        requests = snapshot.requests
        session_rows = sessions(requests).collect()
        gaps = itl_gaps(with_context(requests), GAP_KEYS).collect(engine="streaming").lazy()
        return {
            **_identity(snapshot),
            **_counts(snapshot, session_rows),
            "session_time_s": _session_time(session_rows),
            **_latencies(requests, gaps),
            "session_split_s": _split(session_rows),
            **client_side(snapshot),
            "per_turn": per_turn(requests, gaps).collect().to_dicts(),
            "per_turn_range": per_turn_range(requests, gaps).collect().to_dicts(),
            "per_context": per_context(requests, gaps).collect().to_dicts(),
            "per_session": _per_session(session_rows),
        }


def _identity(snapshot: Snapshot) -> Summary:
    manifest = snapshot.manifest
    return {
        "format": _FORMAT,
        "run": decodable(snapshot.path),
        "status": manifest.status,
        "incomplete": snapshot.incomplete,
        "torn_lines": snapshot.torn_lines,
        "valid": manifest.valid,
        "invalid_reasons": list(manifest.invalid_reasons),
        "target": manifest.target,
        "mode": manifest.mode,
        "clock": manifest.clock,
        "seed": manifest.seed,
        "trace": manifest.trace,
        "trace_lines_read": manifest.trace_lines_read,
        "trace_lines_skipped": manifest.trace_lines_skipped,
        "options": dict(manifest.options),
        "conditions": list(manifest.conditions),
        "versions": dict(manifest.versions),
    }


def _counts(snapshot: Snapshot, session_rows: pl.DataFrame) -> Summary:
    requests, manifest = snapshot.requests, snapshot.manifest
    tokens = requests.select(
        pl.col("end_ns").max().alias("last_end_ns"),
        pl.col("input_tokens").filter(ANSWERED).sum().alias("input_tokens_total"),
        # A sum of nothing known is unknown, not 0.
        *(
            pl.when((ANSWERED & pl.col(name).is_not_null()).any())
            .then(pl.col(name).filter(ANSWERED).sum())
            .alias(f"{name}_total")
            for name in ("cached_tokens", "handoff_tokens")
        ),
        pl.col("output_tokens").filter(ANSWERED).sum().alias("output_tokens_total"),
        # Comparable with what was received only if it is known of every answer.
        pl.when(ANSWERED.any() & (~ANSWERED | pl.col("output_tokens_asked").is_not_null()).all())
        .then(pl.col("output_tokens_asked").filter(ANSWERED).sum())
        .alias("output_tokens_asked_total"),
        in_warmup(requests).sum().cast(pl.Int64).alias("warmup_turns"),
        (ANSWERED & (pl.col("trigger") == "compaction")).sum().cast(pl.Int64).alias("compactions"),
        pl.col("input_tokens").filter(ANSWERED).min().alias("input_tokens_min"),
        pl.col("input_tokens").filter(ANSWERED).median().alias("input_tokens_p50"),
        pl.col("input_tokens").filter(ANSWERED).max().alias("input_tokens_max"),
    ).collect()
    run_ns = tokens["last_end_ns"].item()
    return {
        "sessions": session_rows.height,
        "sessions_planned": manifest.sessions_planned,
        "sessions_answered_whole": int(session_rows["answered_whole"].sum()),
        "sessions_cut_off": int(session_rows["cut_off"].sum()),
        **sessions_at_once(requests),
        "turns": int(session_rows["turns"].sum()),
        "turns_planned": manifest.turns_planned,
        "answered": int(session_rows["answered"].sum()),
        "failed": int(session_rows["failed"].sum()),
        "skipped": int(session_rows["skipped"].sum()),
        "subagent_turns": int(session_rows["subagent_turns"].sum()),
        "tool_calls": snapshot.tool_calls,
        **snapshot.tool_queue,
        "errors": reasons(requests, FAILED),
        "not_sent": reasons(requests, SKIPPED),
        "run_time_s": None if run_ns is None else run_ns / 1e9,
        **tokens.drop("last_end_ns").to_dicts()[0],
    }


def _session_time(session_rows: pl.DataFrame) -> Summary:
    times = session_rows.filter("answered_whole")["session_ns"] / 1e9
    quantiles = {name: times.quantile(q, interpolation="linear") for name, q in QUANTILES.items()}
    return {"count": times.len(), **quantiles, "max": times.max()}


def _latencies(requests: pl.LazyFrame, gaps: pl.LazyFrame) -> Summary:
    rows = overall(requests, gaps).collect().to_dicts()
    row: Summary = rows[0] if rows else {}
    measured_turns = int(requests.select(measured(requests).sum()).collect().item())

    def distribution(head: str, unit: str, names: tuple[str, ...]) -> Summary:
        values = {name: row.get(f"{head}_{name}_{unit}") for name in names}
        return {"count": row.get(f"{head}_count", 0), **values}

    names = (*QUANTILES, "max")
    return {
        "answered_without_tpot": measured_turns - row.get("tpot_count", 0),
        "output_tokens_per_s_per_user": distribution(
            "speed", "tokens_per_s", ("min", "p1", "p10", "p50", "p90", "p99", "max")
        ),
        "ttft_ms": distribution("ttft", "ms", names),
        "tpot_ms": distribution("tpot", "ms", names),
        "itl_ms": distribution("itl", "ms", names),
        "itl_source": itl_source(requests),
        "queue_ms": distribution("queue", "ms", names),
    }


def _split(session_rows: pl.DataFrame) -> Summary:
    whole = session_rows.filter("answered_whole")
    total_ns = int(whole["session_ns"].sum())
    split: Summary = {}
    for part, column in zip(SPLIT, SPLIT_NS, strict=True):
        part_ns = int(whole[column].sum())
        split[part] = {"sum": part_ns / 1e9, "share": part_ns / total_ns if total_ns else None}
    return split


def _per_session(session_rows: pl.DataFrame) -> list[Summary]:
    seconds = {f"{part}_s": pl.col(column) / 1e9 for part, column in zip(SPLIT, SPLIT_NS, strict=True)}
    return session_rows.select(
        *("session_id", "turns", "session_turns", "answered", "failed", "skipped", "subagent_turns"),
        *("output_tokens", "cut_off"),
        start_s=pl.col("start_ns") / 1e9,
        session_time_s=pl.col("session_ns") / 1e9,
        **seconds,
        path_turns=pl.col("path_turns"),
        answered_whole=pl.col("answered_whole"),
    ).to_dicts()
