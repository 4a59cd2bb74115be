"""Prefill in the decode replica itself: chunks that lengthen its steps, residency as the prefix cache."""

from __future__ import annotations

from itertools import pairwise

import pytest
from engine_driving import answer, drive, finished_by_id, request, roomy
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_simbackend import LatencyClass, PromptRun, build_engine, load_deployment
from agentload_simbackend._engine import SimEngine

MS = 1_000_000
S = 1_000_000_000
NAMES = ["gemma4-31b/lpx", "gemma4-31b/rubin-aggregated", "nemotron-3-super-120b-a12b/lpx"]


@pytest.mark.parametrize("name", NAMES)
def test_prefill_of_a_lone_prompt_is_its_chunks_and_the_constant(name: str) -> None:
    setup = roomy(name)
    chunked = setup.plan.replicas[0].chunked
    assert chunked is not None
    done = answer(SimEngine(setup), request(0, 100_000, 10), 0)
    chunks, first_ns, growth_ns = chunked.plan(0, 100_000)
    compute_ns = chunks * (first_ns + growth_ns * (chunks - 1) / 2)
    assert done.phases.prefill_ns == pytest.approx(compute_ns + chunked.latency_ns, abs=2)
    assert (done.phases.queue_ns, done.phases.handoff_ns, done.handoff_tokens) == (0, 0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_resident_context_needs_only_its_new_tokens(name: str) -> None:
    engine = build_engine(load_deployment(name), 0)
    first = answer(engine, request(0, 50_000, 10, context="a"), 0)
    second = answer(engine, request(1, 52_000, 10, context="a"), 10 * S)
    other = answer(engine, request(2, 52_000, 10, context="b", runs=[PromptRun("a", 52_000)]), 20 * S)
    assert (first.cached_tokens, second.cached_tokens, other.cached_tokens) == (0, 50_000, 0)
    assert first.replica == second.replica
    assert second.phases.prefill_ns < first.phases.prefill_ns / 3


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_a_replica_are_prefilled_one_after_the_other(name: str) -> None:
    setup = roomy(name)
    chunked = setup.plan.replicas[0].chunked
    assert chunked is not None
    done = finished_by_id(drive(SimEngine(setup), [(0, request(index, 20_000, 1)) for index in range(4)]))
    prefills = [done[index].phases.prefill_ns - chunked.latency_ns for index in range(4)]
    for index, (before, after) in enumerate(pairwise(done.values())):
        assert (before.request_id, after.request_id) == (index, index + 1)
        assert after.phases.queue_ns == sum(prefills[: index + 1])
    # Others may decode one step meanwhile, which lengthens the chunks beside it.
    assert min(prefills) == prefills[0]


def test_interactive_prompts_are_prefilled_first() -> None:
    engine = SimEngine(roomy("gemma4-31b/lpx", allowance_ns={"interactive": 0, "batch": 30 * S}))
    classes: list[LatencyClass] = ["batch", "batch", "interactive"]
    asked = [
        (index, request(index, 20_000, 1, latency_class=latency_class))
        for index, latency_class in enumerate(classes)
    ]
    done = finished_by_id(drive(engine, asked))
    assert done[0].phases.queue_ns < done[2].phases.queue_ns < done[1].phases.queue_ns


@settings(max_examples=30)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 400 * MS), st.integers(1, 30_000)), min_size=1, max_size=4),
)
def test_chunks_lengthen_the_steps_of_others_by_what_they_take(
    name: str, prompts: list[tuple[int, int]]
) -> None:
    """A stream that decodes alone but for prompts of others is late by their chunks, and by no more.

    The others' answers are one token long and come after the stream's end: it is the prompts alone.
    """
    setup = roomy(name)
    plan = setup.plan.replicas[0]
    chunked = plan.chunked
    assert chunked is not None
    late = type(chunked)(chunked._compute_s, chunked.chunk_tokens, 10_000 * S)
    replica = plan._replace(chunked=late)
    setup = setup._replace(plan=setup.plan._replace(replicas=(replica,)))
    long = request(0, 1_000, 30_000)
    alone = answer(SimEngine(setup), long, 0)
    start_ns = 10_001 * S
    asked = [
        (start_ns + at_ns, request(1 + index, tokens, 1)) for index, (at_ns, tokens) in enumerate(prompts)
    ]
    done = finished_by_id(drive(SimEngine(setup), [(0, long), *asked]))[0]
    chunks_ns = 0.0
    for _, tokens in prompts:
        chunks, first_ns, growth_ns = late.plan(0, tokens)
        chunks_ns += chunks * (first_ns + growth_ns * (chunks - 1) / 2)
    assert done.steps == alone.steps
    assert done.at_ns - alone.at_ns == pytest.approx(chunks_ns, abs=2 + 4 * len(prompts))


def test_no_more_events_for_more_chunks() -> None:
    counts = []
    for tokens in (20_000, 200_000):
        engine = build_engine(load_deployment("gemma4-31b/rubin-aggregated"), 0)
        engine.submit(request(0, tokens, 1), 0)
        events = 0
        while (at_ns := engine.next_event_ns()) is not None:
            engine.advance(at_ns)
            events += 1
        counts.append(events)
    assert counts[0] == counts[1] <= 5


def test_a_context_leaves_its_replica_where_the_queue_is_longer_than_what_it_saves() -> None:
    """a is resident in one replica, and another prompt is prefilled there, b in the other one."""
    for there, elsewhere, stays in ((20_000, 19_000, True), (60_000, 20_000, False)):
        engine = SimEngine(roomy("gemma4-31b/lpx", replicas=2))
        home = answer(engine, request(0, 30_000, 10, context="a"), 0).replica
        asked = [
            (10 * S, request(1, there, 10, context="c")),
            (10 * S + 1, request(2, elsewhere, 10, context="b")),
            (10 * S + 2, request(3, 31_000, 10, context="a")),
        ]
        done = finished_by_id(drive(engine, asked))
        assert [home, done[1].replica, done[2].replica] == [0, 0, 1]
        assert done[3].replica == (0 if stays else 1)
        assert done[3].cached_tokens == (30_000 if stays else 0)


@pytest.mark.parametrize("at_ms", [0, 20, 200, 599, 700])
def test_a_cancelled_prompt_leaves_the_replica_to_the_next(at_ms: int) -> None:
    engine = build_engine(load_deployment("gemma4-31b/lpx"), 0)
    asked = [
        (0, request(0, 100_000, 1_000)),
        (1, request(1, 100_000, 1_000)),
        (2, request(2, 100_000, 1_000)),
    ]
    emissions = drive(engine, asked, cancels=[(at_ms * MS + 3, 0), (at_ms * MS + 3, 1)])
    assert finished_by_id(emissions).keys() == {2}
    assert engine.next_step_ns() is None
