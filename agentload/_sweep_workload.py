"""The sessions of a sweep's point, and when they start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from pathlib import Path

import msgspec.structs

from agentload._feed import ClosedLoop, Launch
from agentload._stages import ConstantLimit
from agentload._sweep_points import (
    GENERATED_SPREAD_S,
    NEW_TOKENS,
    TRACE_SPREAD_S,
    TURNS,
    SweepPoint,
    Workload,
)
from agentload._trace_sessions import no_turn
from agentload_traces import Session, ToolCall, Turn, open_trace

_NS_PER_S = 1_000_000_000


class StaggeredLoop(ClosedLoop):
    """A closed loop whose first `concurrency` sessions start evenly over `spread_ns`, not all at once."""

    def __init__(self, sessions: Iterable[Session], concurrency: int, spread_ns: int) -> None:
        super().__init__(map(Launch, sessions), ConstantLimit(concurrency))
        self._places = concurrency
        self._spread_ns = spread_ns
        self._taken = 0

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """See `SessionFeed`."""
        start_ns = super().next_start_ns(active, now_ns)
        if start_ns is not None and self._taken < self._places:
            self._start_ns = start_ns = max(start_ns, self._taken * self._spread_ns // self._places)
        return start_ns

    def take(self) -> Launch:
        """See `SessionFeed`."""
        self._taken += 1
        return super().take()


def feed_of(point: SweepPoint) -> StaggeredLoop:
    """The sessions of a point, and when they start; without end, so that all places stay taken."""
    workload = point.workload
    spread_s = GENERATED_SPREAD_S if workload.trace is None else TRACE_SPREAD_S / workload.speed
    return StaggeredLoop(_endless(point), point.concurrency, round(spread_s * _NS_PER_S))


def sessions_of(point: SweepPoint) -> Iterator[Session]:
    """What counts at a point. It does not depend on its concurrency, but on the largest it goes with."""
    workload = point.workload
    least_sessions, least_turns = workload.least(point.places)
    at_a_time = 1
    if workload.trace is not None:
        at_a_time = len(trace_sessions(workload.trace, workload.trace_format))
    turns = 0
    for number, session in enumerate(_endless(point)):
        if number >= least_sessions and turns >= least_turns and number % at_a_time == 0:
            break
        turns += len(session.turns[: workload.turns])
        yield session


def _endless(point: SweepPoint) -> Iterator[Session]:
    workload = point.workload
    if workload.trace is None:
        return generated(point)
    return copies(trace_sessions(workload.trace, workload.trace_format))


def kinds_of_session(point: SweepPoint) -> Iterable[Session]:
    """The sessions of a point without those that differ in their names alone."""
    trace = point.workload.trace
    if trace is None:
        return [next(generated(point))]
    return trace_sessions(trace, point.workload.trace_format)


def generated(point: SweepPoint) -> Iterator[Session]:
    """Sessions with a context that grows only by its turns; there is no end of them."""
    assert point.context_tokens is not None
    turns = point.workload.turns or TURNS
    for number in count():
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
        raise no_turn(reader)
    return sessions


def copies(sessions: tuple[Session, ...]) -> Iterator[Session]:
    """Copies of all sessions, one after the other without end.

    The first is the sessions themselves, so that it gives the numbers of a replay. The others have ids of
    their own, and no copy shares blocks with another.
    """
    yield from sessions
    between = "#"
    while any(between in session.session_id for session in sessions):
        between += "#"
    for number in count(1):
        # Ids that stand for text within the whole trace must be others in each copy, and equal within it.
        mask = int.from_bytes(blake2b(b"copy %d" % number, digest_size=8).digest(), "big")
        for session in sessions:
            yield _copy(session, f"{session.session_id}{between}{number}", mask)


def _copy(session: Session, session_id: str, mask: int) -> Session:
    turns = []
    for turn in session.turns:
        blocks = turn.blocks
        if blocks is not None and blocks.scope == "trace":
            blocks = msgspec.structs.replace(blocks, ids=tuple(block ^ mask for block in blocks.ids))
        turns.append(msgspec.structs.replace(turn, session_id=session_id, blocks=blocks))
    return Session(session_id, tuple(turns))
