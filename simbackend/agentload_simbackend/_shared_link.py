"""A link whose transfers share its bandwidth evenly, in exact integers.

Every transfer gets the same bytes while it is on the link, so one counter, the `level`, says what each got
since the link was last idle, and a transfer ends when the level is where it was plus its size. What an even
split leaves over, and what a transfer did not need of its last nanosecond, is carried on: no byte is lost
or sent twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

_UNITS = 1 << 20
"""Bytes are counted in units of 2^-20, so that a rate is a whole number of them per nanosecond."""

Flow = TypeVar("Flow", bound=Hashable)


class SharedLink(Generic[Flow]):
    """The link into one replica; the owner calls `serve` at `wake_ns`.

    latency_ns: from the end of a transfer's last byte to its arrival; it takes no bandwidth.
    """

    __slots__ = (
        "_at_ns",
        "_carry",
        "_ends",
        "_flows",
        "_level",
        "_order",
        "_rate",
        "_sent",
        "_stopped",
        "armed_ns",
        "event_seq",
        "latency_ns",
        "wake_ns",
    )

    def __init__(self, bytes_per_ns: float, latency_ns: int) -> None:
        self.event_seq = -1
        self.armed_ns: int | None = None
        self.wake_ns: int | None = None
        self._at_ns = 0
        self._level = 0
        self._carry = 0
        self._sent = 0
        self._order = 0
        self._stopped = False
        self._flows: dict[Flow, tuple[int, int]] = {}
        self._ends: list[tuple[int, int, Flow]] = []
        self.retune(bytes_per_ns, latency_ns)

    def retune(self, bytes_per_ns: float, latency_ns: int) -> None:
        """Give an idle link another rate."""
        assert not self._flows
        self._rate = max(round(bytes_per_ns * _UNITS), 1)
        self.latency_ns = latency_ns

    @property
    def sent_bytes(self) -> float:
        """All bytes that it has carried until it was last asked to do something."""
        return self._sent / _UNITS

    @property
    def flows(self) -> list[Flow]:
        """What is on the link, in the order in which it came."""
        return list(self._flows)

    def enter(self, flow: Flow, size_bytes: int, now_ns: int) -> None:
        """Begin a transfer of at least one byte."""
        self._pass(now_ns)
        start = self._level
        self._order += 1
        self._flows[flow] = (start, self._order)
        heappush(self._ends, (start + size_bytes * _UNITS, self._order, flow))
        self._set_wake()

    def serve(self, now_ns: int) -> list[Flow]:
        """Let time pass; return the transfers that are whole, in the order in which they ended."""
        done: list[Flow] = []
        self._pass(now_ns)
        ends, flows = self._ends, self._flows
        while ends and ends[0][0] <= self._level:
            end, order, flow = heappop(ends)
            if flows.get(flow, (0, 0))[1] != order:
                continue  # it left before
            del flows[flow]
            done.append(flow)
            over = self._level - end
            self._sent -= over
            if flows:
                self._carry += over
                self._pass(now_ns)
        self._set_wake()
        return done

    def leave(self, flow: Flow, now_ns: int) -> None:
        """Cut a transfer off; one that is whole already is ignored. The others get its share from now on."""
        if flow in self._flows:
            self._pass(now_ns)
            del self._flows[flow]
            self._set_wake()

    def stop(self, now_ns: int) -> None:
        """Carry nothing from now on."""
        self._pass(now_ns)
        self._stopped = True
        self.wake_ns = None

    def go_on(self, now_ns: int) -> None:
        """Carry on where it stopped."""
        self._pass(now_ns)
        self._stopped = False
        self._set_wake()

    def clear(self, now_ns: int) -> None:
        """Cut all transfers off."""
        self._pass(now_ns)
        self._flows.clear()
        self._set_wake()

    def _pass(self, now_ns: int) -> None:
        count = len(self._flows)
        if count and not self._stopped:
            each, self._carry = divmod((now_ns - self._at_ns) * self._rate + self._carry, count)
            self._level += each
            self._sent += each * count
        self._at_ns = now_ns

    def _set_wake(self) -> None:
        ends, flows = self._ends, self._flows
        while ends and flows.get(ends[0][2], (0, 0))[1] != ends[0][1]:
            heappop(ends)
        if not ends:
            self._level = self._carry = 0
            self.wake_ns = None
        elif not self._stopped:
            missing = (ends[0][0] - self._level) * len(flows) - self._carry
            self.wake_ns = self._at_ns + max(-(-missing // self._rate), 0)
