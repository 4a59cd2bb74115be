"""The simulator's engine: one sans-IO event loop over a deployment's prefill, replicas and faults.

Every wait is an event in one heap; events at the same nanosecond run in the order in which they were planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop

from agentload_simbackend._api import Emission, Engine, EngineRequest, Rejected
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._faulting import Faulting
from agentload_simbackend._faults import Fault
from agentload_simbackend._flight import Flight
from agentload_simbackend._refusals import Refusals
from agentload_simbackend._runs import run_tokens
from agentload_simbackend._serving import Serving
from agentload_simbackend._setup import PoolUse, Setup, setup_of


class SimEngine:
    """Implements `Engine`. `faults` begin at their `at_s`, counted from time 0."""

    def __init__(self, setup: Setup, faults: Sequence[Fault] = ()) -> None:
        self._acceptance = setup.acceptance
        self._serving = serving = Serving(setup)
        self._router = serving.router
        self._events = serving.events
        self._faulting = Faulting(serving, setup.seed)
        self._refusals = Refusals(setup, serving, self._faulting)
        self._orders = 0
        self._now_ns = 0
        for fault in faults:
            self._faulting.check(fault)
        for fault in faults:
            self._faulting.plan(fault)

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        """Take a request at `now_ns`.

        Raises `ValueError` for one that contradicts itself, or names an unknown content or latency class.
        """
        runs = list(request.prompt_runs)
        tokens = sum(map(run_tokens, runs))
        if tokens != request.input_tokens or tokens < 1 or request.output_tokens < 1:
            raise ValueError(
                f"request {request.request_id}: {request.input_tokens} input tokens in runs of {tokens}, "
                f"{request.output_tokens} output tokens; both must be at least 1 and the first two equal"
            )
        serving = self._serving
        if request.request_id in serving.under_way:
            raise ValueError(f"request {request.request_id} is under way already")
        self._acceptance.of(request.content)
        allowance_ns = self._router.allowance_ns(request.latency_class)
        self._run(now_ns)
        flight = Flight(request, runs, allowance_ns, now_ns)
        refusal = self._refusals.of(flight)
        if refusal is not None:
            code, message, status, retry_after_s = refusal
            serving.out.append(
                Rejected(request.request_id, now_ns, code, message, status, retry_after_s=retry_after_s)
            )
            return
        self._orders += 1
        flight.order = self._orders
        serving.enter(flight, now_ns)

    def cancel(self, request_id: int, now_ns: int) -> None:
        """Forget a request; its room is free at once, or with the decode step under way."""
        self._run(now_ns)
        flight = self._serving.under_way.pop(request_id, None)
        if flight is not None:
            self._serving.withdraw(flight, now_ns)

    def inject(self, fault: Fault, now_ns: int) -> None:
        """Let a fault begin at `now_ns`, whatever its `at_s`. Raises `SpecError` if it cannot apply."""
        self._faulting.check(fault)
        self._run(now_ns)
        self._faulting.begin(fault, now_ns)

    def next_event_ns(self) -> int | None:
        """Time of the next state change, `None` when idle."""
        out = self._serving.out
        return out[0].at_ns if out else self._events.next_ns()

    def advance(self, now_ns: int) -> list[Emission]:
        """Let time pass up to and including `now_ns`; return what happened, in order of time."""
        self._run(now_ns)
        return self._take_out()

    def advance_to_emission(self, limit_ns: int | None) -> list[Emission]:
        """Let time pass until something is emitted, at the most up to `limit_ns`; see `Engine`."""
        heap, out = self._events.heap, self._serving.out
        while not out and heap:
            at_ns, sequence, act, subject = heap[0]
            if limit_ns is not None and at_ns > limit_ns:
                break
            heappop(heap)
            if subject.event_seq == sequence:
                self._now_ns = at_ns
                act(subject, at_ns)
        if out:
            # Emissions of a call before may not have been taken yet.
            self._run(max(out[-1].at_ns, self._now_ns))
        return self._take_out()

    def next_step_ns(self) -> int | None:
        """End of the next decode step after the last time told, `None` when nothing decodes."""
        batches = (replica.batch for replica in self._serving.replicas)
        ends = [end for batch in batches if (end := batch.next_step_ns(self._now_ns)) is not None]
        return min(ends, default=None)

    def progress(self, now_ns: int) -> Iterator[tuple[int, int, int]]:
        """For each request with a decode step behind it: (request_id, tokens out, end of its latest step)."""
        for replica in self._serving.replicas:
            yield from replica.batch.progress(now_ns)

    def occupancy(self) -> list[PoolUse]:
        """What is taken of every memory: each replica's pools, and the prefix cache's two."""
        pool, replicas = self._serving.pool, self._serving.replicas
        uses = [] if pool is None else pool.occupancy()
        for replica in replicas:
            memory = replica.memory
            uses += [
                PoolUse(f"replica {replica.index} {each.name}", used_bytes, each.capacity_bytes)
                for each, used_bytes in zip(memory.pools, memory.used_bytes(), strict=True)
            ]
        return uses

    def handed_over_bytes(self) -> list[float]:
        """What the link into each replica has carried (0 without one), until something last changed on it."""
        links = (replica.link for replica in self._serving.replicas)
        return [0.0 if link is None else link.sent_bytes for link in links]

    def _run(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            raise ValueError(f"time went back from {self._now_ns} to {now_ns} ns")
        self._now_ns = now_ns
        self._events.run(now_ns)

    def _take_out(self) -> list[Emission]:
        serving = self._serving
        out, serving.out = serving.out, []
        return out


def build_engine(deployment: Deployment, seed: int, faults: Sequence[Fault] = ()) -> Engine:
    """An engine for a deployment; `seed`, session and turn determine every draw.

    Raises `SpecError` for a fault that cannot apply.
    """
    return SimEngine(setup_of(deployment, seed), faults)
