"""What an engine has planned: one heap of events, in order of time and then of planning.

What is planned to be `last` comes after everything else of its nanosecond, also what that plans for it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol


class Subject(Protocol):
    """What an event is about. Its event is void if `event_seq` is not the event's number any more."""

    event_seq: int


class Waker(Protocol):
    """What wants to be called at `wake_ns`, and is planned for `armed_ns`."""

    event_seq: int
    armed_ns: int | None
    wake_ns: int | None


_LAST = 1 << 62
"""What the numbers of events begin at that are the last of their nanosecond: no other number gets there."""

_Act = Callable[[Any, int], None]


class Events:
    """The heap. A subject has one event at a time: planning another makes the one before void."""

    __slots__ = ("_sequence", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, _Act, Subject]] = []
        self._sequence = count(1)

    def plan(self, at_ns: int, act: _Act, subject: Subject) -> None:
        """Have `act(subject, at_ns)` called when it is time."""
        subject.event_seq = sequence = next(self._sequence)
        heappush(self.heap, (at_ns, sequence, act, subject))

    def plan_last(self, at_ns: int, act: _Act, subject: Subject) -> None:
        """The same, after all that is due in that nanosecond; of several the first planned comes first."""
        subject.event_seq = sequence = _LAST + next(self._sequence)
        heappush(self.heap, (at_ns, sequence, act, subject))

    def arm(self, waker: Waker, act: _Act) -> None:
        """See to it that a waker is called when it wants to be; `act` must set its `armed_ns` to `None`."""
        wake_ns = waker.wake_ns
        if wake_ns == waker.armed_ns:
            return
        waker.armed_ns = wake_ns
        if wake_ns is None:
            waker.event_seq = -1
        else:
            self.plan(wake_ns, act, waker)

    def next_ns(self) -> int | None:
        """Time of the next event that is not void."""
        heap = self.heap
        while heap and heap[0][3].event_seq != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now_ns: int) -> None:
        """Do what is due up to and including `now_ns`."""
        heap = self.heap
        while heap and heap[0][0] <= now_ns:
            at_ns, sequence, act, subject = heappop(heap)
            if subject.event_seq == sequence:
                act(subject, at_ns)
