"""Rows of made-up runs that obey the timing rules of `agentload_traces._results`, for the analysis tests."""

from __future__ import annotations

import random
from pathlib import Path

from agentload_traces import Manifest, RequestRow, RunWriter, ToolCallRow

MS = 1_000_000


def a_manifest(**changes: object) -> Manifest:
    fields: dict[str, object] = {
        "status": "running",
        "clock": "virtual",
        "seed": 7,
        "target": "gemma4-31b/pd",
        "mode": "pd",
        "trace": "made-up.jsonl",
        "conditions": ("The hand-off link is an estimate.",),
        "options": {"concurrency": 2, "speed": 1.0, "max_turns": None},
    }
    return Manifest(**{**fields, **changes})  # type: ignore[arg-type]


def turn_row(
    session_id: str,
    turn_id: str,
    index: int,
    gate: RequestRow | None,
    *,
    origin_ns: int = 0,
    tool_ns: int = 0,
    think_ns: int = 0,
    phases_ns: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0),
    told: bool = True,
    **fields: object,
) -> RequestRow:
    """An answered turn that obeys the rules; `phases_ns` are queue, prefill, hand-off, decode, client."""
    start_ns = origin_ns if gate is None or gate.end_ns is None else gate.end_ns
    scheduled_ns = start_ns + tool_ns + think_ns
    queue, prefill, handoff, decode, client = phases_ns
    first_token_ns = scheduled_ns + queue + prefill + handoff
    values: dict[str, object] = {
        "session_id": session_id,
        "turn_id": turn_id,
        "turn_index": index,
        "gate_turn_id": gate.turn_id if gate else None,
        "scheduled_ns": scheduled_ns,
        "sent_ns": scheduled_ns,
        "first_token_ns": first_token_ns,
        "end_ns": first_token_ns + decode + client,
        "tool_ns": tool_ns,
        "think_ns": think_ns,
        "queue_ns": queue if told else None,
        "prefill_ns": prefill if told else None,
        "handoff_ns": handoff if told else None,
        "first_token_wait_ns": None if told else queue + prefill + handoff,
        "decode_ns": decode,
        "client_ns": client,
    }
    return RequestRow(**{**values, **fields})  # type: ignore[arg-type]


def failed_row(session_id: str, turn_id: str, index: int, gate: RequestRow | None, error: str) -> RequestRow:
    row = turn_row(session_id, turn_id, index, gate, phases_ns=(0, 0, 0, 0, 999_999 * MS))
    row.status, row.error, row.http_status = "failed", error, 500
    row.first_token_ns = row.queue_ns = row.prefill_ns = row.handoff_ns = row.decode_ns = None
    return row


def skipped_row(session_id: str, turn_id: str, index: int) -> RequestRow:
    return RequestRow(session_id=session_id, turn_id=turn_id, turn_index=index, status="skipped")


def agent_session(session: int, turns: int, *, arrivals: bool = False, told: bool = True) -> list[RequestRow]:
    """A session whose context grows from 6K by 500 tokens a turn, with tools of 0.2 to 4 s."""
    draw = random.Random(session)
    rows: list[RequestRow] = []
    context = 6_000 + 100 * session
    gate: RequestRow | None = None
    for index in range(turns):
        steps = draw.randrange(20, 160)
        step_us = 800 + context // 1_000
        prefill = 10 * MS + (context if index == 0 else 500) * 20_000 // 1_000 * 1_000
        row = turn_row(
            f"session-{session}",
            f"t{index}",
            index,
            gate,
            origin_ns=session * 50 * MS,
            tool_ns=draw.randrange(200, 4_000) * MS if index else 0,
            think_ns=draw.randrange(0, 100) * MS,
            phases_ns=(draw.randrange(0, 30) * MS, prefill, 3 * MS, steps * step_us * 1_000, 2 * MS),
            told=told,
            input_tokens=context,
            session_turns=turns,
            output_tokens=3 * steps + 1,
            cached_tokens=context - 500 if index else 0,
            arrival_dt_us=[prefill // 1_000, *[step_us] * steps] if arrivals else None,
            arrival_tokens=[1, *[3] * steps] if arrivals else None,
        )
        rows.append(row)
        gate = row
        context += 500 + draw.randrange(0, 200)
    return rows


def write_run(
    path: Path, rows: list[RequestRow], *, calls: list[ToolCallRow] | None = None, **manifest: object
) -> Path:
    """A complete run of these rows; `status` among the manifest's changes ends it otherwise."""
    status = manifest.pop("status", "complete")
    with RunWriter(path, a_manifest(**manifest)) as writer:
        for row in rows:
            writer.add_request(row)
        for call in calls or []:
            writer.add_tool_call(call)
        if status != "running":
            writer.finish(status)  # type: ignore[arg-type]
    return path
