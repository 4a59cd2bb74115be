"""What each fault does, at which cost, and what overlapping ones do together."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from engine_driving import answer, drive, finished_by_id, request, roomy

from agentload_simbackend import (
    Arrival,
    ChipsDown,
    Drain,
    Emission,
    Failed,
    Fault,
    Finished,
    FirstToken,
    KvLoss,
    LinkDown,
    PowerCap,
    Refuse,
    Rejected,
    Reset,
    Stall,
    build_engine,
    load_deployment,
)
from agentload_simbackend._engine import SimEngine
from agentload_traces import SpecError

MS = 1_000_000
S = 1_000_000_000
ONE = "gemma4-31b/pd-1replica"
TWO = "gemma4-31b/pd"


def failed_by_id(emissions: list[Emission]) -> dict[int, Failed]:
    return {each.request_id: each for each in emissions if isinstance(each, Failed)}


def timeline(name: str = ONE) -> list[Arrival]:
    """Of a request of 1,000 tokens in and 20,000 out, sent at 0, undisturbed."""
    return answer(build_engine(load_deployment(name), 0), request(0, 1_000, 20_000), 0).arrivals()


def gaps(arrivals: list[Arrival]) -> list[int]:
    return [after.at_ns - before.at_ns for before, after in pairwise(arrivals)]


def test_failed_chips_end_what_is_in_their_group_and_nothing_else() -> None:
    engine = build_engine(load_deployment(TWO), 0)
    asked = [(index, request(index, 1_000, 20_000)) for index in range(4)]
    emissions = drive(engine, asked, injects=[(S, ChipsDown(chips=1, replica=0))])
    failed, done = failed_by_id(emissions), finished_by_id(emissions)
    assert failed.keys() | done.keys() == set(range(4))
    assert {each.replica for each in failed.values()} == {0}
    assert {each.replica for each in done.values()} == {1}
    for each in failed.values():
        assert (each.at_ns, each.code) == (S, "replica_failed")
        assert each.message == "replica 0 lost 1 chips; 127 of 128 chips are left"
        arrivals = each.arrivals()
        assert 0 < sum(arrival.tokens for arrival in arrivals) == each.output_tokens < 20_000
        assert arrivals[0].at_ns == each.first_token_at_ns
        assert S - 3 * MS < arrivals[-1].at_ns <= S


def test_what_had_come_by_then_is_what_would_have_come() -> None:
    whole = timeline()
    engine = build_engine(load_deployment(ONE), 0)
    fault = Reset(share=1.0)
    (failed,) = failed_by_id(
        drive(engine, [(0, request(0, 1_000, 20_000))], injects=[(whole[500].at_ns, fault)])
    ).values()
    assert failed.code == "connection_reset"
    assert failed.arrivals() == whole[:501]
    assert failed.first_token_at_ns == whole[0].at_ns


def test_a_group_serves_again_on_fewer_chips_once_it_is_planned_anew() -> None:
    engine = build_engine(load_deployment(ONE), 0)
    first = answer(engine, request(0, 50_000, 2_000, context="a"), 0)
    asked = [(20 * S, request(1, 50_000, 2_000, context="a"))]
    fault = ChipsDown(chips=60, replan_s=30.0)
    second = finished_by_id(drive(engine, asked, injects=[(10 * S, fault)]))[1]
    # Its context is lost, and it waits until the replica is there again.
    assert second.handoff_tokens == 50_000
    assert second.at_ns - second.phases.decode_ns - second.phases.handoff_ns == 40 * S
    per_step = [each.phases.decode_ns / each.steps for each in (first, second)]
    assert per_step[1] > per_step[0]


def test_a_group_too_small_for_the_weights_stays_down_until_chips_are_back() -> None:
    asked = [(0, request(0, 1_000, 20_000)), (11 * S, request(1, 1_000, 10))]
    lost = ChipsDown(chips=200, replan_s=5.0)
    emissions = drive(build_engine(load_deployment(ONE), 0), asked, injects=[(S, lost)])
    assert failed_by_id(emissions)[0].output_tokens > 0
    (rejected,) = (each for each in emissions if isinstance(each, Rejected))
    assert (rejected.request_id, rejected.status, rejected.code) == (1, 503, "service_unavailable")

    back = ChipsDown(chips=200, replan_s=5.0, for_s=60.0)
    emissions = drive(build_engine(load_deployment(ONE), 0), asked, injects=[(S, back)])
    done = finished_by_id(emissions)[1]
    assert done.at_ns - done.phases.decode_ns - done.phases.handoff_ns == (1 + 60 + 5) * S


def test_who_waits_for_a_replica_that_will_not_be_there_is_told() -> None:
    engine = SimEngine(roomy(TWO, tokens=30_000))
    asked = [(0, request(0, 1_000, 20_000)), (1, request(1, 10_000, 10))]
    emissions = drive(engine, asked, injects=[(S, Drain())])
    failed = failed_by_id(emissions)
    assert failed.keys() == {1}
    assert (failed[1].at_ns, failed[1].code, failed[1].replica) == (S, "replica_failed", None)
    assert failed[1].arrivals() == []
    assert failed[1].phases.queue_ns == S - 1 - failed[1].phases.prefill_ns
    assert finished_by_id(emissions).keys() == {0}


def test_chips_that_come_back_wait_for_who_is_served_to_end() -> None:
    engine = build_engine(load_deployment(ONE), 0)
    asked = [
        (10 * S, request(0, 1_000, 20_000)),
        (12 * S, request(1, 1_000, 10)),
    ]
    fault = ChipsDown(chips=60, replan_s=2.0, for_s=10.0)
    done = finished_by_id(drive(engine, asked, injects=[(S, fault)]))
    assert done[0].at_ns > 13 * S
    assert done[1].at_ns - done[1].phases.decode_ns - done[1].phases.handoff_ns == done[0].at_ns + 2 * S


def test_chips_that_are_down_add_up() -> None:
    deployment = load_deployment(TWO)

    def decode_ns(*faults: Fault) -> int:
        engine = build_engine(deployment, 0)
        for fault in faults:
            engine.inject(fault, 0)
        return answer(engine, request(0, 1_000, 2_000), 10 * S).phases.decode_ns

    both = decode_ns(*[ChipsDown(chips=4, replan_s=1.0)] * 2)
    assert both == decode_ns(ChipsDown(chips=8, replan_s=1.0)) > decode_ns()


def test_hand_offs_wait_for_a_link_that_is_down() -> None:
    undisturbed = answer(build_engine(load_deployment(ONE), 0), request(0, 200_000, 10), 0)
    link_ns = undisturbed.phases.prefill_ns + MS
    engine = build_engine(load_deployment(ONE), 0)
    asked = [(0, request(0, 200_000, 10))]
    done = finished_by_id(drive(engine, asked, injects=[(link_ns, LinkDown(for_s=2.0))]))[0]
    assert done.phases.handoff_ns == undisturbed.phases.handoff_ns + 2 * S
    assert done.at_ns == undisturbed.at_ns + 2 * S

    (failed,) = failed_by_id(
        drive(build_engine(load_deployment(ONE), 0), asked, injects=[(link_ns, LinkDown())])
    ).values()
    assert (failed.code, failed.at_ns) == ("link_failed", link_ns)
    assert failed.phases.handoff_ns == MS


def test_a_link_is_down_until_the_last_fault_is_over() -> None:
    engine = build_engine(load_deployment(ONE), 0)
    link_ns = answer(engine, request(0, 200_000, 10), 0).phases.prefill_ns + MS
    engine = build_engine(load_deployment(ONE), 0)
    injects = [
        (link_ns, LinkDown(for_s=2.0)),
        (link_ns + S, LinkDown(for_s=0.5)),
        (link_ns + S, LinkDown(for_s=3.0)),
    ]
    done = finished_by_id(drive(engine, [(0, request(0, 200_000, 10))], injects=injects))[0]
    assert done.phases.handoff_ns == pytest.approx(4 * S, abs=10 * MS)


def test_a_drained_replica_ends_what_it_has_and_takes_nothing() -> None:
    engine = build_engine(load_deployment(TWO), 0)
    asked = [
        (0, request(0, 1_000, 20_000, context="a")),
        (2 * S, request(1, 1_000, 10, context="b")),
        (40 * S, request(2, 1_000, 10, context="a")),
    ]
    done = finished_by_id(drive(engine, asked, injects=[(S, Drain(replica=0, for_s=20.0))]))
    assert [done[index].replica for index in range(3)] == [0, 1, 0]


def test_a_power_cap_makes_each_step_longer_from_the_next_one_on() -> None:
    whole = timeline()
    at_ns = whole[100].at_ns + 1
    engine = build_engine(load_deployment(ONE), 0)
    injects: list[tuple[int, Fault]] = [
        (at_ns, PowerCap(clock_fraction=0.5, for_s=1.0)),
        (at_ns, PowerCap(clock_fraction=0.8)),
    ]
    done = finished_by_id(drive(engine, [(0, request(0, 1_000, 20_000))], injects=injects))[0]
    found, usual = gaps(done.arrivals()), gaps(whole)
    assert found[:101] == usual[:101]
    # The lowest clock holds; when it is over, the other one.
    until = next(index for index, each in enumerate(done.arrivals()) if each.at_ns > at_ns + S)
    for index in range(101, until):
        assert found[index] == pytest.approx(2 * usual[index], abs=2)
    for index in range(until, len(found)):
        assert found[index] == pytest.approx(usual[index] / 0.8, abs=2)


def test_a_capped_replica_prefills_slower_too() -> None:
    setup = roomy("gemma4-31b/lpx")
    chunked = setup.plan.replicas[0].chunked
    assert chunked is not None
    prefill_ns = []
    for fault in (PowerCap(clock_fraction=1.0), PowerCap(clock_fraction=0.25)):
        engine = SimEngine(setup)
        engine.inject(fault, 0)
        prefill_ns.append(answer(engine, request(0, 50_000, 10), 0).phases.prefill_ns - chunked.latency_ns)
    assert prefill_ns[1] == pytest.approx(4 * prefill_ns[0], abs=4)


@pytest.mark.parametrize("offset_ns", [0, 1, 700_000])
def test_a_stall_delays_the_step_under_way_and_all_after_it(offset_ns: int) -> None:
    whole = timeline()
    at_ns = whole[100].at_ns + offset_ns
    engine = build_engine(load_deployment(ONE), 0)
    # The second begins within the first, and holds until 0.7 s after it began.
    injects = [(at_ns, Stall(for_s=0.5)), (at_ns + 300 * MS, Stall(for_s=0.4)), (at_ns, Stall(for_s=0.1))]
    done = finished_by_id(drive(engine, [(0, request(0, 1_000, 20_000))], injects=injects))[0]
    found = done.arrivals()
    assert found[:101] == whole[:101]
    for late, usual in zip(found[101:], whole[101:], strict=True):
        assert late.at_ns == pytest.approx(usual.at_ns + 700 * MS, abs=2)
        assert late.tokens == usual.tokens


def test_a_stream_that_joins_a_stalled_replica_waits() -> None:
    usual = answer(build_engine(load_deployment(ONE), 0), request(0, 1_000, 10), 0)
    engine = build_engine(load_deployment(ONE), 0)
    engine.inject(Stall(for_s=5.0), 0)
    late = answer(engine, request(0, 1_000, 10), 0)
    joined_ns = usual.at_ns - usual.phases.decode_ns
    assert late.first_token_at_ns == usual.first_token_at_ns + 5 * S - joined_ns
    assert late.at_ns == pytest.approx(usual.at_ns + 5 * S - joined_ns, abs=2)


def test_the_first_token_of_a_stalled_step_is_told_once_and_late() -> None:
    whole = timeline()
    engine = build_engine(load_deployment(ONE), 0)
    injects = [(whole[0].at_ns - 1, Stall(for_s=1.0))]
    emissions = drive(engine, [(0, request(0, 1_000, 20_000))], injects=injects)
    firsts = [each.at_ns for each in emissions if isinstance(each, FirstToken)]
    assert firsts == [whole[0].at_ns + S]


def test_lost_kv_is_handed_over_and_prefilled_again() -> None:
    engine = build_engine(load_deployment(ONE), 0)
    answer(engine, request(0, 50_000, 10, context="a"), 0)
    engine.inject(KvLoss(store="decode"), 10 * S)
    second = answer(engine, request(1, 51_000, 10, context="a"), 20 * S)
    assert (second.handoff_tokens, second.cached_tokens) == (51_000, 49_984)
    engine.inject(KvLoss(store="prefix_cache"), 30 * S)
    third = answer(engine, request(2, 52_000, 10, context="a"), 40 * S)
    assert (third.handoff_tokens, third.cached_tokens) == (1_000, 0)


def test_where_replicas_prefill_their_contexts_are_the_prefix_cache() -> None:
    engine = build_engine(load_deployment("gemma4-31b/lpx"), 0)
    answer(engine, request(0, 50_000, 10, context="a"), 0)
    engine.inject(KvLoss(store="prefix_cache"), 10 * S)
    assert answer(engine, request(1, 51_000, 10, context="a"), 20 * S).cached_tokens == 0


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (503, "service_unavailable")])
def test_a_share_of_requests_is_refused_while_it_lasts(status: int, code: str) -> None:
    fault = Refuse(status=status, share=0.3, retry_after_s=2.0, for_s=500.0)  # type: ignore[arg-type]
    asked = [(index * S, request(index, 10, 1)) for index in range(1_000)]
    refused = []
    for seed in (0, 0, 1):
        emissions = drive(build_engine(load_deployment(ONE), seed), asked, injects=[(0, fault)])
        rejected = [each for each in emissions if isinstance(each, Rejected)]
        assert {(each.status, each.code, each.retry_after_s) for each in rejected} == {(status, code, 2.0)}
        assert len(rejected) + len(finished_by_id(emissions)) == 1_000
        assert max(each.at_ns for each in rejected) <= 500 * S
        assert len(rejected) == pytest.approx(150, abs=40)
        refused.append([each.request_id for each in rejected])
    assert refused[0] == refused[1] != refused[2]


def test_a_reset_takes_a_share_of_those_that_decode() -> None:
    deployment = load_deployment("gemma4-31b/rubin")
    text = request(0, 100, 1).prompt_runs
    asked = [(index, request(index, 100, 5_000, runs=list(text))) for index in range(200)]
    emissions = drive(build_engine(deployment, 0), asked, injects=[(3 * S, Reset(share=0.25))])
    failed, done = failed_by_id(emissions), finished_by_id(emissions)
    assert len(failed) + len(done) == 200
    assert len(failed) == pytest.approx(50, abs=25)
    assert all(each.output_tokens for each in failed.values())


@pytest.mark.parametrize(
    "fault",
    [
        ChipsDown(chips=60, replan_s=1.0, for_s=3.0, at_s=1.5),
        LinkDown(for_s=0.7, at_s=0.9),
        PowerCap(clock_fraction=0.3, at_s=2.0),
        Stall(for_s=0.2, at_s=1.0),
        Reset(share=0.5, at_s=2.5),
        Drain(for_s=2.0, at_s=0.1),
    ],
)
def test_a_timeline_is_the_same_as_calls_at_its_times(fault: Fault) -> None:
    asked = [(index * 400 * MS + 1, request(index, 5_000, 2_000)) for index in range(12)]
    deployment = load_deployment(ONE)
    planned = drive(build_engine(deployment, 0, (fault,)), asked)
    called = drive(build_engine(deployment, 0), asked, injects=[(round(fault.at_s * S), fault)])

    def facts(emissions: list[Emission]) -> list[object]:
        return [
            (type(each), each.request_id, each.at_ns, each.arrivals() if isinstance(each, Finished) else None)
            for each in emissions
        ]

    assert facts(planned) == facts(called)


@pytest.mark.parametrize("kind", [ChipsDown(chips=1), Reset()])
def test_a_fault_in_the_nanosecond_of_a_first_token_comes_after_it(kind: Fault) -> None:
    whole = timeline()
    fault = msgspec.structs.replace(kind, at_s=whole[0].at_ns / S)
    first, failed = drive(build_engine(load_deployment(ONE), 0, (fault,)), [(0, request(0, 1_000, 20_000))])
    assert isinstance(first, FirstToken)
    assert isinstance(failed, Failed)
    assert first.at_ns == failed.at_ns == failed.first_token_at_ns == whole[0].at_ns
    assert failed.arrivals() == whole[:1]


@pytest.mark.parametrize("kind", [ChipsDown(chips=1), Reset()])
def test_a_fault_in_the_nanosecond_of_the_last_token_comes_after_it(kind: Fault) -> None:
    whole = timeline()
    fault = msgspec.structs.replace(kind, at_s=whole[-1].at_ns / S)
    emissions = drive(build_engine(load_deployment(ONE), 0, (fault,)), [(0, request(0, 1_000, 20_000))])
    assert finished_by_id(emissions)[0].arrivals() == whole
    assert failed_by_id(emissions) == {}


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        (ONE, Drain(replica=1), "drain: replica: is 1, must be 0 to 0"),
        ("gemma4-31b/lpx", LinkDown(), "link_down: there is no link"),
        (ONE, Stall(), "stall: for_s: missing"),
        (ONE, PowerCap(clock_fraction=0.0), "power_cap: clock_fraction: is 0"),
    ],
)
def test_a_fault_that_cannot_apply_is_named(name: str, fault: Fault, words: str) -> None:
    engine = build_engine(load_deployment(name), 0)
    with pytest.raises(SpecError, match=words):
        engine.inject(fault, 0)
    with pytest.raises(SpecError, match=words):
        build_engine(load_deployment(name), 0, (fault,))
    assert answer(engine, request(0, 10, 1), 0).output_tokens == 1
