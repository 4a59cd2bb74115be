"""Every mode and family of models, under any faults: no request is lost, answered twice or out of time.

The memories are cut down to a few streams, so that requests queue, evict and spill.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import msgspec
from engine_ledger import LedgerLink
from engine_small import NAMES, base, contents
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentload_simbackend import (
    ChipsDown,
    Drain,
    Emission,
    EngineRequest,
    Failed,
    Fault,
    Finished,
    FirstToken,
    KvLoss,
    LatencyClass,
    LinkDown,
    PowerCap,
    PromptRun,
    Refuse,
    Rejected,
    Reset,
    Stall,
)
from agentload_simbackend._engine import SimEngine
from agentload_simbackend._flight import Stage
from agentload_simbackend._specs import KvPolicy
from agentload_traces import SpecError

MS = 1_000_000
S = 1_000_000_000


class Asked(NamedTuple):
    """A request, and how long after the last action it comes. common: its prompt begins as others do.

    content: number of the content class.
    """

    wait_ns: int
    context: str
    prompt: int
    output: int
    latency_class: LatencyClass
    common: bool
    content: int


requests = st.builds(
    Asked,
    wait_ns=st.sampled_from([0, 0, 1, 3 * MS, 60 * MS]),
    context=st.sampled_from("abcdef"),
    prompt=st.sampled_from([1, 9_000, 9_000, 24_000, 24_000, 25_000, 25_000, 70_000, 20_000_000]),
    output=st.sampled_from([1, 60, 900, 4_000]),
    latency_class=st.sampled_from(get_args(LatencyClass)),
    common=st.booleans(),
    content=st.integers(0, 3),
)
lasting = st.sampled_from([None, 0.001, 0.05, 0.4, 3.0])
replicas = st.sampled_from([None, None, 0, 1, 2])
faults = st.one_of(
    st.builds(
        ChipsDown,
        chips=st.sampled_from([1, 1, 2, 5, 10_000]),
        replan_s=st.sampled_from([0.0, 0.2, 2.0]),
        for_s=st.sampled_from([None, 0.05, 0.4, 3.0]),
        replica=replicas,
    ),
    st.builds(LinkDown, for_s=lasting, replica=replicas),
    st.builds(Drain, for_s=lasting, replica=replicas),
    st.builds(PowerCap, clock_fraction=st.sampled_from([0.1, 0.5, 1.0]), for_s=lasting, replica=replicas),
    st.builds(KvLoss, store=st.just("decode"), replica=replicas),
    st.just(KvLoss(store="prefix_cache")),
    st.builds(
        Refuse, status=st.sampled_from([429, 503]), share=st.sampled_from([0.5, 1.0]), for_s=st.just(0.1)
    ),
    st.builds(Stall, for_s=st.sampled_from([1e-9, 0.0003, 0.5]), replica=replicas),
    st.builds(Reset, share=st.sampled_from([0.0, 0.5, 1.0]), replica=replicas),
)


def told(emission: Emission) -> tuple[Any, ...]:
    """All that an emission says, its timeline too."""
    facts = {name: getattr(emission, name) for name in emission.__struct_fields__}
    if isinstance(emission, Finished | Failed):
        facts["arrivals"] = tuple(emission.arrivals())
    return type(emission).__name__, *facts.items()


class Engines(RuleBasedStateMachine):
    """One engine, told the time at any increments; at the end another plays the same from event to event."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.actions: list[tuple[int, str, Any]] = []
        self.asked: dict[int, tuple[int, EngineRequest]] = {}
        self.cancelled: dict[int, int] = {}
        self.emissions: list[Emission] = []
        self.ended: dict[int, Emission] = {}

    @initialize(
        name=st.sampled_from(NAMES),
        policy=st.sampled_from(["evict", "keep", "drop"]),
        most_waiting=st.sampled_from([None, None, 3]),
        timeline=st.lists(
            st.builds(msgspec.structs.replace, faults, at_s=st.sampled_from([0.0, 0.03, 0.25, 1.0, 4.0])),
            max_size=3,
        ),
        seed=st.integers(0, 2),
        asked=st.lists(requests, min_size=2, max_size=8),
    )
    def build(
        self,
        name: str,
        policy: KvPolicy,
        most_waiting: int | None,
        timeline: list[Fault],
        seed: int,
        asked: list[Asked],
    ) -> None:
        setup = base(name, seed)
        self.setup = setup._replace(
            rules=setup.rules._replace(
                kv_policy=policy,
                keep_ns=2 * S,
                most_waiting=most_waiting,
                spill_after_ns=50 * MS,
            )
        )
        self.contents = contents(name)
        self.timeline: Sequence[Fault] = [fault for fault in timeline if self.applies(fault)]
        self.engine = SimEngine(self.setup, self.timeline)
        self.links: list[LedgerLink] = []
        for replica in self.engine._serving.replicas:
            if replica.plan.links is not None:
                replica.link = LedgerLink(replica.plan.links.bytes_per_ns, replica.plan.links.latency_ns)
                self.links.append(replica.link)
        for each in asked:
            self.submit_one(each)

    def applies(self, fault: Fault) -> bool:
        try:
            SimEngine(self.setup, [fault])
        except SpecError:
            return False
        return True

    @rule(asked=st.lists(requests, min_size=1, max_size=6))
    def submit(self, asked: list[Asked]) -> None:
        for each in asked:
            self.submit_one(each)

    def submit_one(self, asked: Asked) -> None:
        self.pass_time(asked.wait_ns)
        number, context, prompt = len(self.asked), asked.context, asked.prompt
        runs = [PromptRun(context, prompt)]
        if asked.common:
            # Of many lengths: a prompt may also end within the part that another one shares.
            runs.insert(0, PromptRun("all", 1 + prompt % 900))
            if prompt % 5 == 0:
                del runs[1:]
        request = EngineRequest(
            request_id=number,
            session_id=context,
            turn_id=str(number),
            context_id=context,
            prompt_runs=runs,
            input_tokens=sum(run.tokens for run in runs),
            output_tokens=asked.output,
            latency_class=asked.latency_class,
            content=self.contents[asked.content % len(self.contents)],
        )
        self.asked[number] = self.now_ns, request
        self.actions.append((self.now_ns, "submit", request))
        self.engine.submit(request, self.now_ns)
        self.take(self.engine.advance(self.now_ns))

    @precondition(lambda self: self.asked)
    @rule(wait_ns=st.sampled_from([0, 1, 200_000, 40 * MS]), data=st.data())
    def cancel(self, wait_ns: int, data: st.DataObject) -> None:
        self.pass_time(wait_ns)
        number = data.draw(st.sampled_from(sorted(self.asked)))
        self.actions.append((self.now_ns, "cancel", number))
        self.engine.cancel(number, self.now_ns)
        if number not in self.ended:
            self.cancelled.setdefault(number, self.now_ns)
        self.take(self.engine.advance(self.now_ns))

    @rule(fault=faults, wait_ns=st.sampled_from([0, 1, 300_000, 20 * MS]))
    def inject(self, fault: Fault, wait_ns: int) -> None:
        self.pass_time(wait_ns)
        try:
            self.engine.inject(fault, self.now_ns)
        except SpecError as error:
            note(str(error))
            return
        self.actions.append((self.now_ns, "inject", fault))
        self.take(self.engine.advance(self.now_ns))

    @rule(wait_ns=st.one_of(st.integers(0, 30 * MS), st.integers(0, 5 * S)))
    def let_time_pass(self, wait_ns: int) -> None:
        self.pass_time(wait_ns)

    @rule(count=st.integers(1, 9), before=st.booleans())
    def go_to_events(self, count: int, before: bool) -> None:
        """Where changes meet: at an event, or a nanosecond before one."""
        for _ in range(count):
            event_ns = self.engine.next_event_ns()
            if event_ns is not None:
                self.pass_time(event_ns - self.now_ns)
        event_ns = self.engine.next_event_ns()
        if before and event_ns is not None and event_ns > self.now_ns:
            self.pass_time(event_ns - 1 - self.now_ns)

    def pass_time(self, wait_ns: int) -> None:
        self.now_ns += wait_ns
        self.take(self.engine.advance(self.now_ns))

    def take(self, emissions: list[Emission]) -> None:
        for each in emissions:
            assert each.at_ns <= self.now_ns
            assert not self.emissions or each.at_ns >= self.emissions[-1].at_ns
            assert each.request_id not in self.ended
            assert each.request_id not in self.cancelled
            self.emissions.append(each)
            if not isinstance(each, FirstToken):
                self.ended[each.request_id] = each

    @invariant()
    def memories_are_never_over_capacity(self) -> None:
        pool = self.engine._serving.pool
        for use in self.engine.occupancy():
            alone = pool is not None and pool._inside == 1 and use.name == "prefill HBM"
            assert use.used_bytes >= 0
            assert alone or use.used_bytes <= use.capacity_bytes, use

    @invariant()
    def memories_are_what_requests_and_contexts_take(self) -> None:
        serving = self.engine._serving
        for replica in serving.replicas:
            memory, batch = replica.memory, replica.batch
            here = [each for each in serving.under_way.values() if each.replica == replica.index]
            flights = here + batch._leaving
            assert memory.tokens == sum(flight.tokens for flight in flights)
            assert memory.streams == len(flights)
            to_prefill = [each for each in here if each.stage in (Stage.CHUNK_QUEUE, Stage.CHUNKS)]
            queued = [each.request.input_tokens - each.cached_tokens for each in to_prefill]
            assert memory.queued_tokens == sum(queued)
            assert memory.idle_tokens == sum(each.tokens for each in memory.idle.values())
            assert memory.kept_tokens == sum(each.tokens for each in memory.kept.values())
        if (pool := serving.pool) is None:
            return
        within = (Stage.PREFILL, Stage.SLOT_QUEUE)
        crossing = {flight for link in self.links for flight in link.on}
        inside = [each for each in serving.under_way.values() if each.stage in within or each in crossing]
        assert pool._inside == len(inside)
        assert {each for each in serving.under_way.values() if each.held_node is not None} == set(inside)
        assert pool.cache.reserved_bytes == sum(each.held_bytes for each in inside)
        for flight in inside:
            node = flight.held_node
            assert node is not None
            there = flight.held_bytes
            while node.parent is not None:
                assert not node.on_host
                there += node.bytes
                node = node.parent
            tokens = flight.request.input_tokens
            assert there >= pool._kv.transfer_bytes(tokens, tokens)

    @invariant()
    def who_is_under_way_has_something_to_wait_for(self) -> None:
        if self.asked.keys() - self.ended.keys() - self.cancelled.keys():
            event_ns = self.engine.next_event_ns()
            assert event_ns is not None
            assert event_ns >= self.now_ns

    @invariant()
    def progress_is_of_who_is_under_way(self) -> None:
        under_way = self.asked.keys() - self.ended.keys() - self.cancelled.keys()
        for number, tokens, at_ns in self.engine.progress(self.now_ns):
            assert number in under_way
            assert 0 < tokens < self.asked[number][1].output_tokens
            assert self.asked[number][0] < at_ns <= self.now_ns
        next_ns = self.engine.next_step_ns()
        assert next_ns is None or next_ns > self.now_ns

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5_000):
            event_ns = self.engine.next_event_ns()
            if event_ns is None:
                break
            self.pass_time(event_ns - self.now_ns)
            self.memories_are_never_over_capacity()
        else:
            raise AssertionError("it does not come to rest")
        assert self.ended.keys() | self.cancelled.keys() == self.asked.keys()
        for emission in self.ended.values():
            self.check_end(emission)
        if self.setup.rules.kv_policy == "drop":
            uses = [use for use in self.engine.occupancy() if use.name.startswith("replica")]
            assert not any(use.used_bytes for use in uses)
        self.check_link_bytes()
        assert self.played_again() == [told(each) for each in self.emissions]

    def check_end(self, emission: Emission) -> None:
        submitted_ns, request = self.asked[emission.request_id]
        firsts = [
            each.at_ns
            for each in self.emissions
            if isinstance(each, FirstToken) and each.request_id == emission.request_id
        ]
        if isinstance(emission, Rejected):
            assert (emission.at_ns, firsts) == (submitted_ns, [])
            return
        assert isinstance(emission, Finished | Failed)
        phases = emission.phases
        parts = (phases.queue_ns, phases.prefill_ns, phases.handoff_ns, phases.decode_ns)
        assert min(parts) >= 0
        assert sum(parts) == emission.at_ns - submitted_ns
        timeline = emission.arrivals()
        assert sum(arrival.tokens for arrival in timeline) == emission.output_tokens
        assert all(before.at_ns < after.at_ns for before, after in pairwise(timeline))
        assert firsts == ([timeline[0].at_ns] if timeline else [])
        assert emission.first_token_at_ns == (firsts[0] if firsts else None)
        if isinstance(emission, Finished):
            assert timeline[-1].at_ns == emission.at_ns
            assert len(timeline) == emission.steps
            assert emission.output_tokens == request.output_tokens
            assert 0 <= emission.cached_tokens < request.input_tokens
        else:
            assert emission.output_tokens < request.output_tokens
            assert not timeline or timeline[-1].at_ns <= emission.at_ns

    def check_link_bytes(self) -> None:
        """Each link carried what is whole, and of what was cut off as much as there was time for."""
        sent = self.engine.handed_over_bytes()
        assert [link.sent_bytes for link in self.links] == (sent if self.links else [])
        for link in self.links:
            link.check()
        if not self.links:
            return
        kv = self.setup.kv
        done = [each for each in self.ended.values() if isinstance(each, Finished)]
        others = self.asked.keys() - {each.request_id for each in done}
        most = sum(kv.transfer_bytes(each.handoff_tokens, 1 << 30) for each in done)
        most += sum(kv.stream_bytes(self.asked[number][1].input_tokens) for number in others)
        assert sum(kv.transfer_bytes(each.handoff_tokens, 1) for each in done) <= sum(sent) <= most

    def played_again(self) -> list[tuple[Any, ...]]:
        engine, out = SimEngine(self.setup, self.timeline), []
        for at_ns, what, value in self.actions:
            while emissions := engine.advance_to_emission(at_ns):
                out += emissions
            if what == "submit":
                engine.submit(value, at_ns)
            elif what == "cancel":
                engine.cancel(value, at_ns)
            else:
                engine.inject(value, at_ns)
        while emissions := engine.advance_to_emission(None):
            out += emissions
        return [told(each) for each in out]
