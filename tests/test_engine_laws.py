"""Laws of the engine that hold for any requests."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from engine_driving import (
    answer,
    drive,
    finished_by_id,
    replica_kv_bytes,
    request,
    variant,
    write_variant,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_simbackend import (
    Deployment,
    EngineRequest,
    Finished,
    FirstToken,
    PromptRun,
    build_engine,
    load_deployment,
)

MS = 1_000_000
NAMES = ["gemma4-31b/pd", "gemma4-31b/pd-1replica", "gemma4-31b/rubin"]

Arrivals = list[tuple[int, EngineRequest]]


@pytest.fixture(scope="module", params=["pd", "rubin", "tight", "plain"])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """pd and rubin as they are; one with little memory on both sides; one without speculation."""
    folder = tmp_path_factory.mktemp("specs")
    if request.param == "tight":
        # Two streams of 30K fit in a replica, and some 30 prompts in the prefix cache.
        changes = {"decode__usable_memory": 0.545, "prefill__usable_memory": 0.0145}
        return variant(folder, "gemma4-31b/pd", **changes)
    if request.param == "plain":
        return variant(folder, "gemma4-31b/pd-1replica", speculation=None)
    return load_deployment(f"gemma4-31b/{request.param}")


@st.composite
def workloads(draw: st.DrawFn) -> Arrivals:
    """Requests of a few contexts that come close together; a context's prompts grow or start anew."""
    count = draw(st.integers(1, 14))
    arrivals: Arrivals = []
    at_ns = 0
    for request_id in range(count):
        at_ns += draw(st.sampled_from([0, 1, 3 * MS, 150 * MS, 2_000 * MS]))
        context = draw(st.sampled_from(["a", "b", "c", "d"]))
        base = draw(st.sampled_from([1, 500, 20_000]))
        runs = [PromptRun("system", base)]
        if grown := draw(st.integers(0, 10_000)):
            runs.append(PromptRun(context, grown))
        tokens = base + grown
        output = draw(st.one_of(st.integers(1, 70), st.integers(1, 900)))
        arrivals.append((at_ns, request(request_id, tokens, output, context=context, runs=runs)))
    return arrivals


times = st.lists(st.integers(0, 4_000 * MS), max_size=25)


@settings(max_examples=25)
@given(workloads(), st.integers(0, 3))
def test_every_request_is_answered_whole_once(deployment: Deployment, arrivals: Arrivals, seed: int) -> None:
    emissions = drive(build_engine(deployment, seed), arrivals)
    assert [each.at_ns for each in emissions] == sorted(each.at_ns for each in emissions)
    firsts = {each.request_id: each.at_ns for each in emissions if isinstance(each, FirstToken)}
    finished = finished_by_id(emissions)
    assert len(emissions) == 2 * len(arrivals)
    assert firsts.keys() == finished.keys() == {asked.request_id for _, asked in arrivals}
    most = deployment.draft_tokens + 1
    for submitted_ns, asked in arrivals:
        done = finished[asked.request_id]
        phases = done.phases
        parts = (phases.queue_ns, phases.prefill_ns, phases.handoff_ns, phases.decode_ns)
        assert min(parts) >= 0
        assert sum(parts) == done.at_ns - submitted_ns
        assert 0 <= done.cached_tokens < asked.input_tokens
        assert 1 <= done.handoff_tokens <= asked.input_tokens
        timeline = done.arrivals()
        assert len(timeline) == done.steps
        assert sum(arrival.tokens for arrival in timeline) == done.output_tokens == asked.output_tokens
        assert all(1 <= arrival.tokens <= most for arrival in timeline)
        assert all(before.at_ns < after.at_ns for before, after in pairwise(timeline))
        assert timeline[0].at_ns == done.first_token_at_ns == firsts[asked.request_id]
        assert timeline[-1].at_ns == done.at_ns
        assert done.first_token_at_ns > done.at_ns - phases.decode_ns


def facts(deployment: Deployment, arrivals: Arrivals, stops: list[int]) -> list[object]:
    """All that an engine says about requests, timelines too."""
    found: list[object] = []
    for each in drive(build_engine(deployment, 5), arrivals, stops=stops):
        if isinstance(each, Finished):
            found += [each.request_id, each.at_ns, each.first_token_at_ns, each.phases, each.arrivals()]
            found += [each.cached_tokens, each.handoff_tokens, each.steps, each.replica]
        else:
            found += [each.request_id, each.at_ns]
    return found


@settings(max_examples=25)
@given(workloads(), times)
def test_asking_at_other_times_changes_nothing(
    deployment: Deployment, arrivals: Arrivals, stops: list[int]
) -> None:
    assert facts(deployment, arrivals, []) == facts(deployment, arrivals, stops)


@settings(max_examples=25)
@given(workloads())
def test_going_from_emission_to_emission_is_going_from_event_to_event(
    deployment: Deployment, arrivals: Arrivals
) -> None:
    engine = build_engine(deployment, 5)
    found: list[object] = []
    for at_ns, asked in [*sorted(arrivals, key=lambda arrival: arrival[0]), (None, None)]:
        while emissions := engine.advance_to_emission(at_ns):
            assert len({each.at_ns for each in emissions}) == 1
            found += [(each.request_id, each.at_ns, type(each)) for each in emissions]
        if asked is not None and at_ns is not None:
            engine.submit(asked, at_ns)
    expected = drive(build_engine(deployment, 5), arrivals)
    assert found == [(each.request_id, each.at_ns, type(each)) for each in expected]


@settings(max_examples=25)
@given(workloads(), st.data())
def test_progress_is_what_the_timeline_says(
    deployment: Deployment, arrivals: Arrivals, data: st.DataObject
) -> None:
    finished = finished_by_id(drive(build_engine(deployment, 5), arrivals))
    timelines = {request_id: done.arrivals() for request_id, done in finished.items()}
    ends = [arrival.at_ns for timeline in timelines.values() for arrival in timeline]
    starts = [done.at_ns - done.phases.decode_ns for done in finished.values()]
    moments = st.builds(int.__add__, st.sampled_from(ends + starts), st.integers(-1, 1))
    stops = data.draw(st.lists(st.one_of(moments, st.integers(0, 4_000 * MS)), max_size=25))
    engine = build_engine(deployment, 5)
    seen: dict[int, dict[int, tuple[int, int]]] = {}
    steps: dict[int, int | None] = {}

    def look(now_ns: int) -> None:
        seen[now_ns] = {request_id: (tokens, at_ns) for request_id, tokens, at_ns in engine.progress(now_ns)}
        steps[now_ns] = engine.next_step_ns()

    drive(engine, arrivals, stops=stops, at_stop=look)
    for now_ns, progress in seen.items():
        expected = {}
        for request_id, timeline in timelines.items():
            past = [arrival for arrival in timeline if arrival.at_ns <= now_ns]
            if past and len(past) < len(timeline):
                expected[request_id] = (sum(arrival.tokens for arrival in past), past[-1].at_ns)
        assert progress == expected
        later = [end_ns for end_ns in ends if end_ns > now_ns]
        next_ns = steps[now_ns]
        if next_ns is None:
            assert expected == {}
        else:
            assert now_ns < next_ns <= min(later)
            assert not expected or next_ns in later


@settings(max_examples=25)
@given(workloads())
def test_reserved_memory_never_exceeds_what_a_replica_has(deployment: Deployment, arrivals: Arrivals) -> None:
    finished = finished_by_id(drive(build_engine(deployment, 5), arrivals))
    changes: dict[int, list[tuple[int, int]]] = {}
    for _, asked in arrivals:
        done = finished[asked.request_id]
        need = deployment.kv.stream_bytes(asked.input_tokens + asked.output_tokens)
        start_ns = done.at_ns - done.phases.decode_ns - done.phases.handoff_ns
        changes.setdefault(done.replica, []).extend([(start_ns, need), (done.at_ns, -need)])
    for replica in changes.values():
        assert max(accumulate(delta for _, delta in sorted(replica))) <= replica_kv_bytes(deployment)


@settings(max_examples=40)
@given(workloads(), st.data())
def test_cancelling_leaks_nothing(deployment: Deployment, arrivals: Arrivals, data: st.DataObject) -> None:
    submitted = {asked.request_id: at_ns for at_ns, asked in arrivals}
    uncancelled = finished_by_id(drive(build_engine(deployment, 5), arrivals))
    cancels = []
    for request_id in data.draw(st.lists(st.sampled_from(sorted(submitted)), unique=True)):
        # Somewhere in one of its phases, at their ends too, as they are without the other cancels.
        phases = uncancelled[request_id].phases
        lengths_ns = [phases.queue_ns, phases.prefill_ns, phases.handoff_ns, phases.decode_ns]
        phase = data.draw(st.sampled_from([3, 2, 1, 0]))
        into_ns = lengths_ns[phase] * data.draw(st.integers(0, 3)) // 3
        cancels.append((submitted[request_id] + sum(lengths_ns[:phase]) + into_ns, request_id))
    engine = build_engine(deployment, 5)
    emissions = drive(engine, arrivals, cancels=cancels)
    finished = finished_by_id(emissions)
    for at_ns, request_id in cancels:
        assert [each for each in emissions if each.request_id == request_id and each.at_ns > at_ns] == []
    assert submitted.keys() - finished.keys() <= {request_id for _, request_id in cancels}
    assert list(engine.progress(10_000 * MS)) == []
    assert engine.next_step_ns() is None

    # All memory is free: as many of the largest streams as fit decode at once, and none waits for a slot.
    # (On rubin they are hundreds.)
    tokens = deployment.model.max_context.whole
    room = (replica_kv_bytes(deployment) - deployment.kv.window_bytes) // deployment.kv.bytes_per_token
    tokens = min(room, tokens)
    fit = replica_kv_bytes(deployment) // deployment.kv.stream_bytes(tokens)
    streams = fit * deployment.spec.decode.replicas.whole
    assert deployment.spec.prefill is not None
    if streams <= deployment.spec.prefill.instances.whole:
        start_ns = 1_000_000 * MS
        largest = [
            (start_ns + 100 * MS * index, request(100 + index, tokens - 20_000, 20_000))
            for index in range(streams)
        ]
        answers = finished_by_id(drive(engine, largest)).values()
        assert [done.phases.queue_ns for done in answers] == [0] * streams
        first_end_ns = min(done.at_ns for done in answers)
        assert max(done.first_token_at_ns for done in answers) < first_end_ns


@pytest.mark.parametrize(
    ("base", "key", "factor"),
    [
        ("links/rubin-lpx", "bandwidth_per_chip", 3),
        ("links/rubin-lpx", "latency", 0.1),
        ("links/rubin-lpx", "efficiency", 1.1),
    ],
)
@given(tokens=st.integers(1, 120_000), output=st.integers(1, 500))
def test_a_faster_link_never_makes_an_answer_later(
    tmp_path_factory: pytest.TempPathFactory, base: str, key: str, factor: float, tokens: int, output: int
) -> None:
    slow = load_deployment("gemma4-31b/pd")
    link = write_variant(
        tmp_path_factory.mktemp("link"), base, **{key: getattr(slow.link, key).value * factor}
    )
    fast = variant(link.parent, "gemma4-31b/pd", link=link.name)
    ends = [answer(build_engine(each, 1), request(1, tokens, output), 0).at_ns for each in (slow, fast)]
    assert ends[1] < ends[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_prompt_never_makes_an_answer_earlier(name: str) -> None:
    engine = build_engine(load_deployment(name), 1)
    whole = []
    for index, tokens in enumerate((1, 64, 1_000, 1_024, 5_000, 50_000, 200_000)):
        asked = request(index, tokens, 300)
        same_draws = EngineRequest(
            request_id=index,
            session_id="s",
            turn_id="t",
            context_id=str(index),
            prompt_runs=asked.prompt_runs,
            input_tokens=tokens,
            output_tokens=300,
        )
        start_ns = index * 100_000 * MS
        whole.append(answer(engine, same_draws, start_ns).at_ns - start_ns)
    assert whole == sorted(whole)
    assert len(set(whole)) == len(whole)


def test_events_do_not_depend_on_the_tokens_decoded() -> None:
    counts = []
    for output in (10, 200_000):
        engine = build_engine(load_deployment("gemma4-31b/pd"), 1)
        engine.submit(request(1, 1_000, output), 0)
        events = 0
        while (at_ns := engine.next_event_ns()) is not None:
            engine.advance(at_ns)
            events += 1
        counts.append(events)
    # Five, and one more wherever another piece of the step time begins.
    assert counts[0] == 5
    assert counts[1] <= 12


def test_time_that_goes_back_is_an_error() -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 1)
    engine.advance(5)
    with pytest.raises(ValueError, match="time went back from 5 to 4 ns"):
        engine.submit(request(1, 10, 5), 4)
    with pytest.raises(ValueError, match="time went back from 5 to 4 ns"):
        engine.cancel(1, 4)
    with pytest.raises(ValueError, match="time went back from 5 to 4 ns"):
        engine.advance(4)


def test_a_request_that_contradicts_itself_is_an_error(tmp_path: Path) -> None:
    engine = build_engine(load_deployment("gemma4-31b/pd"), 1)
    with pytest.raises(ValueError, match="10 input tokens in runs of 9"):
        engine.submit(request(1, 10, 5, runs=[PromptRun("a", 9)]), 0)
    engine.submit(request(1, 10, 5), 0)
    with pytest.raises(ValueError, match="request 1 is under way"):
        engine.submit(request(1, 10, 5), 0)
