"""Which session of a trace starts when: closed loop by session, or open loop at recorded start times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from agentload_traces import Session

_NS_PER_MS = 1_000_000


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

    Holds the whole trace in memory, for sessions need not lie in order of time in the file.
    """

    def __init__(self, sessions: Iterable[Session], speed: float) -> None:
        held = list(sessions)
        origin_ms = min((s.start_ms for s in held if s.start_ms is not None), default=0.0)
        starts = [
            0 if s.start_ms is None else round((s.start_ms - origin_ms) * _NS_PER_MS / speed) for s in held
        ]
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
