"""Rows and manifests of made-up runs of a few rows, for the tests of run directories."""

from __future__ import annotations

import msgspec
import polars as pl

from agentload_traces import Manifest, RequestRow, ToolCallRow

FINISHED = ["manifest.json", "requests.parquet", "tool_calls.parquet"]
"""Files of a finished run."""


def a_manifest() -> Manifest:
    return Manifest(
        status="running",
        clock="virtual",
        seed=7,
        target="gemma4-31b/pd",
        mode="pd",
        trace="t.jsonl",
        conditions=("concurrency 1", "the link is an estimate"),
        options={"speed": 1.5, "max_turns": None},
    )


def a_row(session: int, turn: int) -> RequestRow:
    return RequestRow(
        session_id=f"s{session}",
        turn_id=f"t{turn}",
        turn_index=turn,
        scheduled_ns=1000 * turn,
        end_ns=1000 * turn + 900,
    )


def a_call(session: int, turn: int) -> ToolCallRow:
    return ToolCallRow(
        session_id=f"s{session}", turn_id=f"t{turn}", call_index=0, start_ns=turn, end_ns=turn + 1
    )


def dicts(frame: pl.LazyFrame) -> list[dict[str, object]]:
    return frame.collect().to_dicts()


def expected(rows: list[RequestRow] | list[ToolCallRow]) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(row) for row in rows]
