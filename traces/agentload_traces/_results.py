"""The rows of a run directory: what a replay measured.

All times are integer nanoseconds on one clock that starts with the run, so that phases add up exactly.
For a turn, with `gate` the thing it waited for longest (or the start of its session):

    gate end ──tool_ns──▶ ──think_ns──▶ scheduled_ns ──▶ sent_ns ──▶ first_token_ns ──▶ end_ns

    tool_ns + think_ns                                     = scheduled_ns - gate end
    queue + prefill + handoff + decode + client            = end_ns - scheduled_ns     (endpoint tells phases)
    first_token_wait + decode + client                     = end_ns - scheduled_ns     (endpoint tells none)

`client_ns` is the remainder: network, client and server overhead, send lateness included.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RequestStatus = Literal["ok", "failed", "skipped"]
"""ok: answered whole. failed: sent, but not answered whole. skipped: not sent, for an earlier one failed."""

Clock = Literal["virtual", "wall"]
RunStatus = Literal["running", "complete", "interrupted"]


class RequestRow(msgspec.Struct, kw_only=True):
    """One turn of a run. `None` is unknown or does not apply.

    turn_index: 0-based position of the turn among those of its agent in its session.
    session_turns: how many turns the run was to play of this session. A session with fewer rows was cut off.
    gate_turn_id: the turn whose end (tool calls included) released this one last; `None` if none did.
    scheduled_ns: when the turn was due. Open-loop and closed-loop latencies count from here.
    input_tokens / output_tokens_asked: what the trace asks for. sent_tokens: what went into the request.
    cached_tokens: prompt tokens that the endpoint read from its prefix cache. output_tokens: received.
    reported_*: the endpoint's own `usage`.
    arrival_dt_us: gaps between token arrivals in microseconds; the first counts from `scheduled_ns`.
    arrival_tokens: tokens that came with each arrival (same length). Both `None` when not recorded.
    steps: decode steps of the simulator.
    """

    session_id: str
    turn_id: str
    turn_index: int
    session_turns: int | None = None
    agent_id: str | None = None
    agent_depth: int = 0
    trigger: str | None = None
    gate_turn_id: str | None = None
    status: RequestStatus = "ok"
    error: str | None = None
    http_status: int | None = None
    scheduled_ns: int | None = None
    sent_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    tool_ns: int = 0
    think_ns: int = 0
    queue_ns: int | None = None
    prefill_ns: int | None = None
    handoff_ns: int | None = None
    first_token_wait_ns: int | None = None
    decode_ns: int | None = None
    client_ns: int | None = None
    input_tokens: int = 0
    sent_tokens: int | None = None
    cached_tokens: int | None = None
    reported_input_tokens: int | None = None
    output_tokens_asked: int | None = None
    output_tokens: int | None = None
    reported_output_tokens: int | None = None
    steps: int | None = None
    replica: int | None = None
    arrival_dt_us: list[int] | None = None
    arrival_tokens: list[int] | None = None


class ToolCallRow(msgspec.Struct, kw_only=True):
    """One tool call of a run, on the run's clock."""

    session_id: str
    turn_id: str
    call_index: int
    name: str | None = None
    agent_id: str | None = None
    start_ns: int
    end_ns: int
    result_tokens: int | None = None


class Manifest(msgspec.Struct, kw_only=True, omit_defaults=False):
    """`manifest.json` of a run directory.

    target: deployment name or URL. mode: co-execution mode, or "endpoint" for a URL.
    conditions: what any headline number of this run holds for, one sentence each (estimates, fitted numbers).
    options: the run's options that change its result (speed, concurrency, max_turns, ...).
    sessions_planned / turns_planned: what the run was to do, known when the trace is read; `None` before.
    """

    format: int = 1
    status: RunStatus
    clock: Clock
    seed: int
    target: str
    mode: str
    trace: str
    trace_sha256: str | None = None
    spec_sha256: str | None = None
    conditions: tuple[str, ...] = ()
    options: dict[str, str | int | float | bool | None] = {}
    versions: dict[str, str] = {}
    host: dict[str, str | int] = {}
    started_at: str | None = None
    ended_at: str | None = None
    sessions_planned: int | None = None
    turns_planned: int | None = None
