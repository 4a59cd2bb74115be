"""Memory of the prefill pool: KV that waits or crosses takes its room."""

from __future__ import annotations

import itertools

from engine_driving import drive, finished_by_id, request, roomy

from agentload_simbackend import PromptRun
from agentload_simbackend._engine import SimEngine
from agentload_simbackend._setup import Setup

S = 1_000_000_000


def narrow_prefill(tokens: int, streams: int = 1) -> Setup:
    """A replica with room for a stream of 70,000 tokens, prefill memory for streams of so many in all."""
    setup = roomy("gemma4-31b/pd", tokens=70_000)
    prefill = setup.plan.prefill
    assert prefill is not None
    room = prefill.kv.bytes_per_token * tokens + prefill.kv.fixed_bytes * streams
    prefill = prefill._replace(cache_bytes=room, host_cache_bytes=0, instances=4)
    return setup._replace(plan=setup.plan._replace(prefill=prefill))


def test_prefills_wait_for_kv_that_has_yet_to_leave() -> None:
    """The second prompt has room beside the first that waits, the third has not, until one has crossed."""
    engine = SimEngine(narrow_prefill(60_000, 2))
    asked = [(0, request(9, 10_000, 60_000)), *((S + i, request(i, 30_000, 10)) for i in range(3))]
    uses: list[float] = []
    stops = [2 * S, 5 * S]

    def look(now_ns: int) -> None:
        (use,) = (each for each in engine.occupancy() if each.name == "prefill HBM")
        uses.append(use.used_bytes / use.capacity_bytes)

    done = finished_by_id(drive(engine, asked, stops=stops, at_stop=look))
    assert uses == [1.0, 1.0]
    assert done.keys() == {0, 1, 2, 9}
    # The long one gives its room in the replica back; then the first crosses, and the third is prefilled.
    first_crossed_ns = done[9].at_ns + done[0].phases.handoff_ns - 5_000
    third_began_ns = done[2].at_ns - done[2].phases.decode_ns - done[2].phases.handoff_ns
    third_began_ns -= done[2].phases.prefill_ns
    assert done[2].phases.queue_ns >= third_began_ns - S - 2 >= first_crossed_ns - S - 2
    assert done[0].phases.prefill_ns == done[2].phases.prefill_ns


def test_kv_in_use_is_not_evicted_and_a_cancel_gives_its_room_to_the_next() -> None:
    engine = SimEngine(narrow_prefill(60_000, 2))
    asked = [(0, request(9, 10_000, 60_000)), *((S + i, request(i, 30_000, 10)) for i in range(3))]
    done = finished_by_id(drive(engine, asked, cancels=[(3 * S, 0)]))
    usual_ns = done[1].phases.prefill_ns
    assert done[2].phases.prefill_ns == usual_ns
    # It is prefilled from when the first is cancelled on, long before the replica has room.
    assert done[9].at_ns > 10 * S
    began_waiting_ns = 3 * S + usual_ns
    assert done[2].at_ns - done[2].phases.decode_ns - done[2].phases.handoff_ns > began_waiting_ns
    (pool,) = (each for each in engine.occupancy() if each.name == "prefill HBM")
    assert pool.used_bytes <= pool.capacity_bytes


def test_a_prompt_larger_than_the_prefill_memory_goes_alone() -> None:
    engine = SimEngine(narrow_prefill(20_000))
    done = finished_by_id(drive(engine, [(index, request(index, 30_000, 10)) for index in range(3)]))
    began = sorted(each.at_ns - each.phases.decode_ns - each.phases.handoff_ns for each in done.values())
    assert len(done) == 3
    for before, after in itertools.pairwise(began):
        assert after - before >= done[0].phases.prefill_ns
    assert all(use.used_bytes <= use.capacity_bytes for use in engine.occupancy())


def test_who_arrives_behind_does_not_lengthen_a_prefill_that_is_held_back() -> None:
    """Its KV comes from the host once, however often it is tried whether there is room."""

    def prefill_ns(behind: int) -> int:
        setup = narrow_prefill(60_000, 2)
        prefill = setup.plan.prefill
        assert prefill is not None
        prefill = prefill._replace(host_cache_bytes=10 * prefill.cache_bytes, host_bytes_per_ns=100.0)
        asked = [
            *((10 * index * S, request(index, 30_000, 10, context=f"{index}")) for index in range(3)),
            (30 * S, request(9, 10_000, 59_000)),
            (31 * S, request(10, 30_000, 10)),
            (32 * S, request(11, 29_000, 10)),
            (33 * S, request(12, 30_001, 10, context="0")),
            *((34 * S + index, request(100 + index, 1, 1)) for index in range(behind)),
        ]
        engine = SimEngine(setup._replace(plan=setup.plan._replace(prefill=prefill)))
        done = finished_by_id(drive(engine, asked))[12]
        assert done.cached_tokens == 29_952
        return done.phases.prefill_ns

    assert prefill_ns(0) == prefill_ns(1) == prefill_ns(40)


def test_a_prompt_that_ends_within_another_takes_its_own_window_only() -> None:
    setup = roomy("gemma4-31b/pd", tokens=70_000)
    prefill = setup.plan.prefill
    assert prefill is not None
    kv = prefill.kv
    room = 15_000 * kv.bytes_per_token + 2 * kv.fixed_bytes + kv.transfer_bytes(1, 46)
    prefill = prefill._replace(cache_bytes=room, host_cache_bytes=0, instances=4)
    engine = SimEngine(setup._replace(plan=setup.plan._replace(prefill=prefill)))
    shared = PromptRun("x", 5_000)
    asked = [(0, request(0, 1_000, 68_000))]  # it takes the replica
    for index, own in enumerate("yz", start=1):
        asked.append((index * S, request(index, 10_000, 10, runs=[shared, PromptRun(own, 5_000)])))
    asked.append((2 * S + 20_000_000, request(3, 46, 10, runs=[PromptRun("x", 46)])))
    used: list[int] = []
    drive(engine, asked, stops=[4 * S], at_stop=lambda now_ns: used.append(engine.occupancy()[0].used_bytes))
    assert 0 < used[0] <= room


def test_emissions_that_nobody_has_taken_yet_are_no_step_back_in_time() -> None:
    engine = SimEngine(roomy("gemma4-31b/pd", tokens=70_000))
    engine.submit(request(1, 1_000, 10), 0)
    engine.submit(request(2, 1_000, 10), S)
    assert {emission.request_id for emission in engine.advance_to_emission(None)} == {1}
