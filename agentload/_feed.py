"""Which session of a run starts when: closed loop by session, or open loop at recorded or drawn times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple, Protocol

from agentload._stages import ConstantLimit, ConstantRate, StagedLimit, StagedRate
from agentload_traces import AgentloadError, Session

_NS_PER_MS = 1_000_000

LATEST_NS = 1 << 62
"""The latest start on a run's clock, whose times are 64-bit nanoseconds."""


class Launch(NamedTuple):
    """A session that starts.

    start_ns: when, on the run's clock; 0 as long as the feed has not said. salt: what makes the prefixes of
    its prompts differ from those of other runs and repetitions.
    first_position: turns before it, in the order of the trace, are history: not sent, but part of prompts.
    repetition: how often the trace was played before.
    """

    session: Session
    start_ns: int = 0
    salt: str = ""
    first_position: int = 0
    repetition: int = 0


class SessionFeed(Protocol):
    """Hands out sessions in order."""

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """When the next session starts, given how many are active; `None` while none may, or none is left.

        To be asked again when that time has come, or when the number of active sessions has changed.
        """
        ...

    def take(self) -> Launch:
        """The session that `next_start_ns` spoke of, with that time."""
        ...


class ClosedLoop:
    """So many sessions are active at a time; when one has ended the next starts. Streams the trace.

    limit: how many.
    """

    def __init__(self, launches: Iterable[Launch], limit: ConstantLimit | StagedLimit) -> None:
        self._launches = iter(launches)
        self._limit = limit
        self._next = next(self._launches, None)
        self._start_ns = 0

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """See `SessionFeed`."""
        if self._next is None or (start_ns := self._limit.room_ns(active, now_ns)) is None:
            return None
        self._start_ns = start_ns
        return start_ns

    def take(self) -> Launch:
        """See `SessionFeed`."""
        launch, self._next = self._next, next(self._launches, None)
        assert launch is not None
        return launch._replace(start_ns=self._start_ns)


class TimedLoop:
    """Each session starts at the time that its launch names, however many are active; in order of time.

    not_before_ns: what has started or should have by then, in a run that is resumed, starts then.
    """

    def __init__(self, launches: Iterable[Launch], *, not_before_ns: int = 0) -> None:
        self._launches = iter(launches)
        self._not_before_ns = not_before_ns
        self._next = next(self._launches, None)

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """See `SessionFeed`."""
        return None if self._next is None else max(self._next.start_ns, self._not_before_ns)

    def take(self) -> Launch:
        """See `SessionFeed`."""
        launch, self._next = self._next, next(self._launches, None)
        assert launch is not None
        return launch._replace(start_ns=max(launch.start_ns, self._not_before_ns))


def at_recorded_times(
    launches: Iterable[Launch], speed: float, max_gap_ns: int | None = None
) -> Iterator[Launch]:
    """Launches at the recorded starts of their sessions, counted from the earliest, in order of time.

    Sessions of unknown start are launched at once. A repetition of the trace begins one mean gap after the
    last start of the one before it. max_gap_ns: gaps between starts are shortened to it, before `speed`.
    Holds one repetition of the trace in memory, for sessions need not lie in order of time in the file.
    Raises `AgentloadError` if a run's clock does not reach a start.
    """
    offset_of: dict[float, float] = {}
    period = 0.0
    for repetition, group in groupby(launches, lambda launch: launch.repetition):
        held = list(group)
        if not repetition:
            known_ms = (launch.session.start_ms for launch in held)
            starts_ms = sorted(start_ms for start_ms in known_ms if start_ms is not None)
            offset_of = _offsets(starts_ms, max_gap_ns)
            last = offset_of[starts_ms[-1]] if starts_ms else 0.0
            period = last + last / (len(starts_ms) - 1) if len(starts_ms) > 1 else 0.0
        yield from _in_order(held, offset_of, repetition * period, speed)


def _in_order(
    held: list[Launch], offset_of: dict[float, float], begins: float, speed: float
) -> Iterator[Launch]:
    """One repetition, whose earliest session starts `begins` ns after the run's first, before `speed`."""
    timed = []
    for launch in held:
        start_ms = launch.session.start_ms
        offset = begins + (0.0 if start_ms is None else offset_of[start_ms])
        timed.append(launch._replace(start_ns=round(min(offset / speed, 1e30))))
    latest_ns = max((launch.start_ns for launch in timed), default=0)
    if latest_ns > LATEST_NS:
        raise AgentloadError(
            f"sessions start up to {latest_ns / 86_400e9:.3g} days after the first (at this speed), a run's"
            f" clock holds {LATEST_NS / 86_400e9:.3g}: give a higher --speed, or --concurrency for a closed"
            " loop"
        )
    # sorted() is stable: sessions of one start time keep the order of the trace.
    yield from sorted(timed, key=lambda launch: launch.start_ns)


def _offsets(starts_ms: list[float], max_gap_ns: int | None) -> dict[float, float]:
    """Recorded start in ms → nanoseconds after the earliest, with no gap longer than `max_gap_ns`."""
    if max_gap_ns is None:
        return {start_ms: (start_ms - starts_ms[0]) * _NS_PER_MS for start_ms in starts_ms}
    at = dict.fromkeys(starts_ms[:1], 0.0)
    for before, start_ms in pairwise(starts_ms):
        at[start_ms] = at[before] + min((start_ms - before) * _NS_PER_MS, max_gap_ns)
    return at


def at_drawn_times(
    launches: Iterable[Launch], positions: Iterable[float], rate: ConstantRate | StagedRate
) -> Iterator[Launch]:
    """Launches in the order of the trace at drawn times, as long as the stages of `rate` last.

    positions: how many mean gaps after the start each launch comes. Streams the trace.
    Raises `AgentloadError` for a start that a run's clock does not reach.
    """
    for launch, position in zip(launches, positions, strict=False):
        start_ns = rate.at_ns(position)
        if start_ns is None:
            return
        if start_ns > LATEST_NS:
            raise AgentloadError(
                f"session {launch.session.session_id!r} would start {start_ns / 86_400e9:.3g} days after the"
                f" first, a run's clock holds {LATEST_NS / 86_400e9:.3g}: give a higher --rate"
            )
        yield launch._replace(start_ns=start_ns)
