"""Requests that wait for one of several memories, apart by which of those are large enough for them.

Two that need the same class of memory can go to the same ones: if the first cannot go on, no later one can
either, and nobody has to look at those. So that serving takes no longer for a longer queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from agentload_simbackend._deadline_queue import DeadlineQueue
from agentload_simbackend._flight import Flight


class SizedQueue:
    """One queue by deadline for each class of size: class k is of those who fit size k, but not size k - 1.

    sizes: the tokens that the memories hold, from the smallest to the largest; the last class fits none.
    """

    __slots__ = ("_queues", "_sizes")

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._queues = [DeadlineQueue()]

    def __iter__(self) -> Iterator[Flight]:
        return (flight for queue in self._queues for flight in queue)

    def resize(self, sizes: Iterable[int]) -> None:
        """Tell those who wait apart by other sizes."""
        new = sorted(set(sizes))
        if new == self._sizes:
            return
        waiting = list(self)
        self._sizes = new
        self._queues = [DeadlineQueue() for _ in range(len(new) + 1)]
        for flight in waiting:
            self.push(flight)

    @property
    def classes(self) -> int:
        """How many classes there are of requests that some memory is large enough for."""
        return len(self._sizes)

    def class_of(self, flight: Flight) -> int:
        """The class of a request."""
        return bisect_left(self._sizes, flight.tokens)

    def push(self, flight: Flight) -> None:
        """Let a request wait its turn."""
        self._queues[self.class_of(flight)].push(flight)

    def remove(self, flight: Flight) -> None:
        """Take out a request that waits; one that does not is ignored."""
        self._queues[self.class_of(flight)].remove(flight)

    def first(self, below: int) -> Flight | None:
        """Who is next of the classes before class `below`."""
        heads = [queue[0] for queue in self._queues[:below] if queue]
        return min(heads, key=deadline_order, default=None)


def deadline_order(flight: Flight) -> tuple[int, int]:
    """By which requests are served."""
    return flight.deadline_ns, flight.order
