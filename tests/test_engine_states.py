"""Every mode and family of models, under any faults, and every fault in every mode."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from engine_machine import Asked, Engines, S, told
from hypothesis import settings

from agentload_simbackend import (
    ChipsDown,
    Drain,
    Fault,
    Finished,
    KvLoss,
    LinkDown,
    PowerCap,
    Refuse,
    Reset,
    Stall,
)

TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=150, stateful_step_count=30)

MODES = (
    "gemma4-31b/pd-spill",
    "gemma4-31b/rubin-aggregated",
    "gemma-4-31b/afd",
    "gemma-4-26b-a4b/drafter",
    "llama-3.1-8b/lpx",
    "deepseek-r1/rubin",
)
EACH_FAULT: tuple[Fault, ...] = (
    ChipsDown(chips=1, replan_s=0.2, for_s=1.0),
    LinkDown(for_s=0.4),
    Drain(for_s=3.0),
    PowerCap(clock_fraction=0.1),
    KvLoss(store="decode"),
    KvLoss(store="prefix_cache"),
    Refuse(status=503, for_s=0.1),
    Stall(for_s=0.5),
    Reset(),
)


def played(name: str, *faults: Fault) -> Engines:
    """Two turns of each of three contexts in a mode, to the end and through all checks."""
    machine = Engines()
    turns = [(0, 9_000), (0, 24_000), (0, 1), (20 * S, 25_000), (0, 25_000), (0, 9_000)]
    asked = [
        Asked(wait_ns, context, prompt, 900, "standard", False, 0)
        for (wait_ns, prompt), context in zip(turns, "abcabc", strict=True)
    ]
    machine.build(
        name=name, policy="evict", most_waiting=None, timeline=list(faults), seed=0, asked=asked[:3]
    )
    for each in asked[3:]:
        machine.submit_one(each)
        machine.memories_are_never_over_capacity()
        machine.memories_are_what_requests_and_contexts_take()
    machine.teardown()
    return machine


undisturbed = cache(played)


@pytest.mark.parametrize("fault", EACH_FAULT, ids=lambda fault: str(fault.__struct_config__.tag))
@pytest.mark.parametrize("name", MODES)
def test_every_fault_is_met_in_every_mode(name: str, fault: Fault) -> None:
    """It shows: in how requests end, or in when."""
    usual = undisturbed(name)
    assert all(isinstance(each, Finished) for each in usual.ended.values())
    # While the largest of the first turns decodes; lost KV shows in the turns that come next.
    largest = usual.ended[1]
    assert isinstance(largest, Finished)
    at_ns = largest.at_ns - largest.phases.decode_ns // 2
    if isinstance(fault, LinkDown):
        at_ns = largest.at_ns - largest.phases.decode_ns - largest.phases.handoff_ns // 2
    elif isinstance(fault, Refuse | KvLoss | Drain):
        at_ns = 20 * S - 1
    machine = played(name, msgspec.structs.replace(fault, at_s=at_ns / S))
    if isinstance(fault, LinkDown) and not usual.links:
        assert not machine.timeline
        return
    assert machine.timeline
    assert [told(each) for each in machine.emissions] != [told(each) for each in usual.emissions]


@pytest.mark.parametrize("by", ["cancel", "chips_down", "link_down"])
def test_what_is_cut_off_on_the_link_is_counted_as_far_as_it_came(by: str) -> None:
    largest = undisturbed("gemma4-31b/pd-spill").ended[1]
    assert isinstance(largest, Finished)
    machine = Engines()
    asked = [Asked(0, context, 24_000, 900, "standard", False, 0) for context in "ab"]
    machine.build(
        name="gemma4-31b/pd-spill", policy="evict", most_waiting=None, timeline=[], seed=0, asked=asked
    )
    crossing: list[int] = []
    while not crossing:
        event_ns = machine.engine.next_event_ns()
        assert event_ns is not None
        machine.pass_time(event_ns - machine.now_ns)
        crossing = [flight.request.request_id for link in machine.links for flight in link.on]
    machine.pass_time(largest.phases.handoff_ns // 2)
    if by == "cancel":
        machine.actions.append((machine.now_ns, by, crossing[0]))
        machine.engine.cancel(crossing[0], machine.now_ns)
        machine.cancelled[crossing[0]] = machine.now_ns
    else:
        fault = ChipsDown(chips=1) if by == "chips_down" else LinkDown()
        machine.actions.append((machine.now_ns, "inject", fault))
        machine.engine.inject(fault, machine.now_ns)
    machine.take(machine.engine.advance(machine.now_ns))
    machine.memories_are_what_requests_and_contexts_take()
    machine.teardown()
    assert any(link.cut_bytes for link in machine.links)
    assert all(link.sent_bytes > link.whole_bytes for link in machine.links if link.cut_bytes)
