"""How requests move through the prefill pool, the links and the decode replicas.

With a prefill pool a request is prefilled there, waits with its KV in the pool's HBM for room in a replica,
crosses that replica's link and decodes in its batch. Without one it waits for room in a replica, and its
prefill is cut into chunks that lengthen that replica's steps. Every wait is an event in one heap.
"""

from __future__ import annotations

from collections.abc import Callable

from agentload_simbackend._api import Arrival, ArrivalsFunction, Emission, Failed, Finished, FirstToken
from agentload_simbackend._batch import Batch
from agentload_simbackend._error_codes import REPLICA_FAILED
from agentload_simbackend._events import Events
from agentload_simbackend._flight import Flight, Stage, Timeline
from agentload_simbackend._prefill_pool import PrefillPool
from agentload_simbackend._replica import Replica
from agentload_simbackend._residency import Place, Residency, Resident
from agentload_simbackend._router import Router
from agentload_simbackend._setup import Setup
from agentload_simbackend._shared_link import SharedLink


class Serving:
    """The state of the deployment, and what moves requests from stage to stage."""

    def __init__(self, setup: Setup) -> None:
        plan, rules = setup.plan, setup.rules
        self.events = Events()
        self.out: list[Emission] = []
        self.under_way: dict[int, Flight] = {}
        self.kv = setup.kv
        self.residency = Residency(
            len(plan.replicas), rules.kv_policy, rules.keep_ns, by_work=plan.prefill is None
        )
        self.replicas = [
            Replica(index, each, memory, setup.replan)
            for index, (each, memory) in enumerate(zip(plan.replicas, self.residency.memories, strict=True))
        ]
        self.router = Router(rules, self.replicas, self.residency)
        self.pool = None if plan.prefill is None else PrefillPool(plan.prefill, self.events, self.enter_slots)
        self._acceptance = setup.acceptance
        self.on_empty: Callable[[Replica, int], None] = _nothing
        """Called with a replica that is to be planned anew, and the time, when its last stream has left."""

    def enter(self, flight: Flight, now_ns: int) -> None:
        """Let a request begin its way."""
        self.under_way[flight.request.request_id] = flight
        if self.pool is None:
            self.enter_slots(flight, now_ns)
        else:
            self.pool.enter(flight, now_ns)

    def enter_slots(self, flight: Flight, now_ns: int) -> None:
        """Look for room in a replica, or wait for it."""
        router = self.router
        flight.move(Stage.SLOT_QUEUE, now_ns)
        if flight.tokens > router.ever_tokens:
            self.fail_lost([flight], now_ns)
            return
        place = router.take_kept(flight, now_ns) or router.take_at_once(flight, now_ns)
        if place is not None:
            self._admit(flight, place, now_ns)
            return
        router.wait(flight)
        if router.spills and not flight.may_spill:
            self.events.plan(now_ns + router.rules.spill_after_ns, self._on_spill, flight)
        self.fill_slots(now_ns)

    def fill_slots(self, now_ns: int) -> None:
        """Admit those who wait for room, as far as it goes."""
        router = self.router
        if router.waiting:
            for flight, place in router.serve(now_ns):
                self._admit(flight, place, now_ns)
        else:
            router.wake_ns = None
        self.events.arm(router, self._on_expiry)

    def withdraw(self, flight: Flight, now_ns: int) -> None:
        """Take a request out of where it is; its room is free at once, or with the decode step under way.

        Of its context that stays resident which was handed over or was there before, of a hand-off that is
        cut off without the sliding windows.
        """
        stage, pool = flight.stage, self.pool
        flight.move(Stage.GONE, now_ns)
        flight.event_seq = -1
        if pool is not None:
            pool.release(flight, now_ns)
        if stage <= Stage.PREFILL:
            assert pool is not None
            pool.drop(flight, now_ns, waiting=stage == Stage.PREFILL_QUEUE)
        elif stage == Stage.SLOT_QUEUE:
            self.router.drop(flight)
            self.fill_slots(now_ns)
        elif stage == Stage.LINK:
            link = self.replicas[flight.replica].link
            assert link is not None
            link.leave(flight, now_ns)
            self.events.arm(link, self._on_link)
            self._leave(flight, now_ns)
            self.fill_slots(now_ns)
        else:
            if stage != Stage.DECODE:
                self._count_prompt(flight, -1)
            batch = self.replicas[flight.replica].batch
            if batch.leave(flight, now_ns):
                self._leave(flight, now_ns)
                self.fill_slots(now_ns)
            self._arm_batch(batch)

    def fail(self, flight: Flight, code: str, message: str, now_ns: int) -> None:
        """Say that a fault has ended a request; the caller sees to what it holds."""
        request, replica = flight.request, None if flight.replica < 0 else self.replicas[flight.replica]
        steps = 0 if replica is None else replica.batch.steps_of(flight, now_ns)
        tokens = 0
        arrivals: ArrivalsFunction = list[Arrival]
        if steps and flight.epoch is not None:
            tokens = flight.token_totals()[steps - 1]
            arrivals = Timeline(flight.epoch, flight.join_step, flight.draw, request.output_tokens, steps)
        flight.move(flight.stage, now_ns)
        flight.event_seq = -1
        del self.under_way[request.request_id]
        if self.pool is not None:
            self.pool.release(flight, now_ns)
        self.out.append(
            Failed(
                request_id=request.request_id,
                at_ns=now_ns,
                code=code,
                message=message,
                phases=flight.phases(),
                first_token_at_ns=flight.first_token_ns if steps else None,
                output_tokens=tokens,
                replica=None if replica is None else replica.index,
                arrivals=arrivals,
            )
        )

    def fail_all(self, replica: Replica, code: str, message: str, now_ns: int) -> None:
        """End all requests that are in a replica; its memory is to be emptied next."""
        for flight in [each for each in self.under_way.values() if each.replica == replica.index]:
            self.fail(flight, code, message, now_ns)
            flight.stage = Stage.GONE

    def fail_lost(self, flights: list[Flight], now_ns: int) -> None:
        """End requests that no replica will ever serve, and that wait nowhere any more."""
        for flight in flights:
            message = f"no replica that can hold its {flight.tokens} tokens is up or comes back"
            self.fail(flight, REPLICA_FAILED, message, now_ns)
            flight.stage = Stage.GONE

    @property
    def waiting(self) -> int:
        """How many requests wait to begin: for prefill, or for room in a replica."""
        return self.router.waiting + (0 if self.pool is None else len(self.pool.station.queue))

    def arm(self, replica: Replica) -> None:
        """Plan what a replica's link and batch want after a change from outside."""
        if replica.link is not None:
            self.events.arm(replica.link, self._on_link)
        self._arm_batch(replica.batch)

    def _admit(self, flight: Flight, place: Place, now_ns: int) -> None:
        """Send a request that has its room on: over the link, or to be prefilled there."""
        flight.event_seq = -1
        flight.replica, flight.resident_tokens, past_tokens = place
        tokens, replica = flight.request.input_tokens, self.replicas[flight.replica]
        link = replica.link
        if link is None:
            self._prefill_there(flight, replica, now_ns)
            return
        # The answer starts from the last prompt token, so at least that one is handed over.
        flight.handoff_tokens = tokens - flight.resident_tokens or 1
        window_tokens = self.kv.missing_window_tokens(tokens, flight.resident_tokens, past_tokens) or 1
        flight.move(Stage.LINK, now_ns)
        link.enter(flight, self.kv.transfer_bytes(flight.handoff_tokens, window_tokens), now_ns)
        self.events.arm(link, self._on_link)

    def _prefill_there(self, flight: Flight, replica: Replica, now_ns: int) -> None:
        """Prefill what of the prompt is not resident, in chunks; the last token is computed anew at least.

        Windows and states are taken to be there for where the resident part ends.
        """
        chunked, tokens = replica.plan.chunked, flight.request.input_tokens
        assert chunked is not None
        flight.cached_tokens = min(flight.resident_tokens, tokens - 1)
        flight.chunks = chunked.plan(flight.cached_tokens, tokens - flight.cached_tokens)
        self._count_prompt(flight, 1)
        flight.move(Stage.CHUNK_QUEUE, now_ns)
        replica.batch.prefill(flight, now_ns)
        self._arm_batch(replica.batch)

    def _count_prompt(self, flight: Flight, sign: int) -> None:
        """Keep count of the tokens that a replica has yet to prefill."""
        memory = self.replicas[flight.replica].memory
        memory.queued_tokens += sign * (flight.request.input_tokens - flight.cached_tokens)

    def _on_spill(self, flight: Flight, now_ns: int) -> None:
        flight.event_seq = -1
        self.router.let_spill(flight)
        self.fill_slots(now_ns)

    def _on_expiry(self, router: Router, now_ns: int) -> None:
        router.armed_ns = None
        self.fill_slots(now_ns)

    def _on_link(self, link: SharedLink[Flight], now_ns: int) -> None:
        link.armed_ns = None
        pool = self.pool
        assert pool is not None
        for flight in link.serve(now_ns):
            self.events.plan(now_ns + link.latency_ns, self._on_arrived, flight)
            pool.release(flight, now_ns)
        self.events.arm(link, self._on_link)

    def _on_prefilled_there(self, flight: Flight, now_ns: int) -> None:
        self._count_prompt(flight, -1)
        self._on_arrived(flight, now_ns)

    def _on_arrived(self, flight: Flight, now_ns: int) -> None:
        flight.event_seq = -1
        flight.move(Stage.DECODE, now_ns)
        request, batch = flight.request, self.replicas[flight.replica].batch
        flight.resident_tokens, flight.past_tokens = request.input_tokens, request.output_tokens
        acceptance = self._acceptance.of(request.content)
        flight.draw = acceptance.draw(request.session_id, request.turn_id, request.output_tokens)
        batch.join(flight, now_ns)
        self._arm_batch(batch)

    def _arm_batch(self, batch: Batch) -> None:
        """Plan the first tokens of who has started, then the batch itself."""
        if batch.started:
            for flight in batch.started:
                self.events.plan(flight.first_token_ns, self._on_first_token, flight)
            batch.started.clear()
        self.events.arm(batch, self._on_batch)

    def _on_first_token(self, flight: Flight, now_ns: int) -> None:
        flight.event_seq = -1
        self.out.append(FirstToken(flight.request.request_id, now_ns))

    def _on_batch(self, batch: Batch, now_ns: int) -> None:
        batch.armed_ns = None
        finished, gone, prefilled = batch.wake()
        if prefilled is not None:
            chunked = self.replicas[prefilled.replica].plan.chunked
            assert chunked is not None
            self.events.plan(now_ns + chunked.latency_ns, self._on_prefilled_there, prefilled)
        self._arm_batch(batch)
        for flight in finished:
            self._finish(flight, now_ns)
        for flight in gone:
            self._leave(flight, now_ns)
        if finished or gone:
            self.fill_slots(now_ns)

    def _finish(self, flight: Flight, now_ns: int) -> None:
        request, epoch = flight.request, flight.epoch
        assert epoch is not None
        flight.move(Stage.GONE, now_ns)
        del self.under_way[request.request_id]
        self._leave(flight, now_ns)
        steps = flight.draw[0]
        self.out.append(
            Finished(
                request_id=request.request_id,
                at_ns=now_ns,
                first_token_at_ns=flight.first_token_ns,
                phases=flight.phases(),
                cached_tokens=flight.cached_tokens,
                handoff_tokens=flight.handoff_tokens,
                output_tokens=request.output_tokens,
                steps=steps,
                replica=flight.replica,
                arrivals=Timeline(epoch, flight.join_step, flight.draw, request.output_tokens, steps),
            )
        )

    def _leave(self, flight: Flight, now_ns: int) -> None:
        """Give back a stream's room but for that of its context, see `Resident`."""
        request, kept_tokens = flight.request, flight.tokens
        if flight.resident_tokens < request.input_tokens:
            kept_tokens = flight.resident_tokens
        resident = Resident(
            kept_tokens, flight.runs, request.input_tokens, flight.resident_tokens, flight.past_tokens
        )
        self.residency.end(flight.replica, request.context_id, flight.tokens, resident, now_ns)
        replica = self.replicas[flight.replica]
        if replica.replan_ns is not None and not replica.memory.streams:
            self.on_empty(replica, now_ns)


def _nothing(_replica: Replica, _now_ns: int) -> None:
    """What follows where no fault has a replica planned anew."""
