"""Prefix cache, KV residency, hand-off and queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_driving import answer, drive, finished_by_id, request, roomy, variant
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_simbackend import (
    Deployment,
    EngineRequest,
    FirstToken,
    PromptRun,
    Rejected,
    _prefix_cache,
    build_engine,
    load_deployment,
)
from agentload_simbackend._engine import SimEngine
from agentload_simbackend._plan import build_plan

MS = 1_000_000
S = 1_000_000_000

KEYS = st.sampled_from(["a", "b", 3])
PROMPTS = st.lists(st.builds(PromptRun, KEYS, st.integers(1, 4)), min_size=1, max_size=7)


@pytest.fixture(scope="module")
def single_tokens(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment whose prefix cache has blocks of one token."""
    return variant(tmp_path_factory.mktemp("specs"), "gemma4-31b/pd", prefill__cache_block=1)


def texts(runs: list[PromptRun]) -> list[tuple[str | int, int]]:
    """The tokens of a prompt, each named by its run and its place in it."""
    return [(run.key, place) for run in runs for place in range(run.tokens)]


def shared(a: list[PromptRun], b: list[PromptRun]) -> int:
    """Leading tokens that two prompts share, run by run as the interface defines it."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one.key != other.key:
            break
        count += min(one.tokens, other.tokens)
        if one.tokens != other.tokens:
            break
    return count


@settings(max_examples=150)
@given(st.lists(PROMPTS, min_size=1, max_size=12))
def test_prefix_cache_hits_what_any_earlier_prompt_shares(
    single_tokens: Deployment, prompts: list[list[PromptRun]]
) -> None:
    engine = build_engine(single_tokens, 0)
    for index, runs in enumerate(prompts):
        tokens = sum(run.tokens for run in runs)
        done = answer(engine, request(index, tokens, 1, runs=runs), index * S)
        longest = max((shared(earlier, runs) for earlier in prompts[:index]), default=0)
        assert done.cached_tokens == min(longest, tokens - 1)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=8), st.booleans())
def test_prompts_of_many_runs_share_as_those_of_one(kept: list[int], block_runs: bool) -> None:
    """A context that keeps the first k of its 64-token blocks and goes on anew, as a compaction does."""
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    blocks: list[str] = []
    for index, keep in enumerate(kept):
        before = blocks
        blocks = blocks[:keep] + [f"{index}/{place}" for place in range(40)]
        runs = [PromptRun(name, 64) for name in blocks] + [PromptRun(f"tail {index}", 10)]
        asked = request(index, 64 * len(blocks) + 10, 1, context="a", runs=runs)
        done = answer(engine, asked, index * S)
        assert done.cached_tokens == 64 * min(keep, len(before))
        assert done.handoff_tokens == 10 + 64 * (len(blocks) - min(keep, len(before)))


def test_least_recently_used_prompt_leaves_the_prefix_cache(tmp_path: Path) -> None:
    # Nine instances x (8 x 288 GB x 0.0171 - 30.7 GB) hold 78.3 GB: nine prompts of 100K at 8.6 GB, for eight
    # GPUs hold each of four KV heads twice.
    deployment = variant(tmp_path, "gemma4-31b/pd", prefill__usable_memory=0.0171, prefill__host_cache=0.0)
    pool = build_plan(deployment).prefill
    assert pool is not None
    assert 77.6e9 < pool.cache_bytes < 86e9
    engine = build_engine(deployment, 0)

    def cached(name: str, at_s: int) -> int:
        runs = [PromptRun(name, 100_000)]
        return answer(engine, request(at_s, 100_000, 1, runs=runs), at_s * S).cached_tokens

    names = [f"prompt {index}" for index in range(9)]
    assert [cached(name, 1 + at_s) for at_s, name in enumerate(names)] == [0] * 9
    assert cached("prompt 0", 20) == 99_968
    assert cached("new", 21) == 0
    assert cached("prompt 1", 22) == 0
    assert cached("prompt 0", 23) == 99_968


def test_prompt_beyond_the_prefix_cache_is_served_but_not_kept() -> None:
    setup = roomy("gemma4-31b/pd")
    assert setup.plan.prefill is not None
    room = setup.plan.prefill.kv.stream_bytes(50_000) - 1
    prefill = setup.plan.prefill._replace(cache_bytes=room, host_cache_bytes=room)
    engine = SimEngine(setup._replace(plan=setup.plan._replace(prefill=prefill)))
    for index in range(3):
        runs = [PromptRun("long", 50_000)]
        assert answer(engine, request(index, 50_000, 1, runs=runs), index * S).cached_tokens == 0


def test_resident_context_is_handed_over_in_part() -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    first = answer(engine, request(1, 100_000, 1_000, context="a"), 0)
    second = answer(engine, request(2, 103_000, 10, context="a"), 10 * S)
    assert (first.handoff_tokens, second.handoff_tokens) == (100_000, 3_000)
    assert first.replica == second.replica
    # 128 LPUs x 12.5 GB/s x 0.8; 40,960 B a token and a window of 1,024 x 409,600 B; 5 us one way.
    for done in (first, second):
        handoff_bytes = done.handoff_tokens * 40_960 + 1_024 * 409_600
        assert done.phases.handoff_ns == pytest.approx(handoff_bytes / 1_280 + 5_000, abs=2)


@pytest.mark.parametrize(
    ("kept", "answered", "prompt", "windowed"),
    [
        # The prompt goes on: the windows are there, but for what the answer has pushed out of them.
        (100_000, 10, 100_500, 500),
        (100_000, 600, 100_500, 600),
        (100_000, 5_000, 100_500, 1_024),
        (100_000, 10, 100_000, 10),
        # It goes on from an earlier point, where no windows are: all of it is brought.
        (50_000, 10, 50_300, 1_024),
        (99_999, 10, 100_000, 1_024),
        (300, 10, 400, 400),
        (300, 10, 300, 300),
    ],
)
def test_sliding_windows_that_are_not_there_are_handed_over(
    kept: int, answered: int, prompt: int, windowed: int
) -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    answer(engine, request(1, 100_000, answered, context="a"), 0)
    runs = [PromptRun("a", kept)]
    if prompt > kept:
        runs.append(PromptRun("new", prompt - kept))
    if kept == 100_000:
        runs = [PromptRun("a", prompt)]
    done = answer(engine, request(2, prompt, 10, context="a", runs=runs), 10 * S)
    assert done.handoff_tokens == max(prompt - kept, 1)
    handoff_bytes = done.handoff_tokens * 40_960 + windowed * 409_600
    assert done.phases.handoff_ns == pytest.approx(handoff_bytes / 1_280 + 5_000, abs=2)


@given(st.integers(1, 3_000), st.integers(0, 3_000), st.one_of(st.none(), st.integers(0, 3_000)))
def test_missing_window_tokens_are_those_that_a_ring_of_them_lacks(
    prompt: int, resident: int, past: int | None
) -> None:
    kv = load_deployment("gemma4-31b/pd").kv
    resident = min(prompt, resident)
    wanted = set(range(prompt)[-1_024:])
    there = set() if past is None else set(range(resident + past)[-1_024:]) & set(range(resident))
    assert kv.missing_window_tokens(prompt, resident, past) == len(wanted - there)


@pytest.mark.parametrize(
    ("at_ms", "handed", "windowed"),
    [
        # On the link: what was there before stays, without the sliding windows.
        (31, 52_000, 1_024),
        # In decode: the whole prompt is there.
        (900, 2_000, 1_024),
    ],
)
def test_a_cancelled_turn_leaves_its_context_where_it_is(at_ms: int, handed: int, windowed: int) -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    answer(engine, request(1, 100_000, 10, context="a"), 0)
    answer(engine, request(2, 150_000, 1, context="other"), 5 * S)  # so that prefill takes no time below
    asked = request(3, 150_000, 20_000, context="a", runs=[PromptRun("a", 100_000), PromptRun("b", 50_000)])
    (prefilled,) = finished_by_id(drive(engine, [(10 * S, asked)], cancels=[(1_000 * S, 9)])).values()
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    answer(engine, request(1, 100_000, 10, context="a"), 0)
    cancel_ns = 10 * S + prefilled.phases.prefill_ns + (at_ms - 30) * MS
    assert finished_by_id(drive(engine, [(10 * S, asked)], cancels=[(cancel_ns, 3)])) == {}
    runs = [PromptRun("a", 100_000), PromptRun("b", 52_000)]
    done = answer(engine, request(4, 152_000, 10, context="a", runs=runs), 20 * S)
    assert (done.replica, done.handoff_tokens) == (0, handed)
    handoff_bytes = handed * 40_960 + windowed * 409_600
    assert done.phases.handoff_ns == pytest.approx(handoff_bytes / 1_280 + 5_000, abs=2)


def test_the_prefix_cache_is_bounded_in_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefix_cache, "MOST_RUNS", 100)
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)

    def cached(name: str, at_s: int) -> int:
        runs = [PromptRun(f"{name} {place}", 64) for place in range(30)]
        return answer(engine, request(at_s, 30 * 64, 1, runs=runs), at_s * S).cached_tokens

    assert [cached(name, 1 + at_s) for at_s, name in enumerate("abcabcd")] == [0] * 3 + [1_856] * 3 + [0]
    assert [cached(name, 10 + at_s) for at_s, name in enumerate("cda")] == [1_856, 1_856, 0]


def test_evicted_context_is_handed_over_whole(tmp_path: Path) -> None:
    # 8.1 GB a replica: one context of 100K and no second one.
    deployment = variant(tmp_path, "gemma4-31b/pd", decode__usable_memory=0.614, decode__replicas=1)
    engine = build_engine(deployment, 0)
    asked = [("a", 100_000, 0), ("a", 101_000, 10), ("b", 100_000, 20), ("a", 102_000, 30)]
    handed = [
        answer(engine, request(index, tokens, 10, context=context), at_s * S).handoff_tokens
        for index, (context, tokens, at_s) in enumerate(asked)
    ]
    assert handed == [100_000, 1_000, 100_000, 102_000]


def test_least_recently_used_context_is_evicted(tmp_path: Path) -> None:
    # 11.3 GB: two contexts of 100K and no third one.
    deployment = variant(tmp_path, "gemma4-31b/pd", decode__usable_memory=0.664, decode__replicas=1)
    engine = build_engine(deployment, 0)
    turns = [("a", 100_000), ("b", 100_000), ("a", 101_000), ("c", 100_000), ("a", 102_000), ("b", 102_000)]
    handed = [
        answer(engine, request(index, tokens, 10, context=context), index * 10 * S).handoff_tokens
        for index, (context, tokens) in enumerate(turns)
    ]
    assert handed == [100_000, 100_000, 1_000, 100_000, 1_000, 102_000]


def test_context_that_moves_to_another_replica_is_handed_over_whole(tmp_path: Path) -> None:
    # 8.1 GB in each of two replicas.
    engine = build_engine(variant(tmp_path, "gemma4-31b/pd", decode__usable_memory=0.614), 0)
    asked = [
        (0, request(0, 20_000, 10, context="a")),
        (10 * S, request(1, 50_000, 10, context="b")),
        (20 * S, request(2, 100_000, 5_000, context="c")),
        # While c decodes where a is, a has grown too large to fit beside it.
        (21 * S, request(3, 90_000, 10, context="a")),
        (40 * S, request(4, 91_000, 10, context="a")),
    ]
    done = finished_by_id(drive(engine, asked))
    assert [(done[index].replica, done[index].handoff_tokens) for index in range(5)] == [
        (0, 20_000),
        (1, 50_000),
        (0, 100_000),
        (1, 90_000),
        (1, 1_000),
    ]


def test_contexts_go_where_there_is_most_room_and_come_back_to_where_they_are() -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    turns = ["a", "b", "c", "d", "d", "c", "b", "a", "a"]
    replicas = [
        answer(engine, request(index, 50_000, 10, context=context), index * 10 * S).replica
        for index, context in enumerate(turns)
    ]
    assert replicas == [0, 1, 0, 1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("count", [2, 10])
def test_hand_offs_into_one_replica_share_its_link(count: int) -> None:
    """Ten at once take ten times as long."""
    engine = build_engine(load_deployment("gemma4-31b/pd-1replica"), 0)
    prompt = request(0, 100_000, 1)
    alone = answer(engine, prompt, 0)
    setup = roomy("gemma4-31b/pd-1replica")
    assert setup.plan.prefill is not None
    prefill = setup.plan.prefill._replace(instances=count)
    engine = SimEngine(setup._replace(plan=setup.plan._replace(prefill=prefill)))
    answer(engine, prompt, 0)
    asked = [
        (10 * S, request(1 + index, 100_000, 1, runs=list(prompt.prompt_runs))) for index in range(count)
    ]
    answers = list(finished_by_id(drive(engine, asked)).values())
    one_ns = alone.phases.handoff_ns - 5_000
    assert [done.phases.queue_ns for done in answers] == [0] * count
    for done in answers:
        assert done.phases.handoff_ns - 5_000 == pytest.approx(count * one_ns, abs=count)


def test_prefill_instances_are_taken_in_order() -> None:
    engine = build_engine(load_deployment("gemma4-31b/rubin"), 0)
    asked = [(index, request(index, 200_000, 1)) for index in range(10)]
    done = finished_by_id(drive(engine, asked))
    compute_ns = done[0].phases.prefill_ns - 30 * MS
    rounds = [round(done[index].phases.queue_ns / compute_ns, 3) for index in range(10)]
    assert rounds == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_cancelled_prefill_leaves_its_instance_to_the_next() -> None:
    engine = build_engine(load_deployment("gemma4-31b/rubin"), 0)
    asked = [(0, request(index, 200_000, 1)) for index in range(6)]
    done = finished_by_id(drive(engine, asked, cancels=[(50 * MS, 2), (60 * MS, 4), (70 * MS, 1)]))
    assert done.keys() == {0, 3, 5}
    # The fifth took the instance of the third and gave it up; the sixth has it from then on.
    assert done[5].phases.queue_ns == 60 * MS


def test_cancelled_hand_off_leaves_its_share_of_the_link_to_the_others() -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd-1replica"), 0)
    prompt = request(0, 200_000, 1)
    first = answer(engine, prompt, 0)
    asked = [(10 * S, request(1 + index, 200_000, 1, runs=list(prompt.prompt_runs))) for index in range(3)]
    ready_ns = 10 * S + finished_by_id(drive(engine, asked[:1]))[1].phases.prefill_ns
    engine = build_engine(load_deployment("gemma4-31b/pd-1replica"), 0)
    answer(engine, prompt, 0)
    done = finished_by_id(drive(engine, asked, cancels=[(ready_ns + 1_500_000, 2)]))
    # A third each for 1.5 ms, then a half each.
    transfer_ns = first.phases.handoff_ns - 5_000
    expected_ns = 1_500_000 + 2 * (transfer_ns - 500_000)
    for number in (1, 3):
        assert done[number].phases.handoff_ns - 5_000 == pytest.approx(expected_ns, abs=3)


def test_cancelled_wait_for_a_slot_lets_the_next_through(tmp_path: Path) -> None:
    deployment = variant(tmp_path, "gemma4-31b/pd", decode__usable_memory=0.614, decode__replicas=1)
    engine = build_engine(deployment, 0)
    asked = [
        (0, request(0, 100_000, 20_000)),
        (S, request(1, 100_000, 10)),
        (2 * S, request(2, 20_000, 10)),
        (2 * S, request(3, 20_000, 10)),
    ]
    done = finished_by_id(drive(engine, asked, cancels=[(3 * S, 1)]))
    assert done.keys() == {0, 2, 3}
    # The cancelled one was first in the queue and too large; those behind it fit beside the first.
    assert done[2].at_ns - done[2].phases.decode_ns - done[2].phases.handoff_ns == 3 * S
    assert max(done[2].at_ns, done[3].at_ns) < done[0].at_ns


def test_cancel_comes_after_what_is_over_by_then() -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 0)
    engine.submit(request(1, 100, 10), 0)
    engine.cancel(1, S)
    first, finished = engine.advance(S)
    assert first.at_ns <= finished.at_ns < S


def test_streams_that_meet_at_a_step_boundary_start_together() -> None:
    """One is ready during a step and one, to the nanosecond, at its end: both make the next step first."""
    engine = build_engine(load_deployment("gemma4-31b/pd-1replica"), 0)
    before = answer(engine, request(0, 1, 1), 0)
    ready_after_ns = before.phases.prefill_ns + before.phases.handoff_ns
    long = request(1, 1, 5_000)
    boundaries = [arrival.at_ns for arrival in answer(engine, long, S).arrivals()]
    meet_ns = boundaries[100]
    engine = build_engine(load_deployment("gemma4-31b/pd-1replica"), 0)
    answer(engine, request(0, 1, 1), 0)
    asked = [
        (S, long),
        (meet_ns - ready_after_ns - 200_000, request(2, 1, 300)),
        (meet_ns - ready_after_ns, request(3, 1, 300)),
    ]
    emissions = drive(engine, asked)
    done = finished_by_id(emissions)
    assert [arrival.at_ns for arrival in done[1].arrivals()[:101]] == boundaries[:101]
    assert done[1].arrivals()[101].at_ns == done[2].first_token_at_ns == done[3].first_token_at_ns
    assert done[2].arrivals()[0].at_ns == done[2].first_token_at_ns
    firsts = [each for each in emissions if isinstance(each, FirstToken) and each.request_id > 1]
    assert {each.request_id: each.at_ns for each in firsts} == dict.fromkeys(
        (2, 3), done[2].first_token_at_ns
    )
    assert len(firsts) == 2


def reject(engine_name: Deployment, asked: EngineRequest) -> Rejected:
    (emission,) = drive(build_engine(engine_name, 0), [(7, asked)])
    assert isinstance(emission, Rejected)
    assert emission.at_ns == 7
    return emission


def test_prompt_beyond_the_models_context_is_rejected() -> None:
    rejected = reject(load_deployment("gemma4-31b/pd"), request(1, 262_000, 145))
    assert rejected.code == "context_length_exceeded"
    assert rejected.message == "262000 prompt + 145 output = 262145 tokens; the model's context is 262144"


def test_stream_that_never_fits_is_rejected_with_the_arithmetic(tmp_path: Path) -> None:
    deployment = variant(tmp_path, "gemma4-31b/pd", decode__usable_memory=0.55)
    rejected = reject(deployment, request(1, 100_000, 1_000))
    assert rejected.code == "insufficient_memory"
    assert rejected.message == (
        "100000 prompt + 1000 output = 101000 tokens x 40960 B + 0.419 GB a stream = "
        "4.556 GB of KV; a decode replica has 4.034 GB of SRAM for it"
    )
