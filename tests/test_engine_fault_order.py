"""When faults take hold, who is refused, and what outlives what."""

from __future__ import annotations

import msgspec
import pytest
from engine_driving import answer, drive, finished_by_id, request, roomy

from agentload_simbackend import (
    ChipsDown,
    Drain,
    Emission,
    Failed,
    Fault,
    LinkDown,
    PowerCap,
    Refuse,
    Rejected,
    build_engine,
    load_deployment,
)
from agentload_simbackend._engine import SimEngine
from agentload_traces import SpecError

MS = 1_000_000
S = 1_000_000_000
ONE = "gemma4-31b/pd-1replica"
TWO = "gemma4-31b/pd"


def moments(name: str) -> tuple[int, int]:
    """End of the prefill of a request of 100,000 tokens sent at 0, and of its last byte on the link."""
    done = answer(build_engine(load_deployment(name), 0), request(0, 100_000, 2_000), 0)
    links = roomy(name).plan.replicas[0].links
    assert links is not None
    ready_ns = done.phases.queue_ns + done.phases.prefill_ns
    return ready_ns, ready_ns + done.phases.handoff_ns - links.latency_ns


@pytest.mark.parametrize("at_end_of", [0, 1], ids=["prefill", "link"])
@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (Drain(), "answered"),
        (ChipsDown(chips=1, replan_s=1.0), "replica_failed"),
        (LinkDown(), "link_failed"),
        (LinkDown(for_s=1.0), "answered"),
    ],
)
def test_a_fault_comes_after_all_else_of_its_nanosecond(kind: Fault, ends: str, at_end_of: int) -> None:
    """Be it of a timeline or injected: the request has its place, or has crossed, before the fault."""
    at_ns = moments(ONE)[at_end_of]
    fault = msgspec.structs.replace(kind, at_s=at_ns / S)
    assert round(fault.at_s * S) == at_ns
    asked = [(0, request(0, 100_000, 2_000))]
    deployment = load_deployment(ONE)
    planned = drive(build_engine(deployment, 0, (fault,)), asked)
    called = drive(build_engine(deployment, 0), asked, injects=[(at_ns, kind)])
    assert [(type(each), each.at_ns) for each in planned] == [(type(each), each.at_ns) for each in called]
    if isinstance(kind, LinkDown) and at_end_of == 1:
        ends = "answered"  # its last byte was there
    last = planned[-1]
    assert (last.code if isinstance(last, Failed) else "answered") == ends
    if isinstance(last, Failed):
        assert (last.at_ns, last.replica) == (at_ns, 0)


def refused_as(emissions: list[Emission]) -> dict[int, int]:
    """Status of each refused request."""
    return {each.request_id: each.status for each in emissions if isinstance(each, Rejected)}


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_of_refusals_at_once_the_first_that_draws_answers(share: float) -> None:
    faults = (Refuse(status=429, share=share), Refuse(status=503, share=0.3, for_s=5_000.0))
    asked = [(S + index * S, request(index, 10, 1)) for index in range(2_000)]
    statuses = list(refused_as(drive(build_engine(load_deployment(ONE), 0, faults), asked)).values())
    assert statuses.count(429) == pytest.approx(2_000 * share, abs=100)
    assert statuses.count(503) == pytest.approx(2_000 * (1 - share) * 0.3, abs=100)


def test_a_refused_turn_that_comes_again_is_drawn_anew() -> None:
    def tries(seed: int) -> list[int]:
        engine = build_engine(load_deployment(ONE), seed, (Refuse(status=503, share=0.5),))
        counts, now_ns, number = [], 0, 0
        for turn in range(200):
            emissions: list[Emission] = []
            count = 0
            while not finished_by_id(emissions):
                now_ns, number, count = now_ns + S, number + 1, count + 1
                asked = request(number, 10, 1, context="a")
                asked = msgspec.structs.replace(asked, turn_id=str(turn))
                emissions = drive(engine, [(now_ns, asked)])
            counts.append(count)
        return counts

    counts = tries(0)
    assert sum(counts) == pytest.approx(400, abs=80)
    assert counts.count(1) == pytest.approx(100, abs=40)
    assert max(counts) < 20
    assert counts == tries(0) != tries(1)


def test_refusals_without_end_go_on() -> None:
    asked = [(index * 10_000 * S, request(index, 10, 1)) for index in range(1, 50)]
    emissions = drive(build_engine(load_deployment(ONE), 0, (Refuse(status=503),)), asked)
    assert refused_as(emissions) == dict.fromkeys(range(1, 50), 503)


@pytest.mark.parametrize("fault", [Drain(for_s=5.0), LinkDown(for_s=5.0), ChipsDown(chips=200, for_s=5.0)])
def test_requests_wait_for_replicas_that_come_back(fault: Fault) -> None:
    """All of them are away for a time, so nothing fails."""
    engine = build_engine(load_deployment(TWO), 0, (fault,))
    emissions = drive(engine, [(S + index, request(index, 1_000, 10)) for index in range(4)])
    done = finished_by_id(emissions)
    assert done.keys() == set(range(4))
    assert all(each.at_ns > 5 * S for each in done.values())


def test_a_power_cap_outlives_a_replan() -> None:
    def decode_ns(*faults: Fault) -> int:
        engine = build_engine(load_deployment(ONE), 0, faults)
        return answer(engine, request(0, 1_000, 2_000), 10 * S).phases.decode_ns

    lost = ChipsDown(chips=4, replan_s=1.0, at_s=2.0)
    cap = PowerCap(clock_fraction=0.5)
    assert decode_ns(cap, lost) == pytest.approx(2 * decode_ns(lost), rel=1e-5)


def test_fewer_chips_take_the_hand_off_slower() -> None:
    setup = roomy(ONE)
    plan = setup.replan(0, setup.plan.replicas[0].chips - 40)
    assert plan is not None
    assert plan.links is not None
    engine = SimEngine(setup, (ChipsDown(chips=40, replan_s=1.0),))
    done = answer(engine, request(0, 100_000, 10), 10 * S)
    handoff_bytes = setup.kv.transfer_bytes(100_000, 100_000)
    expected_ns = handoff_bytes / plan.links.bytes_per_ns + plan.links.latency_ns
    assert done.phases.handoff_ns == pytest.approx(expected_ns, abs=2)
    whole = answer(SimEngine(setup), request(0, 100_000, 10), 10 * S)
    assert done.phases.handoff_ns > 1.1 * whole.phases.handoff_ns


def test_who_no_longer_fits_lpx_after_a_fault_spills_at_once() -> None:
    setup = roomy("gemma4-31b/pd-spill", tokens=30_000, spill_after_ns=1_000 * S)
    pools = tuple(
        pool._replace(capacity_bytes=pool.capacity_bytes // 3) for pool in setup.plan.replicas[0].pools
    )
    fewer = setup.plan.replicas[0]._replace(pools=pools)
    setup = setup._replace(replan=lambda index, chips: fewer)
    fault = ChipsDown(chips=1, replan_s=1.0, at_s=5.0, replica=0)
    engine = SimEngine(setup, (fault,))
    asked = [(0, request(0, 1_000, 25_000)), (S, request(1, 20_000, 1_000))]
    emissions = drive(engine, asked)
    assert [each.request_id for each in emissions if isinstance(each, Failed)] == [0]
    done = finished_by_id(emissions)[1]
    assert done.replica > 0
    assert done.at_ns - done.phases.decode_ns - done.phases.handoff_ns == 5 * S


@pytest.mark.parametrize("name", ["gemma4-31b/rubin-aggregated"])
def test_a_cancelled_prompt_leaves_no_work_behind_in_its_replica(name: str) -> None:
    setup = roomy(name, replicas=2, kv_policy="drop")
    assert len(setup.plan.replicas) == 2
    for cancel_ns in (1, MS, 200 * MS):
        engine = SimEngine(setup)
        asked = [(0, request(0, 100_000, 10)), (0, request(1, 100_000, 10)), (0, request(2, 100_000, 10))]
        drive(engine, asked, cancels=[(cancel_ns, 0), (cancel_ns, 2)])
        assert answer(engine, request(3, 10_000, 10), 100 * S).replica == 0


def test_no_clock_is_capped_below_a_thousandth() -> None:
    for clock in (1e-305, 1e-12, 9.9e-4):
        with pytest.raises(SpecError, match=r"power_cap: clock_fraction: is .*, must be 0.001 to 1"):
            build_engine(load_deployment(ONE), 0, (PowerCap(clock_fraction=clock),))
    engine = build_engine(load_deployment(ONE), 0, (PowerCap(clock_fraction=0.001),))
    assert answer(engine, request(0, 1_000, 100), 0).output_tokens == 100
