"""Which session of a trace starts when: closed loop by session, or open loop at recorded start times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from agentload_traces import AgentloadError, Session

_NS_PER_MS = 1_000_000

_LATEST_NS = 1 << 62
"""The latest start on a run's clock, whose times are 64-bit nanoseconds."""


class SessionFeed(Protocol):
    """Hands out sessions in order."""

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """When the next session starts, given how many are active; `None` while none may, or none is left."""
        ...

    def take(self) -> Session:
        """The session that `next_start_ns` spoke of."""
        ...


class ClosedLoop:
    """`concurrency` sessions are active at a time; when one has ended the next starts. Streams the trace."""

    def __init__(self, sessions: Iterable[Session], concurrency: int) -> None:
        self._sessions: Iterator[Session] = iter(sessions)
        self._concurrency = concurrency
        self._next = next(self._sessions, None)

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """See `SessionFeed`."""
        return now_ns if self._next is not None and active < self._concurrency else None

    def take(self) -> Session:
        """See `SessionFeed`."""
        session, self._next = self._next, next(self._sessions, None)
        assert session is not None
        return session


class OpenLoop:
    """Each session starts at its recorded time, counted from the earliest; unknown times start at once.

    first_start_ns: when the earliest starts on the run's clock; later than 0 when a run is resumed.
    Holds the whole trace in memory, for sessions need not lie in order of time in the file.
    """

    def __init__(self, sessions: Iterable[Session], speed: float, *, first_start_ns: int = 0) -> None:
        held = list(sessions)
        origin_ms = min((s.start_ms for s in held if s.start_ms is not None), default=0.0)
        starts = [
            first_start_ns
            + (0 if s.start_ms is None else round(min((s.start_ms - origin_ms) * _NS_PER_MS / speed, 1e30)))
            for s in held
        ]
        if max(starts, default=0) > _LATEST_NS:
            days = max(starts) / 86_400e9
            raise AgentloadError(
                f"sessions start up to {days:.3g} days after the first (at this speed), a run's clock holds"
                f" {_LATEST_NS / 86_400e9:.3g}: give a higher --speed, or --concurrency for a closed loop"
            )
        # sorted() is stable: sessions of one start time keep the order of the trace.
        self._starts = sorted(zip(starts, held, strict=True), key=lambda start: start[0])
        self._position = 0

    def next_start_ns(self, active: int, now_ns: int) -> int | None:
        """See `SessionFeed`."""
        return self._starts[self._position][0] if self._position < len(self._starts) else None

    def take(self) -> Session:
        """See `SessionFeed`."""
        session = self._starts[self._position][1]
        self._position += 1
        return session
