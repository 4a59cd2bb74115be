"""The sessions of a sweep's point, and when they start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import msgspec.structs

from agentload._feed import ClosedLoop
from agentload._sweep_points import (
    GENERATED_SPREAD_S,
    NEW_TOKENS,
    TRACE_SPREAD_S,
    TURNS,
    TURNS_OF_A_PLACE,
    SweepPoint,
    Workload,
)
from agentload_traces import AgentloadError, Session, ToolCall, Turn, open_trace

_NS_PER_S = 1_000_000_000


class StaggeredLoop(ClosedLoop):
    """A closed loop whose first `concurrency` sessions start evenly over `spread_ns`, not all at once."""

    def __init__(self, sessions: Iterable[Session], concurrency: int, spread_ns: int) -> None:
        super().__init__(sessions, concurrency)
        self._places = concurrency
        self._spread_ns = spread_ns
        self._taken = 0

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """See `SessionFeed`."""
        start_ns = super().next_start_ns(active, now_ns)
        if start_ns is None or self._taken >= self._places:
            return start_ns
        return max(start_ns, self._taken * self._spread_ns // self._places)

    def take(self) -> Session:
        """See `SessionFeed`."""
        self._taken += 1
        return super().take()


def feed_of(point: SweepPoint) -> StaggeredLoop:
    """The sessions of a point, and when they start."""
    trace = point.workload.trace
    if trace is None:
        return StaggeredLoop(generated(point), point.concurrency, round(GENERATED_SPREAD_S * _NS_PER_S))
    sessions = copies(trace_sessions(trace, point.workload.trace_format), point.concurrency)
    spread_s = TRACE_SPREAD_S / point.workload.speed
    return StaggeredLoop(sessions, point.concurrency, round(spread_s * _NS_PER_S))


def kinds_of_session(point: SweepPoint) -> Iterable[Session]:
    """The sessions of a point without those that differ in their names alone."""
    trace = point.workload.trace
    if trace is None:
        return [next(generated(point))]
    return trace_sessions(trace, point.workload.trace_format)


def generated(point: SweepPoint) -> Iterator[Session]:
    """Sessions with a context that grows only by its turns; equally many for each place of the loop."""
    assert point.context_tokens is not None
    turns = point.workload.turns or TURNS
    rounds = -(-TURNS_OF_A_PLACE // turns)
    for number in range(point.concurrency * rounds):
        session_id = f"session-{number:04d}"
        yield Session(
            session_id,
            tuple(_turn(session_id, index, point.context_tokens, point.workload) for index in range(turns)),
        )


def _turn(session_id: str, index: int, context_tokens: int, workload: Workload) -> Turn:
    return Turn(
        session_id=session_id,
        turn_id=f"turn-{index:04d}",
        wait_for=(f"turn-{index - 1:04d}",) if index else (),
        input_tokens=context_tokens + index * (NEW_TOKENS + workload.output_tokens),
        new_input_tokens=NEW_TOKENS if index else context_tokens,
        output_tokens=workload.output_tokens,
        trigger="tool" if index else "user",
        tool_calls=(ToolCall(name="tool", duration_ms=workload.tool_s * 1e3),),
    )


@lru_cache(maxsize=2)
def trace_sessions(path: Path, trace_format: str | None) -> tuple[Session, ...]:
    """All sessions of a trace; held for the points to come.

    Raises `AgentloadError` if there is none.
    """
    reader = open_trace(path, format=trace_format)
    sessions = tuple(reader.sessions())
    if not sessions:
        problems = reader.report.problems
        raise AgentloadError(str(problems[0]) if problems else f"{path}: no turn in it")
    return sessions


def copies(sessions: tuple[Session, ...], least: int) -> Iterator[Session]:
    """All sessions, again and again in whole copies until there are at least `least`.

    Copy k of a session is the same whatever `least` is. Copies have ids of their own, and share no blocks.
    """
    for number in range(-(-least // len(sessions))):
        # Ids that stand for text within the whole trace must be others in each copy, and equal within it.
        mask = int.from_bytes(blake2b(b"copy %d" % number, digest_size=8).digest(), "big")
        for session in sessions:
            yield _copy(session, f"{session.session_id}#{number}", mask)


def _copy(session: Session, session_id: str, mask: int) -> Session:
    turns = []
    for turn in session.turns:
        blocks = turn.blocks
        if blocks is not None and blocks.scope == "trace":
            blocks = msgspec.structs.replace(blocks, ids=tuple(block ^ mask for block in blocks.ids))
        turns.append(msgspec.structs.replace(turn, session_id=session_id, blocks=blocks))
    return Session(session_id, tuple(turns))
