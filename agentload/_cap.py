"""Where a run ends before its sessions do: a time after which, or a number after which, no turn is sent."""

from __future__ import annotations

from collections.abc import Callable


class Cap:
    """Decides whether a turn may still be sent, and counts those that were. One for a run.

    A turn that is kept back has no row and is no failure; its session ends there.

    max_duration_ns: no turn that is due at this time of the run or later is sent. max_requests: so many turns
    are sent in all (retries of a turn count with it). sent: those of the run before it was resumed.
    sessions_ended: sessions of which a turn was kept back; counted by `session_ended`.
    on_spent: called once, when the last turn that may be sent is; those that are waiting need wait no longer.
    """

    def __init__(
        self, *, max_duration_ns: int | None = None, max_requests: int | None = None, sent: int = 0
    ) -> None:
        self._max_duration_ns = max_duration_ns
        self._max_requests = max_requests
        self._sent = sent
        self.sessions_ended = 0
        self.on_spent: Callable[[], None] = lambda: None

    @property
    def spent(self) -> bool:
        """No turn may be sent any more, whenever it is due."""
        return self._max_requests is not None and self._sent >= self._max_requests

    def refuses(self, scheduled_ns: int) -> bool:
        """Whether it is known by now that a turn, or a session's first, that is due then will not be sent."""
        late = self._max_duration_ns is not None and scheduled_ns >= self._max_duration_ns
        return late or self.spent

    def decided_ns(self, scheduled_ns: int) -> int:
        """When it is known whether a turn may be sent: when it is due, or before, when the run's time ends.

        A session that waits for a turn keeps its place until then, on either clock. 0 when no turn may be
        sent any more.
        """
        if self.spent:
            return 0
        return scheduled_ns if self._max_duration_ns is None else min(scheduled_ns, self._max_duration_ns)

    def may_send(self, scheduled_ns: int) -> bool:
        """Whether a turn that is due now is sent; it is counted if so."""
        if self.refuses(scheduled_ns):
            return False
        self._sent += 1
        if self.spent:
            self.on_spent()
        return True

    def session_ended(self) -> None:
        """A session has ended of which a turn was kept back."""
        self.sessions_ended += 1
