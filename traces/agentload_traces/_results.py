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

RequestStatus = Literal["ok", "failed", "skipped", "retried"]
"""ok: answered whole. failed: sent, but not answered whole. skipped: not sent, for an earlier one failed, or
for it or an earlier one does not fit the model's context. retried: an attempt that failed and was followed by
another; the turn's own row is the one of its last attempt, so each turn has one row of another status."""

ErrorKind = Literal[
    "connect",
    "tls",
    "connect_timeout",
    "first_token_timeout",
    "stall_timeout",
    "total_timeout",
    "reset",
    "cut_off",
    "rate_limited",
    "unavailable",
    "refused",
    "not_a_stream",
    "bad_stream",
    "error_event",
    "empty",
    "interrupted",
    "internal",
]
"""What kind of failure a turn met.

connect: no connection (refused, unreachable, unknown host). tls: its encryption failed. *_timeout: a limit
was reached before the connection was open, before the first token, between two reads, or in all.
reset: the connection was closed or reset before an answer began. cut_off: the answer ended before its end.
rate_limited: HTTP 429. unavailable: HTTP 5xx. refused: any other status but 200. not_a_stream: an answer of
another kind than was asked for. bad_stream: events or framing that cannot be read. error_event: the endpoint
told of an error within its answer. empty: an answer without tokens. interrupted: the run was stopped while
the turn was on its way. internal: a defect of the replayer.
"""

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
    attempt: 0 for the first time that a turn is sent. Each attempt is a row, see `RequestStatus`; those but
        the last have no arrivals.
    error_kind: of a row that is "failed" or "retried". finish_reason: as the endpoint gave it.
    warmup: due in the run's warm-up; left out of latencies and speeds.
    url_index: which of the run's URLs it was sent to. worker: the worker process that sent it.
    dns_ns, connect_ns, tls_ns: how long opening a connection took, in parts; `None` on a reused one.
    send_ns: from the open connection until the operating system had taken the whole request.
    first_byte_ns: when the first byte of the answer came, on the run's clock.
    unread_bytes: the most that lay unread in the socket when a read of this answer began.
    reasoning_tokens, cache_written_tokens: the endpoint's own counts.
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
    attempt: Int64 = 0
    error_kind: ErrorKind | None = None
    finish_reason: str | None = None
    warmup: bool = False
    url_index: Int64 | None = None
    worker: Int64 | None = None
    dns_ns: Int64 | None = None
    connect_ns: Int64 | None = None
    tls_ns: Int64 | None = None
    send_ns: Int64 | None = None
    first_byte_ns: Int64 | None = None
    unread_bytes: Int64 | None = None
    reasoning_tokens: Int64 | None = None
    cache_written_tokens: Int64 | None = None


class ToolCallRow(msgspec.Struct, kw_only=True):
    """One tool call of a run, on the run's clock.

    queue_ns: from when it could have run, the end of its turn, to `start_ns`: the wait for a slot. Of a tool
        that was really executed, from when its turn's answer had been read.
    error: why a tool that was really executed failed, in one line.
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
    error: str | None = None


class ClientRow(msgspec.Struct, kw_only=True):
    """What the replayer saw of itself in one interval of a wall-clock run (a row about every 100 ms).

    at_ns: the end of the interval, on the run's clock. worker: the worker process, 0 if there is one.
    active_turns: the most turns that were on their way at a time in the interval.
    loop_lag_ns: the most by which the event loop ran a timer late.
    send_late_ns: the most by which a turn was sent after it was due; `None` if none was sent.
    unread_bytes: the most that lay unread in a socket when a read began; `None` if nothing was read.
    cpu_ns: CPU time of the process in the interval, all threads. span_ns: length of the interval.
    rss_bytes: resident memory of the process at `at_ns`.
    """

    at_ns: Int64
    span_ns: Int64
    worker: Int64 = 0
    active_turns: Int64 = 0
    loop_lag_ns: Int64 = 0
    send_late_ns: Int64 | None = None
    unread_bytes: Int64 | None = None
    cpu_ns: Int64 = 0
    rss_bytes: Int64 | None = None


def too_large_field(row: RequestRow | ToolCallRow | ClientRow) -> str | None:
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
    row_type: type[RequestRow | ToolCallRow | ClientRow],
) -> tuple[tuple[str, ...], tuple[str, ...], Callable[[Any], tuple[int | None, ...]]]:
    """The fields that hold an integer, those that hold a list of them, and what reads the first kind."""
    hints: dict[str, Any] = get_type_hints(row_type, include_extras=True)
    single = tuple(field for field, hint in hints.items() if Int64 in (hint, *get_args(hint)))
    lists = tuple(field for field, hint in hints.items() if list[Int64] in (hint, *get_args(hint)))
    return single, lists, attrgetter(*single)


class ErrorFigures(msgspec.Struct, kw_only=True):
    """A distribution of errors, client minus truth, in nanoseconds (of gaps, its size). count: samples."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class Baseline(msgspec.Struct, kw_only=True):
    """This machine's own error: a short replay of the run's shape against a server that knows the truth.

    step_ns: time between two tokens of a stream there. streams: how many at a time. tokens: of an answer.
    ttft, gap: error of the time to first token, counted from when a request was due, and of every gap between
        two tokens.
    send_late: how much later than due requests were sent, which is part of the error of TTFT.
    lost_tokens: sent, but not counted by the client. cpu_us_per_token: of the client process.
    trusted_streams: up to how many streams at a time the machine kept its errors small; `None` if not even
        one.
    """

    step_ns: int
    streams: int
    tokens: int
    ttft: ErrorFigures
    gap: ErrorFigures
    send_late: ErrorFigures
    lost_tokens: int
    cpu_us_per_token: float
    trusted_streams: int | None = None


OptionValue = str | int | float | bool | tuple[str, ...] | None
"""What an option of a run is recorded as."""


class Manifest(msgspec.Struct, kw_only=True, omit_defaults=False):
    """`manifest.json` of a run directory.

    target: deployment name or URL. mode: co-execution mode, or "endpoint" for a URL.
    conditions: what any headline number of this run holds for, one sentence each; the first says what kind
        of numbers it rests on.
    options: the run's options that change its result (speed, concurrency, max_turns, ...).
    faults_sha256: of the file of faults that the options name.
    sessions_planned / turns_planned: what the run was to do, known when the trace is read; `None` before.
    trace_lines_read / trace_lines_skipped: of the trace's lines, those read and those that were unusable.
    baseline: the machine's own error, if it was measured before the run.
    valid: whether the client kept up, so that the figures are the endpoint's; `None` is not judged (virtual
        time, a run that was cut short or too small). invalid_reasons: in words, which figures are not to be
        trusted, and from how many turns at a time on, or why it is not judged.
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
    options: dict[str, OptionValue] = {}
    versions: dict[str, str] = {}
    host: dict[str, str | int] = {}
    started_at: str | None = None
    ended_at: str | None = None
    sessions_planned: int | None = None
    turns_planned: int | None = None
    trace_lines_read: int | None = None
    trace_lines_skipped: int | None = None
    baseline: Baseline | None = None
    valid: bool | None = None
    invalid_reasons: tuple[str, ...] = ()
