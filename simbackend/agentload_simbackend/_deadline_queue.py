"""The order in which requests wait: by deadline, equal ones in the order in which they came."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from agentload_simbackend._flight import Flight


class DeadlineQueue:
    """Requests that wait for one thing. A deadline never changes, so nobody is passed over for ever."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Flight]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Flight]:
        return (entry[2] for entry in self._waiting)

    def __getitem__(self, index: int) -> Flight:
        return self._waiting[index][2]

    def push(self, flight: Flight) -> None:
        """Let a request wait its turn."""
        insort(self._waiting, (flight.deadline_ns, flight.order, flight))

    def pop(self, index: int = 0) -> Flight:
        """Take the first request out, or another."""
        return self._waiting.pop(index)[2]

    def remove(self, flight: Flight) -> None:
        """Take out a request that waits; one that does not is ignored."""
        index = bisect_left(self._waiting, (flight.deadline_ns, flight.order))
        if index < len(self._waiting) and self._waiting[index][2] is flight:
            del self._waiting[index]

    def clear(self) -> None:
        """Take all out."""
        self._waiting.clear()
