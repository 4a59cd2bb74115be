"""The simulator's engine: prefill pool, hand-off, decode replicas, as one sans-IO event loop.

A request goes through prefill (first come, first served), waits with its KV in HBM for room in a decode
replica, crosses that replica's link and decodes in its batch. Every wait is an event in one heap; events at
the same nanosecond run in the order in which they were planned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any

from agentload_simbackend._acceptance import Acceptance
from agentload_simbackend._api import Emission, Engine, EngineRequest, Finished, FirstToken, Phases, Rejected
from agentload_simbackend._batch import Batch
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._flight import Flight, Stage, Timeline
from agentload_simbackend._prefill_time import PrefillModel
from agentload_simbackend._prefix_cache import PrefixCache
from agentload_simbackend._residency import Residency, Resident
from agentload_simbackend._station import Station
from agentload_simbackend._step_time import step_model

_Event = tuple[int, int, Callable[[Any, int], None], Any]
"""Time, number, what to do and with what (flight, station, batch); void if its `event_seq` is another."""

_run_tokens = itemgetter(1)


class SimEngine:
    """Implements `Engine` for a deployment whose decode replicas hold the KV themselves."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        spec, speculation = deployment.spec, deployment.spec.speculation
        replicas = spec.decode.replicas.whole
        self._kv = deployment.kv
        self._max_context = deployment.model.max_context.whole
        assert spec.prefill is not None
        assert deployment.link is not None
        self._cache_block = spec.prefill.cache_block.whole
        self._link_bytes_per_ns = deployment.link_bytes_per_s / 1e9
        self._link_latency_ns = round(deployment.link.latency.value * 1e9)
        self._prefill_model = PrefillModel(deployment)
        self._acceptance = Acceptance(
            seed,
            deployment.draft_tokens,
            deployment.acceptance_length,
            speculation.prompt_cv.value if speculation else 0.0,
        )
        self._cache = PrefixCache(deployment.prefix_cache_bytes, self._kv)
        self._prefill = Station(spec.prefill.instances.whole, self._start_prefill)
        self._slots: deque[Flight] = deque()
        self._residency = Residency(replicas, deployment.replica_kv_bytes)
        self._links = [Station(1, self._start_handoff) for _ in range(replicas)]
        model = step_model(deployment)
        self._batches = [Batch(model) for _ in range(replicas)]
        self._under_way: dict[int, Flight] = {}
        self._events: list[_Event] = []
        self._sequence = count(1)
        self._out: list[Emission] = []
        self._now_ns = 0

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        """Take a request at `now_ns`. Raises `ValueError` for one that contradicts itself."""
        runs = list(request.prompt_runs)
        tokens = sum(map(_run_tokens, runs))
        if tokens != request.input_tokens or tokens < 1 or request.output_tokens < 1:
            raise ValueError(
                f"request {request.request_id}: {request.input_tokens} input tokens in runs of {tokens}, "
                f"{request.output_tokens} output tokens; both must be at least 1 and the first two equal"
            )
        if request.request_id in self._under_way:
            raise ValueError(f"request {request.request_id} is under way already")
        self._run(now_ns)
        need_bytes = self._kv.stream_bytes(request.input_tokens + request.output_tokens)
        if need_bytes > self._residency.capacity_bytes or tokens + request.output_tokens > self._max_context:
            self._out.append(self._refusal(request, need_bytes, now_ns))
            return
        flight = Flight(request, runs, need_bytes, now_ns)
        self._under_way[request.request_id] = flight
        self._prefill.enter(flight, now_ns)
        self._arm(self._prefill, self._on_station)

    def cancel(self, request_id: int, now_ns: int) -> None:
        """Forget a request; its bytes are free at once, or with the decode step under way.

        Of its context that stays resident which was handed over or was there before, of a hand-off that
        is cut off without the sliding windows.
        """
        self._run(now_ns)
        flight = self._under_way.pop(request_id, None)
        if flight is None:
            return
        stage, flight.stage, flight.event_seq = flight.stage, Stage.GONE, -1
        if stage <= Stage.PREFILL:
            self._prefill.drop(flight, now_ns, waiting=stage == Stage.PREFILL_QUEUE)
            self._arm(self._prefill, self._on_station)
        elif stage == Stage.SLOT_QUEUE:
            self._slots.remove(flight)
            self._fill_slots(now_ns)
        elif stage <= Stage.LINK:
            link = self._links[flight.replica]
            link.drop(flight, now_ns, waiting=stage == Stage.LINK_QUEUE)
            self._arm(link, self._on_station)
            self._leave(flight, flight.resident_tokens, None)
            self._fill_slots(now_ns)
        else:
            batch = self._batches[flight.replica]
            if batch.leave(flight, now_ns):
                self._leave(flight, flight.request.input_tokens, flight.request.output_tokens)
                self._fill_slots(now_ns)
            self._arm_batch(batch)

    def next_event_ns(self) -> int | None:
        """Time of the next state change, `None` when idle."""
        if self._out:
            return self._out[0].at_ns
        events = self._events
        while events and events[0][3].event_seq != events[0][1]:
            heappop(events)
        return events[0][0] if events else None

    def advance(self, now_ns: int) -> list[Emission]:
        """Let time pass up to and including `now_ns`; return what happened, in order of time."""
        self._run(now_ns)
        out, self._out = self._out, []
        return out

    def advance_to_emission(self, limit_ns: int | None) -> list[Emission]:
        """Let time pass until something is emitted, at the most up to `limit_ns`; see `Engine`."""
        events = self._events
        while not self._out and events:
            at_ns, sequence, act, subject = events[0]
            if limit_ns is not None and at_ns > limit_ns:
                break
            heappop(events)
            if subject.event_seq == sequence:
                self._now_ns = at_ns
                act(subject, at_ns)
        if self._out:
            self._run(self._out[-1].at_ns)
        out, self._out = self._out, []
        return out

    def next_step_ns(self) -> int | None:
        """End of the next decode step after the last time told, `None` when nothing decodes."""
        ends = [end for batch in self._batches if (end := batch.next_step_ns(self._now_ns)) is not None]
        return min(ends, default=None)

    def progress(self, now_ns: int) -> Iterator[tuple[int, int, int]]:
        """For each request with a decode step behind it: (request_id, tokens out, end of its latest step)."""
        for batch in self._batches:
            yield from batch.progress(now_ns)

    def _run(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            raise ValueError(f"time went back from {self._now_ns} to {now_ns} ns")
        self._now_ns = now_ns
        events = self._events
        while events and events[0][0] <= now_ns:
            at_ns, sequence, act, subject = heappop(events)
            if subject.event_seq == sequence:
                act(subject, at_ns)

    def _plan(self, at_ns: int, act: Callable[[Any, int], None], subject: Flight | Station | Batch) -> None:
        subject.event_seq = sequence = next(self._sequence)
        heappush(self._events, (at_ns, sequence, act, subject))

    def _arm(self, place: Station | Batch, act: Callable[[Any, int], None]) -> None:
        """See to it that a station or batch is called when it wants to be."""
        wake_ns = place.wake_ns
        if wake_ns == place.armed_ns:
            return
        place.armed_ns = wake_ns
        if wake_ns is None:
            place.event_seq = -1
        else:
            self._plan(wake_ns, act, place)

    def _arm_batch(self, batch: Batch) -> None:
        """Plan the first tokens of who has started, then the batch itself."""
        if batch.started:
            for flight in batch.started:
                self._plan(flight.first_token_ns, self._on_first_token, flight)
            batch.started.clear()
        self._arm(batch, self._on_batch)

    def _on_station(self, station: Station, now_ns: int) -> None:
        station.armed_ns = None
        station.serve(now_ns)
        self._arm(station, self._on_station)

    def _start_prefill(self, flight: Flight, now_ns: int) -> int:
        tokens = flight.request.input_tokens
        hit = min(self._cache.hit_tokens(flight.runs), tokens - 1)
        flight.cached_tokens = hit - hit % self._cache_block
        flight.stage = Stage.PREFILL
        flight.prefill_start_ns = now_ns
        end_ns = now_ns + self._prefill_model.compute_ns(flight.cached_tokens, tokens - flight.cached_tokens)
        self._plan(end_ns + self._prefill_model.latency_ns, self._on_prefilled, flight)
        return end_ns

    def _on_prefilled(self, flight: Flight, now_ns: int) -> None:
        self._cache.insert(flight.runs, flight.request.input_tokens)
        flight.prefill_done_ns = now_ns
        flight.stage = Stage.SLOT_QUEUE
        self._slots.append(flight)
        self._fill_slots(now_ns)

    def _fill_slots(self, now_ns: int) -> None:
        """Admit those who wait for decode memory, in their order, as far as it goes."""
        slots = self._slots
        while slots:
            flight = slots[0]
            request = flight.request
            place = self._residency.admit(request.context_id, flight.need_bytes, flight.runs)
            if place is None:
                return
            slots.popleft()
            flight.replica, flight.resident_tokens, past_tokens = place
            tokens = request.input_tokens
            window_tokens = self._kv.missing_window_tokens(tokens, flight.resident_tokens, past_tokens)
            # The answer starts from the last prompt token, so at least that one is handed over.
            flight.handoff_tokens = tokens - flight.resident_tokens or 1
            flight.window_tokens = window_tokens or 1
            flight.stage = Stage.LINK_QUEUE
            link = self._links[flight.replica]
            link.enter(flight, now_ns)
            self._arm(link, self._on_station)

    def _start_handoff(self, flight: Flight, now_ns: int) -> int:
        flight.stage = Stage.LINK
        flight.link_start_ns = now_ns
        transfer_bytes = self._kv.transfer_bytes(flight.handoff_tokens, flight.window_tokens)
        end_ns = now_ns + int(transfer_bytes / self._link_bytes_per_ns) + 1
        self._plan(end_ns + self._link_latency_ns, self._on_arrived, flight)
        return end_ns

    def _on_arrived(self, flight: Flight, now_ns: int) -> None:
        flight.arrived_ns = now_ns
        flight.stage = Stage.DECODE
        request = flight.request
        batch = self._batches[flight.replica]
        flight.draw = self._acceptance.draw(request.session_id, request.turn_id, request.output_tokens)
        batch.join(flight, now_ns)
        self._arm_batch(batch)

    def _on_first_token(self, flight: Flight, now_ns: int) -> None:
        self._out.append(FirstToken(flight.request.request_id, now_ns))

    def _on_batch(self, batch: Batch, now_ns: int) -> None:
        batch.armed_ns = None
        finished, cancelled = batch.wake()
        self._arm_batch(batch)
        for flight in finished:
            self._finish(flight, now_ns)
        for flight in cancelled:
            self._leave(flight, flight.request.input_tokens, flight.request.output_tokens)
        if self._slots and (finished or cancelled):
            self._fill_slots(now_ns)

    def _finish(self, flight: Flight, now_ns: int) -> None:
        request, epoch = flight.request, flight.epoch
        assert epoch is not None
        flight.stage = Stage.GONE
        del self._under_way[request.request_id]
        self._leave(flight, request.input_tokens, request.output_tokens)
        waited_ns = flight.prefill_start_ns - flight.submitted_ns
        phases = Phases(
            queue_ns=waited_ns + flight.link_start_ns - flight.prefill_done_ns,
            prefill_ns=flight.prefill_done_ns - flight.prefill_start_ns,
            handoff_ns=flight.arrived_ns - flight.link_start_ns,
            decode_ns=now_ns - flight.arrived_ns,
        )
        self._out.append(
            Finished(
                request_id=request.request_id,
                at_ns=now_ns,
                first_token_at_ns=flight.first_token_ns,
                phases=phases,
                cached_tokens=flight.cached_tokens,
                handoff_tokens=flight.handoff_tokens,
                output_tokens=request.output_tokens,
                steps=flight.draw[0],
                replica=flight.replica,
                arrivals=Timeline(epoch, flight.join_step, flight.draw, request.output_tokens),
            )
        )

    def _leave(self, flight: Flight, resident_tokens: int, past_tokens: int | None) -> None:
        """Give back a stream's bytes but for those of its context, see `Resident`."""
        tokens, kept_bytes = flight.request.input_tokens, flight.need_bytes
        if resident_tokens < tokens:
            kept_bytes = self._kv.stream_bytes(resident_tokens)
        resident = Resident(kept_bytes, flight.runs, tokens, resident_tokens, past_tokens)
        self._residency.end(flight.replica, flight.request.context_id, flight.need_bytes, resident)

    def _refusal(self, request: EngineRequest, need_bytes: int, now_ns: int) -> Rejected:
        """Say why a request can never be served."""
        tokens = request.input_tokens + request.output_tokens
        asked = f"{request.input_tokens} prompt + {request.output_tokens} output = {tokens} tokens"
        if tokens > self._max_context:
            code, message = "context_length_exceeded", f"{asked}; the model's context is {self._max_context}"
        else:
            kv, room = self._kv, self._residency.capacity_bytes
            code = "insufficient_memory"
            message = (
                f"{asked} x {kv.bytes_per_token} B + {kv.window_bytes / 1e9:.3f} GB of sliding window = "
                f"{need_bytes / 1e9:.3f} GB of KV; a decode replica has {room / 1e9:.3f} GB"
            )
        return Rejected(request_id=request.request_id, at_ns=now_ns, code=code, message=message)


def build_engine(deployment: Deployment, seed: int) -> Engine:
    """An engine for a deployment; `seed`, session and turn determine every draw."""
    return SimEngine(deployment, seed)
