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

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

RequestStatus = Literal["ok", "failed", "skipped"]
"""ok: answered whole. failed: sent, but not answered whole. skipped: not sent, for an earlier one failed, or
for it or an earlier one does not fit the model's context."""

Clock = Literal["virtual", "wall"]
RunStatus = Literal["running", "complete", "interrupted"]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What an integer column of a table can hold; checked when a row is read or recorded, not when it is made."""


class RequestRow(msgspec.Struct, kw_only=True):
    """One turn of a run. `None` is unknown or does not apply.

    turn_index: 0-based position of the turn among those of its agent in its session.
    session_turns: how many turns the run was to play of this session. A session with fewer rows was cut off.
    gate_turn_id: the turn whose end (tool calls included) released this one last; `None` if none did.
    scheduled_ns: when the turn was due. Open-loop and closed-loop latencies count from here.
    input_tokens / output_tokens_asked: what the trace asks for. sent_tokens: what went into the request.
    cached_tokens: prompt tokens that the endpoint read from its prefix cache. output_tokens: received.
    handoff_tokens: prompt tokens whose KV crossed to the decode side: all of them if it was evicted there.
    reported_*: the endpoint's own `usage`.
    arrival_dt_us: gaps between token arrivals in microseconds; the first counts from `scheduled_ns`.
    arrival_tokens: tokens that came with each arrival (same length). Both `None` when not recorded.
    steps: decode steps of the simulator.
    """

    session_id: str
    turn_id: str
    turn_index: Int64
    session_turns: Int64 | None = None
    agent_id: str | None = None
    agent_depth: Int64 = 0
    trigger: str | None = None
    gate_turn_id: str | None = None
    status: RequestStatus = "ok"
    error: str | None = None
    http_status: Int64 | None = None
    scheduled_ns: Int64 | None = None
    sent_ns: Int64 | None = None
    first_token_ns: Int64 | None = None
    end_ns: Int64 | None = None
    tool_ns: Int64 = 0
    think_ns: Int64 = 0
    queue_ns: Int64 | None = None
    prefill_ns: Int64 | None = None
    handoff_ns: Int64 | None = None
    first_token_wait_ns: Int64 | None = None
    decode_ns: Int64 | None = None
    client_ns: Int64 | None = None
    input_tokens: Int64 = 0
    sent_tokens: Int64 | None = None
    cached_tokens: Int64 | None = None
    handoff_tokens: Int64 | None = None
    reported_input_tokens: Int64 | None = None
    output_tokens_asked: Int64 | None = None
    output_tokens: Int64 | None = None
    reported_output_tokens: Int64 | None = None
    steps: Int64 | None = None
    replica: Int64 | None = None
    arrival_dt_us: list[Int64] | None = None
    arrival_tokens: list[Int64] | None = None


class ToolCallRow(msgspec.Struct, kw_only=True):
    """One tool call of a run, on the run's clock.

    queue_ns: from when it could have run, the end of its turn, to `start_ns`: the wait for a slot.
    """

    session_id: str
    turn_id: str
    call_index: Int64
    name: str | None = None
    agent_id: str | None = None
    queue_ns: Int64 = 0
    start_ns: Int64
    end_ns: Int64
    result_tokens: Int64 | None = None


def too_large_field(row: RequestRow | ToolCallRow) -> str | None:
    """Return the first field of a row that holds an integer beyond `Int64`, or `None`."""
    single, lists, values_of = _integer_fields(type(row))
    least, most = _LEAST, _MOST
    values = values_of(row)
    for value in values:
        if value is not None and not least <= value <= most:
            return single[values.index(value)]
    for field in lists:
        held = getattr(row, field)
        if held and not (min(held) >= least and max(held) <= most):
            return field
    return None


_LEAST, _MOST = -(2**63), 2**63 - 1


@cache
def _integer_fields(
    row_type: type[RequestRow | ToolCallRow],
) -> tuple[tuple[str, ...], tuple[str, ...], Callable[[Any], tuple[int | None, ...]]]:
    """The fields that hold an integer, those that hold a list of them, and what reads the first kind."""
    hints: dict[str, Any] = get_type_hints(row_type, include_extras=True)
    single = tuple(field for field, hint in hints.items() if Int64 in (hint, *get_args(hint)))
    lists = tuple(field for field, hint in hints.items() if list[Int64] in (hint, *get_args(hint)))
    return single, lists, attrgetter(*single)


class Manifest(msgspec.Struct, kw_only=True, omit_defaults=False):
    """`manifest.json` of a run directory.

    target: deployment name or URL. mode: co-execution mode, or "endpoint" for a URL.
    conditions: what any headline number of this run holds for, one sentence each; the first says what kind
        of numbers it rests on.
    options: the run's options that change its result (speed, concurrency, max_turns, ...).
    faults_sha256: of the file of faults that the options name.
    sessions_planned / turns_planned: what the run was to do, known when the trace is read; `None` before.
    trace_lines_read / trace_lines_skipped: of the trace's lines, those read and those that were unusable.
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
    faults_sha256: str | None = None
    conditions: tuple[str, ...] = ()
    options: dict[str, str | int | float | bool | None] = {}
    versions: dict[str, str] = {}
    host: dict[str, str | int] = {}
    started_at: str | None = None
    ended_at: str | None = None
    sessions_planned: int | None = None
    turns_planned: int | None = None
    trace_lines_read: int | None = None
    trace_lines_skipped: int | None = None
