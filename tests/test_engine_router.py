"""Order of the queues, placement, admission, spill, and what becomes of KV between turns."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driving import answer, drive, finished_by_id, request, roomy
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_simbackend import (
    Emission,
    EngineRequest,
    Finished,
    LatencyClass,
    Rejected,
    build_engine,
    load_deployment,
)
from agentload_simbackend._engine import SimEngine
from agentload_simbackend._residency import Residency

MS = 1_000_000
S = 1_000_000_000
ALLOWANCES = {"interactive": 0, "standard": 2 * S, "batch": 30 * S}


def slot_start_ns(done: Finished) -> int:
    """When it got its room in a replica."""
    return done.at_ns - done.phases.decode_ns - done.phases.handoff_ns


def order_of_slots(emissions: list[Emission]) -> list[int]:
    done = finished_by_id(emissions)
    return sorted(done, key=lambda number: slot_start_ns(done[number]))


def test_interactive_requests_go_before_standard_and_batch_ones() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=30_000, allowance_ns=ALLOWANCES))
    asked = [(0, request(0, 10_000, 15_000))]
    classes: list[LatencyClass] = ["batch", "batch", "standard", "interactive", "interactive"]
    for index, latency_class in enumerate(classes):
        asked.append((S + index, request(1 + index, 19_000, 1_000, latency_class=latency_class)))
    assert order_of_slots(drive(engine, asked)) == [0, 4, 5, 3, 1, 2]


def test_the_queue_for_prefill_is_in_the_same_order() -> None:
    setup = roomy("gemma4-31b/pd", allowance_ns=ALLOWANCES)
    assert setup.plan.prefill is not None
    prefill = setup.plan.prefill._replace(instances=1)
    engine = SimEngine(setup._replace(plan=setup.plan._replace(prefill=prefill)))
    asked = [(0, request(0, 100_000, 10))]
    asked += [(MS, request(1, 50_000, 10, latency_class="batch"))]
    asked += [(2 * MS, request(2, 50_000, 10, latency_class="interactive"))]
    done = finished_by_id(drive(engine, asked))
    assert done[2].phases.queue_ns < done[1].phases.queue_ns


def test_nobody_waits_for_ever() -> None:
    """A batch request goes before all interactive ones that come after its allowance is over."""
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=30_000, allowance_ns=ALLOWANCES))
    asked = [(0, request(0, 10_000, 15_000)), (1, request(1, 10_000, 10_000, latency_class="batch"))]
    asked += [
        (S * index, request(1 + index, 10_000, 10_000, latency_class="interactive")) for index in range(1, 60)
    ]
    done = finished_by_id(drive(engine, asked))
    assert len(done) == 61
    later = [number for number in range(2, 61) if slot_start_ns(done[number]) > slot_start_ns(done[1])]
    assert 1 <= min(later) - 1 <= 31
    assert later == list(range(min(later), 61))
    assert slot_start_ns(done[1]) > 20 * S


def test_a_large_request_is_not_starved_by_small_ones_and_holds_up_only_its_replica() -> None:
    setup = roomy("gemma4-31b/pd", tokens=60_000, streams=3, replicas=2)
    small = setup.plan.replicas[1]
    pools = (small.pools[0]._replace(capacity_bytes=setup.kv.stream_bytes(25_000)),)
    plan = setup.plan._replace(replicas=(setup.plan.replicas[0], small._replace(pools=pools)))
    engine = SimEngine(setup._replace(plan=plan))
    asked = [
        (0, request(0, 40_000, 15_000)),
        # Fits only the first replica, and not beside what decodes there.
        (2 * S, request(1, 40_000, 1_000)),
        (3 * S, request(2, 10_000, 1_000)),
        (4 * S, request(3, 1_000, 3_000)),
    ]
    done = finished_by_id(drive(engine, asked))
    assert slot_start_ns(done[1]) == done[0].at_ns
    assert [done[number].replica for number in range(4)] == [0, 0, 1, 1]
    assert done[2].phases.queue_ns == 0
    assert done[0].at_ns > 4 * S


def test_one_too_many_is_told_when_to_come_back() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=30_000, most_waiting=2, retry_after_s=1.5))
    asked = [(index * S, request(index, 10_000, 19_000)) for index in range(4)]
    emissions = drive(engine, asked)
    (rejected,) = (each for each in emissions if isinstance(each, Rejected))
    assert (rejected.request_id, rejected.status, rejected.code) == (3, 429, "rate_limit_exceeded")
    assert rejected.retry_after_s == 1.5
    assert finished_by_id(emissions).keys() == {0, 1, 2}


def test_who_waits_too_long_for_lpx_is_served_by_the_spill_side() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd-spill", tokens=30_000, spill_after_ns=S))
    asked = [(0, request(0, 10_000, 19_000)), (S, request(1, 10_000, 1_000))]
    done = finished_by_id(drive(engine, asked))
    assert [done[number].replica for number in (0, 1)] == [0, 1]
    ready_ns = S + done[1].phases.prefill_ns
    assert slot_start_ns(done[1]) == ready_ns + S


def test_what_never_fits_lpx_spills_at_once_and_what_fits_does_not() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd-spill", tokens=30_000, spill_after_ns=1_000 * S))
    asked = [
        (0, request(0, 10_000, 19_000)),
        (S, request(1, 30_000, 1)),
        (2 * S, request(2, 10_000, 1_000)),
    ]
    done = finished_by_id(drive(engine, asked))
    assert done[1].replica > 0
    assert done[1].phases.queue_ns == 0
    assert done[2].replica == 0
    assert slot_start_ns(done[2]) == done[0].at_ns


def test_kept_room_is_not_taken_before_its_time_is_over() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=30_000, kv_policy="keep", keep_ns=20 * S))
    asked = [(0, request(0, 10_000, 1_000, context="a")), (5 * S, request(1, 20_000, 1_000, context="b"))]
    done = finished_by_id(drive(engine, asked))
    assert slot_start_ns(done[1]) == done[0].at_ns + 20 * S


def test_a_context_comes_back_to_its_kept_room_past_those_who_wait() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=30_000, kv_policy="keep", keep_ns=20 * S))
    asked = [
        (0, request(0, 10_000, 1_000, context="a")),
        (5 * S, request(1, 20_000, 1_000, context="b")),
        (10 * S, request(2, 20_000, 1_000, context="a")),
    ]
    done = finished_by_id(drive(engine, asked))
    assert (done[2].phases.queue_ns, done[2].handoff_tokens) == (0, 10_000)
    assert slot_start_ns(done[1]) == done[2].at_ns + 20 * S


def test_a_context_that_outgrew_its_kept_room_waits_like_others() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=40_000, streams=2, kv_policy="keep", keep_ns=20 * S))
    asked = [
        (0, request(0, 10_000, 1_000, context="a")),
        (5 * S, request(1, 20_000, 1_000, context="b")),
        (10 * S, request(2, 30_000, 1_000, context="a")),
    ]
    done = finished_by_id(drive(engine, asked))
    # Its own room is kept until 20 s after its turn, b's until 20 s after b's: then both are free for it.
    assert slot_start_ns(done[2]) == done[1].at_ns + 20 * S
    assert done[2].handoff_tokens == 20_000


@pytest.mark.parametrize(("policy", "handed"), [("evict", 1_000), ("keep", 1_000), ("drop", 11_000)])
def test_what_the_next_turn_pays(policy: str, handed: int) -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", kv_policy=policy, keep_ns=S))
    answer(engine, request(0, 10_000, 100, context="a"), 0)
    assert answer(engine, request(1, 11_000, 100, context="a"), 30 * S).handoff_tokens == handed


def turns_among_others(policy: str) -> tuple[list[Finished], list[Finished]]:
    """A session whose tools take 30 s, among twenty others, in room for four: its turns, and the others'."""
    setup = roomy("gemma4-31b/pd", tokens=110_000, streams=4, kv_policy=policy, keep_ns=60 * S)
    engine = SimEngine(setup)
    asked: list[tuple[int, EngineRequest]] = [
        (30 * S * turn, request(turn, 20_000 + 500 * turn, 200, context="slow")) for turn in range(5)
    ]
    for other in range(20):
        asked += [
            (
                S + 7 * S * turn + other * 300 * MS,
                request(100 + 20 * turn + other, 20_000 + 500 * turn, 200, context=f"other {other}"),
            )
            for turn in range(15)
        ]
    done = finished_by_id(drive(engine, asked))
    assert len(done) == len(asked)
    return [done[turn] for turn in range(5)], [each for number, each in done.items() if number >= 100]


def test_a_session_with_slow_tools_is_evicted_or_kept_at_the_cost_of_others() -> None:
    slow, others = turns_among_others("evict")
    assert [turn.handoff_tokens for turn in slow] == [20_000 + 500 * turn for turn in range(5)]
    queued_ns = sum(other.phases.queue_ns for other in others)
    slow, others = turns_among_others("keep")
    assert [turn.handoff_tokens for turn in slow] == [20_000, 500, 500, 500, 500]
    assert sum(other.phases.queue_ns for other in others) > queued_ns + 1_000 * S


def test_acceptance_is_that_of_the_content_class() -> None:
    deployment = load_deployment("gemma4-31b/pd")
    assert deployment.spec.speculation is not None
    steps = {}
    for content in (None, *deployment.spec.speculation.acceptance_length):
        engine = build_engine(deployment, 0)
        steps[content] = answer(engine, request(0, 100, 20_000, content=content), 0).steps
    assert steps[None] == steps[deployment.spec.speculation.content]
    assert steps["coding"] < 0.9 * steps["general"]


def test_unknown_classes_are_named() -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    with pytest.raises(ValueError, match='content class "poetry", must be one of general, coding'):
        engine.submit(request(0, 10, 10, content="poetry"), 0)
    with pytest.raises(ValueError, match='latency class "vip", must be one of interactive'):
        engine.submit(request(0, 10, 10, latency_class="vip"), 0)  # type: ignore[arg-type]
    assert engine.next_event_ns() is None


def test_a_long_queue_does_not_look_at_replicas_that_are_too_small_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of tries to place a request grows with the requests, not with their square."""
    setup = roomy("gemma4-31b/pd", tokens=60_000, streams=1, replicas=2)
    small = setup.plan.replicas[1]
    pools = (small.pools[0]._replace(capacity_bytes=setup.kv.stream_bytes(25_000)),)
    plan = setup.plan._replace(replicas=(setup.plan.replicas[0], small._replace(pools=pools)))
    tries = 0
    admit = Residency.admit

    def counted(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        return admit(*args)

    monkeypatch.setattr(Residency, "admit", counted)
    asked = [(0, request(1_000, 1_000, 1_000))]
    asked += [(1, request(index, 1_000, 40_000)) for index in range(300)]
    assert len(finished_by_id(drive(SimEngine(setup._replace(plan=plan)), asked))) == 301
    assert tries < 5 * len(asked)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3 * S), st.sampled_from([2_000, 12_000, 28_000, 50_000])),
        min_size=2,
        max_size=25,
    )
)
def test_who_comes_first_of_those_that_fit_the_same_replicas_goes_first(
    asked: list[tuple[int, int]],
) -> None:
    setup = roomy("gemma4-31b/pd", tokens=60_000, streams=1, replicas=2)
    replica, other = setup.plan.replicas
    pools = (other.pools[0]._replace(capacity_bytes=setup.kv.stream_bytes(15_000)),)
    plan = setup.plan._replace(replicas=(replica, other._replace(pools=pools)))
    engine = SimEngine(setup._replace(plan=plan))
    requests = [(at_ns, request(index, 100, tokens)) for index, (at_ns, tokens) in enumerate(sorted(asked))]
    done = finished_by_id(drive(engine, requests))
    ready_ns = {number: slot_start_ns(each) for number, each in done.items()}
    for fits in (lambda tokens: tokens < 15_000, lambda tokens: tokens > 15_000):
        starts = [ready_ns[each.request_id] for _, each in requests if fits(each.output_tokens)]
        assert starts == sorted(starts)
