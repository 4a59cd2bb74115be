"""The options of the load: what contradicts itself, and what a run makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_cases import load_options

from agentload._load import (
    check_load,
    check_slots,
    make_feed,
    pace_of,
    resolved_load,
    slots_of,
    worker_conditions,
)
from agentload._options import LoadOptions
from agentload_traces import AgentloadError, Session, Turn


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (
            {"concurrency": 2, "arrival": "poisson"},
            "--concurrency is a closed loop, --arrival poisson an open",
        ),
        ({"concurrency": 2, "stages": "4x1m"}, "leave --concurrency out"),
        ({"rate_per_s": 2.0}, "--rate is for drawn arrivals"),
        ({"rate_per_s": 2.0, "concurrency": 3}, "--rate is for drawn arrivals"),
        ({"arrival": "constant", "rate_per_s": 2.0, "stages": "4x1m"}, "leave --rate out"),
        ({"arrival": "gamma"}, "--arrival gamma needs --rate"),
        ({"burstiness": 0.5}, "--burstiness is the shape of --arrival gamma"),
        ({"burstiness": 0.5, "arrival": "poisson", "rate_per_s": 1.0}, "--burstiness is the shape"),
        ({"arrival_speed": 2.0, "concurrency": 3}, "--arrival-speed is for arrivals at recorded times"),
        ({"arrival_speed": 2.0, "stages": "3x1m"}, "--arrival-speed"),
        ({"arrival_speed": 2.0, "arrival": "constant", "rate_per_s": 1.0}, "--arrival-speed"),
        ({"stages": "4x"}, "cannot read the stage '4x'"),
        ({"stages": "0.5x1m"}, "whole numbers"),
        ({"warmup_s": 60.0, "max_duration_s": 60.0}, "nothing would be left"),
        ({"start_turn": "-1"}, "--start-turn '-1'"),
        ({"start_turn": "last"}, "--start-turn 'last'"),
        ({"start_turn": "\u0663"}, "--start-turn"),
        ({"salt": "a\nb"}, "no text"),
        ({"salt": "\ud800"}, "no text"),
        ({"speed": float("nan")}, "speed nan: must be more than 0"),
        ({"tool_speed": 0.0}, "tool_speed 0: must be more than 0"),
        ({"max_gap_s": -1.0}, "max_gap_s -1: must be 0 or more"),
        ({"repeat": 0}, "repeat 0: must be at least 1"),
        ({"workers": 2}, "--workers is for the wall clock"),
        ({"workers": 0}, "--workers 0: must be at least 1"),
        ({"workers": 4, "clock": "wall", "concurrency": 3}, "3 sessions at a time leave some"),
        ({"workers": 4, "clock": "wall", "stages": "1x1m,1-3x1m"}, "3 sessions at a time leave some"),
        (
            {"workers": 2, "clock": "wall", "max_requests": 9},
            "--max-requests counts the turns of all workers",
        ),
    ],
)
def test_options_that_contradict_each_other_are_told_in_one_line(load: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentloadError, match=says) as told:
        check_load(load_options(**load))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "load",
    [
        {},
        {"concurrency": 4, "warmup_s": 5.0, "max_duration_s": 9.0, "start_turn": "random", "salt": "random"},
        {"stages": "4x60s,4-16x2m"},
        {"arrival": "gamma", "stages": "0.5x60s,0.5-2x2m", "burstiness": 0.3},
        {"arrival": "poisson", "rate_per_s": 0.1, "speed": 3.0, "repeat": 2, "start_turn": "12"},
        {"arrival_speed": 3.0, "max_gap_s": 0.0},
        {"workers": 4, "clock": "wall", "concurrency": 4, "max_duration_s": 9.0},
        {"workers": 4, "clock": "wall", "arrival": "constant", "stages": "1x1m"},
    ],
)
def test_options_that_go_together_pass(load: dict[str, Any]) -> None:
    check_load(load_options(**load))


@given(slots=st.integers(1, 50), workers=st.integers(1, 8))
def test_slots_for_tools_are_divided_among_workers(slots: int, workers: int) -> None:
    options = load_options(workers=workers, clock="wall")
    parts = [slots_of(slots, (number, workers)) for number in range(workers)]
    assert sum(part or 0 for part in parts) == slots
    assert bool(worker_conditions(options, slots)) == (workers > 1)
    if slots < workers:
        with pytest.raises(AgentloadError, match="too few to be divided"):
            check_slots(options, slots)
    else:
        check_slots(options, slots)
        assert 0 not in parts


def test_tools_without_limit_need_no_division() -> None:
    options = load_options(workers=4, clock="wall")
    check_slots(options, None)
    assert slots_of(None, (1, 4)) is None
    assert worker_conditions(options, None) == ()


def test_a_random_salt_is_drawn_once_for_a_run() -> None:
    one, other = resolved_load(load_options(salt="random")), resolved_load(load_options(salt="random"))
    assert one.load.salt != other.load.salt
    assert resolved_load(one) == one
    assert resolved_load(load_options(salt="mine")).load.salt == "mine"
    check_load(one)


def test_speed_is_the_default_of_each_speed() -> None:
    pace = pace_of(LoadOptions(speed=2.0, tool_speed=8.0, max_gap_s=1.5))
    assert pace == (8.0, 2.0, 1_500_000_000)


def test_a_trace_is_repeated_without_being_held_as_often() -> None:
    # A billion repetitions are asked for; only those that are taken are made.
    sessions = [
        Session(name, (Turn(session_id=name, turn_id="t", input_tokens=1, start_ms=start_ms),))
        for name, start_ms in (("late", 50.0), ("early", 20.0))
    ]
    feed = make_feed(sessions, load_options(repeat=10**9))
    starts = [feed.take() for _ in range(7) if feed.next_start_ns(0, 0) is not None]
    assert [launch.repetition for launch in starts] == [0, 0, 1, 1, 2, 2, 3]
    assert [launch.start_ns for launch in starts] == sorted(launch.start_ns for launch in starts)
