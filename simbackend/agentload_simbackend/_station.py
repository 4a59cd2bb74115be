"""A place with so many servers, such as the prefill pool: who waits is served by deadline."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from agentload_simbackend._deadline_queue import DeadlineQueue
from agentload_simbackend._flight import Flight

_Start = Callable[[Flight, int], int | None]
"""Begins the service of a flight at a time, and returns when the server is free again.

`None`: it cannot begin yet, and nobody goes before it.
"""


class Station:
    """Holds who is served and who waits; the engine calls `serve` at the times that it asks for.

    held_back: the first in the queue waits for something else than a server; its owner calls `serve` when
        that may be there.
    """

    __slots__ = ("_busy", "_servers", "_start", "armed_ns", "event_seq", "held_back", "queue", "wake_ns")

    def __init__(self, servers: int, start: _Start) -> None:
        self._servers = servers
        self._start = start
        self._busy: list[int] = []
        self.queue = DeadlineQueue()
        self.held_back = False
        self.event_seq = -1
        self.armed_ns: int | None = None
        self.wake_ns: int | None = None
        """When a server gets free for somebody who waits for one; `None` if nobody does."""

    def enter(self, flight: Flight, now_ns: int) -> None:
        """Serve a flight now, or let it wait its turn."""
        self.queue.push(flight)
        if not self.held_back or self.queue[0] is flight:
            self.serve(now_ns)

    def serve(self, now_ns: int) -> None:
        """Start whom a free server can take."""
        queue, busy = self.queue, self._busy
        while busy and busy[0] <= now_ns:
            heappop(busy)
        self.held_back = False
        while queue and len(busy) < self._servers:
            flight = queue[0]
            end_ns = self._start(flight, now_ns)
            if end_ns is None:
                self.held_back = True
                break
            queue.pop()
            flight.busy_until_ns = end_ns
            heappush(busy, end_ns)
        self.wake_ns = busy[0] if queue and not self.held_back else None

    def drop(self, flight: Flight, now_ns: int, *, waiting: bool) -> None:
        """Forget a flight that waits or is served; its server takes the next."""
        if waiting:
            head = self.queue[0]
            self.queue.remove(flight)
            if self.held_back and head is not flight:
                return  # nothing has changed for who is first
        elif flight.busy_until_ns > now_ns:
            self._busy.remove(flight.busy_until_ns)
            heapify(self._busy)
        self.serve(now_ns)
