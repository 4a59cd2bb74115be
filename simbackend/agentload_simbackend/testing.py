"""Helpers for testing what talks to the simulator: an engine whose every time is known beforehand."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

from agentload_simbackend._api import (
    Arrival,
    Emission,
    EngineRequest,
    Failed,
    Finished,
    FirstToken,
    Phases,
    Rejected,
)
from agentload_simbackend._error_codes import CONNECTION_RESET, CONTEXT_LENGTH_EXCEEDED, REFUSED
from agentload_simbackend._faults import Fault, Refuse, Reset
from agentload_traces import SpecError


class FixedStepEngine:
    """An `Engine` with a fixed step time, `tokens_per_step` tokens a step and a fixed time to prefill.

    Steps end at the multiples of `step_ns`, for all requests together. A request submitted at t gets its
    first tokens with the first step that ends after t + `prefill_ns`. There is no queue and no hand-off.
    Prompt runs that were seen before count as cached; a prompt that with its answer exceeds `max_tokens`
    is rejected with `context_length_exceeded`. Raises `ValueError` if a time goes back.

    faults: what happens when, by their `at_s` on the engine's clock: `Reset` (of all that is under way,
    whatever its share) and `Refuse` (of all new requests). Raises `SpecError` for other faults.
    """

    def __init__(
        self,
        *,
        step_ns: int = 291_000,
        tokens_per_step: int = 1,
        prefill_ns: int = 0,
        max_tokens: int | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        for fault in faults:
            _check(fault)
        self._step_ns = step_ns
        self._tokens_per_step = tokens_per_step
        self._prefill_ns = prefill_ns
        self._max_tokens = max_tokens
        self._now_ns = 0
        self._order = count()
        self._events: list[tuple[int, int, Emission]] = []
        self._live: dict[int, tuple[EngineRequest, int]] = {}
        self._timeline = sorted((round(fault.at_s * 1e9), number) for number, fault in enumerate(faults))
        self._faults = faults
        self._refusing: tuple[int, Refuse] | None = None
        self._decoding: dict[int, int] = {}
        self._seen: set[str | int] = set()
        self.submitted: list[EngineRequest] = []
        self.cancelled: list[int] = []

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        """Take a request at `now_ns`."""
        self._tell(now_ns)
        self._let_faults_begin(now_ns)
        self.submitted.append(request)
        self._live[request.request_id] = (request, now_ns)
        wanted = request.input_tokens + request.output_tokens
        if self._max_tokens is not None and wanted > self._max_tokens:
            message = f"{wanted} tokens do not fit into a context of {self._max_tokens}"
            self._push(Rejected(request.request_id, now_ns, CONTEXT_LENGTH_EXCEEDED, message))
            return
        if self._refusing is not None and now_ns < self._refusing[0]:
            refuse = self._refusing[1]
            code = REFUSED[refuse.status]
            self._push(
                Rejected(request.request_id, now_ns, code, "refused", refuse.status, refuse.retry_after_s)
            )
            return
        first = (now_ns + self._prefill_ns) // self._step_ns + 1
        steps = -(-request.output_tokens // self._tokens_per_step)
        last = first + steps - 1
        decode_ns = last * self._step_ns - now_ns - self._prefill_ns
        self._push(FirstToken(request.request_id, first * self._step_ns))
        self._push(
            Finished(
                request_id=request.request_id,
                at_ns=last * self._step_ns,
                first_token_at_ns=first * self._step_ns,
                phases=Phases(0, self._prefill_ns, 0, decode_ns),
                cached_tokens=self._cached_tokens(request),
                handoff_tokens=0,
                output_tokens=request.output_tokens,
                steps=steps,
                replica=0,
                arrivals=partial(self._arrivals, first, last, request.output_tokens),
            )
        )

    def cancel(self, request_id: int, now_ns: int) -> None:
        """Forget a request."""
        self._tell(now_ns)
        if request_id in self._live:
            self.cancelled.append(request_id)
            self._forget(request_id)

    def inject(self, fault: Fault, now_ns: int) -> None:
        """Let a `Reset` or `Refuse` begin. Raises `SpecError` for other faults."""
        self._tell(now_ns)
        _check(fault)
        if isinstance(fault, Refuse):
            until_ns = 2**63 if fault.for_s is None else now_ns + round(fault.for_s * 1e9)
            self._refusing = (until_ns, fault)
        else:
            for request_id in list(self._live):
                self._fail(request_id, now_ns)

    def next_event_ns(self) -> int | None:
        """Time of the next first token, end, rejection or fault."""
        while self._events and self._events[0][2].request_id not in self._live:
            heapq.heappop(self._events)
        times = [events[0][0] for events in (self._events, self._timeline) if events]
        return min(times, default=None)

    def advance(self, now_ns: int) -> list[Emission]:
        """Let time pass up to and including `now_ns`."""
        emissions = []
        while (at_ns := self.next_event_ns()) is not None and at_ns <= now_ns:
            self._tell(max(at_ns, self._now_ns))
            if not self._events or self._events[0][0] > at_ns:
                self._let_faults_begin(at_ns)
                continue
            emission = heapq.heappop(self._events)[2]
            emissions.append(emission)
            if isinstance(emission, FirstToken):
                self._decoding[emission.request_id] = at_ns // self._step_ns
            else:
                self._forget(emission.request_id)
        self._tell(now_ns)
        return emissions

    def advance_to_emission(self, limit_ns: int | None) -> list[Emission]:
        """Let time pass until something is emitted, at the most up to `limit_ns`."""
        while (at_ns := self.next_event_ns()) is not None and (limit_ns is None or at_ns <= limit_ns):
            if emissions := self.advance(at_ns):
                return emissions
        return []

    def next_step_ns(self) -> int | None:
        """End of the next step, `None` when nothing decodes."""
        return (self._now_ns // self._step_ns + 1) * self._step_ns if self._decoding else None

    def progress(self, now_ns: int) -> Iterator[tuple[int, int, int]]:
        """For each request in decode: (request_id, tokens out so far, end of its latest step)."""
        step = now_ns // self._step_ns
        for request_id, first in self._decoding.items():
            yield request_id, (step - first + 1) * self._tokens_per_step, step * self._step_ns

    def _tell(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            raise ValueError(f"time went back from {self._now_ns} to {now_ns} ns")
        self._now_ns = now_ns

    def _push(self, emission: Emission) -> None:
        heapq.heappush(self._events, (emission.at_ns, next(self._order), emission))

    def _let_faults_begin(self, now_ns: int) -> None:
        while self._timeline and self._timeline[0][0] <= now_ns:
            at_ns, number = heapq.heappop(self._timeline)
            self.inject(self._faults[number], max(at_ns, self._now_ns))

    def _fail(self, request_id: int, now_ns: int) -> None:
        request, submitted_ns = self._live[request_id]
        prefilled_ns = min(now_ns, submitted_ns + self._prefill_ns)
        first = (submitted_ns + self._prefill_ns) // self._step_ns + 1
        last = now_ns // self._step_ns
        tokens = max(0, last - first + 1) * self._tokens_per_step
        failed = Failed(
            request_id=request_id,
            at_ns=now_ns,
            code=CONNECTION_RESET,
            message="the connection broke",
            phases=Phases(0, prefilled_ns - submitted_ns, 0, now_ns - prefilled_ns),
            first_token_at_ns=first * self._step_ns if tokens else None,
            output_tokens=tokens,
            replica=0,
            arrivals=partial(self._arrivals, first, last, tokens) if tokens else list[Arrival],
        )
        self._events = [event for event in self._events if event[2].request_id != request.request_id]
        heapq.heapify(self._events)
        self._push(failed)

    def _forget(self, request_id: int) -> None:
        self._live.pop(request_id, None)
        self._decoding.pop(request_id, None)

    def _cached_tokens(self, request: EngineRequest) -> int:
        cached, hit = 0, True
        for run in request.prompt_runs:
            hit = hit and run.key in self._seen
            cached += run.tokens if hit else 0
            self._seen.add(run.key)
        return cached

    def _arrivals(self, first: int, last: int, output_tokens: int) -> list[Arrival]:
        per_step = self._tokens_per_step
        ends = [Arrival(step * self._step_ns, per_step) for step in range(first, last)]
        return [*ends, Arrival(last * self._step_ns, output_tokens - per_step * len(ends))]


def _check(fault: Fault) -> None:
    if not isinstance(fault, Refuse | Reset):
        raise SpecError(f"this engine for tests has no {type(fault).__name__}")
