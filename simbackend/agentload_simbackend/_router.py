"""Who goes next, and where: order of the queue for decode memory, placement, admission.

The queue is in order of deadline (see `RouterSpec`). Who does not fit anywhere keeps every replica
that it could ever go to for itself: nobody behind it gets into one of those before it does, so that large
requests are not starved by small ones; and nobody waits for a replica that the first one has no use for.
A context whose room is kept for it does not queue for that room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, get_args

from agentload_simbackend._api import LatencyClass
from agentload_simbackend._flight import Flight
from agentload_simbackend._replica import Replica
from agentload_simbackend._residency import Memory, Place, Residency
from agentload_simbackend._sized_queue import SizedQueue, deadline_order
from agentload_simbackend._specs import KvPolicy, RouterSpec


class Rules(NamedTuple):
    """What a deployment's `router` says, in nanoseconds."""

    allowance_ns: dict[str, int]
    kv_policy: KvPolicy
    keep_ns: int
    most_waiting: int | None
    retry_after_s: float
    spill_after_ns: int

    @classmethod
    def of(cls, spec: RouterSpec) -> Rules:
        """The rules of a spec."""
        return cls(
            {name: round(allowance.value * 1e9) for name, allowance in spec.allowance.items()},
            spec.kv_policy,
            round(spec.keep_time.value * 1e9),
            None if spec.most_waiting is None else spec.most_waiting.whole,
            spec.retry_after.value,
            round(spec.spill_after.value * 1e9),
        )


class Router:
    """Holds who waits for decode memory, and finds places.

    ever_tokens: the most tokens that a stream may have to be served at all, now or later; `ever_first_tokens`
        the same without the spill side. wake_ns: when kept room gets free for somebody who waits.
    """

    def __init__(self, rules: Rules, replicas: list[Replica], residency: Residency) -> None:
        self.rules = rules
        self.spills = any(replica.spill for replica in replicas)
        self._replicas = replicas
        self._residency = residency
        self._first = SizedQueue()
        self._spilling = SizedQueue()
        self._waiting: set[Flight] = set()
        self.event_seq = -1
        self.armed_ns: int | None = None
        self.wake_ns: int | None = None
        self.look()

    def look(self) -> None:
        """See which replicas take requests, and what they will take in future."""
        replicas = self._replicas
        self._open_first = [each.memory for each in replicas if each.open and not each.spill]
        self._open_spill = [each.memory for each in replicas if each.open and each.spill]
        self._first.resize(memory.most_tokens for memory in self._open_first)
        self._spilling.resize(memory.most_tokens for memory in self._open_spill)
        self.ever_first_tokens = max((each.ever_tokens for each in replicas if not each.spill), default=0)
        spill_tokens = max((each.ever_tokens for each in replicas if each.spill), default=0)
        self.ever_tokens = max(self.ever_first_tokens, spill_tokens)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def allowance_ns(self, latency_class: LatencyClass) -> int:
        """By how much later than it came a request counts. Raises `ValueError` for an unknown class."""
        found = self.rules.allowance_ns.get(latency_class)
        if found is None:
            names = ", ".join(self.rules.allowance_ns or get_args(LatencyClass))
            raise ValueError(f'latency class "{latency_class}", must be one of {names}')
        return found

    def take_kept(self, flight: Flight, now_ns: int) -> Place | None:
        """The place of a request whose context's room is kept for it, past the queue."""
        if self.rules.kv_policy != "keep":
            return None
        home = self._residency.kept_home(flight.request.context_id)
        if home is None or home not in (*self._open_first, *self._open_spill):
            return None
        return self._admit(flight, [home], now_ns)

    def take_at_once(self, flight: Flight, now_ns: int) -> Place | None:
        """The place of a request where nobody waits."""
        if self._waiting or flight.tokens > self.ever_first_tokens:
            return None
        return self._admit(flight, self._open_first, now_ns)

    def wait(self, flight: Flight) -> None:
        """Let a request wait; `serve` finds its place."""
        self._waiting.add(flight)
        if flight.tokens <= self.ever_first_tokens:
            self._first.push(flight)
        else:
            flight.may_spill = True
        if flight.may_spill:
            self._spilling.push(flight)

    def let_spill(self, flight: Flight) -> None:
        """A request that waits may go to the spill side from now on."""
        if not flight.may_spill:
            flight.may_spill = True
            self._spilling.push(flight)

    def drop(self, flight: Flight) -> None:
        """Forget a request that waits."""
        self._waiting.discard(flight)
        self._first.remove(flight)
        self._spilling.remove(flight)

    def take_lost(self) -> list[Flight]:
        """Take out those that no replica will ever serve; whom only the spill side will may go there."""
        lost = sorted((each for each in self._waiting if each.tokens > self.ever_tokens), key=deadline_order)
        for flight in lost:
            self.drop(flight)
        if self.spills:
            for flight in sorted(self._waiting, key=deadline_order):
                if flight.tokens > self.ever_first_tokens:
                    self.let_spill(flight)
        return lost

    def serve(self, now_ns: int) -> Iterator[tuple[Flight, Place]]:
        """Admit in order whom there is room for."""
        yield from self._serve(self._first, self._open_first, now_ns)
        yield from self._serve(self._spilling, self._open_spill, now_ns)
        self.wake_ns = None
        if self._waiting and self.rules.kv_policy == "keep":
            self.wake_ns = self._residency.next_expiry_ns(now_ns)

    def _serve(
        self, queue: SizedQueue, memories: list[Memory], now_ns: int
    ) -> Iterator[tuple[Flight, Place]]:
        """Who is not admitted has no replica left for it, nor has any other of its class or a larger one."""
        below = queue.classes
        while (flight := queue.first(below)) is not None:
            place = self._admit(flight, memories, now_ns)
            if place is None:
                memories = [memory for memory in memories if memory.most_tokens < flight.tokens]
                below = queue.class_of(flight)
            else:
                self.drop(flight)
                yield flight, place

    def _admit(self, flight: Flight, memories: list[Memory], now_ns: int) -> Place | None:
        request = flight.request
        return self._residency.admit(
            request.context_id, flight.tokens, flight.runs, request.input_tokens, memories, now_ns
        )
