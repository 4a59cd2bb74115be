"""What a sweep plays: the same sessions at every concurrency, and when they start."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import PD, RUBIN, a_point, a_trace

from agentload import _sweep_measure
from agentload._options import LoadOptions, ReplayOptions
from agentload._prompts import PromptPlanner, shared_tokens
from agentload._replay import replay
from agentload._sweep_measure import measure
from agentload._sweep_points import Workload, grid
from agentload._sweep_results import COLUMNS
from agentload._sweep_workload import StaggeredLoop, copies, sessions_of
from agentload._virtual import VirtualRun
from agentload_analysis import overall
from agentload_simbackend import (
    Arrival,
    Emission,
    EngineRequest,
    Finished,
    Phases,
    build_engine,
    load_deployment,
)
from agentload_traces import (
    PrefixBlocks,
    RequestRow,
    RunReader,
    Session,
    Turn,
    sample_path,
    write_trace,
)


def test_generated_sessions_grow_and_share_their_own_prefix_only() -> None:
    sessions = list(sessions_of(a_point(places=30, context=1_000, workload=Workload(turns=60))))
    assert len(sessions) == 30  # as many as places, with more turns than these need
    assert len({session.session_id for session in sessions}) == len(sessions)
    first = [PromptPlanner(session).plan(session.turns[0]).runs for session in sessions]
    assert shared_tokens(first[0], first[1]) == 0
    planner, before = PromptPlanner(sessions[0]), 0
    for turn in sessions[0].turns:
        assert planner.plan(turn).shared_tokens == before
        before = turn.input_tokens + (turn.output_tokens or 0)
    assert sessions[0].turns[-1].input_tokens == 1_000 + 59 * 700


@given(sessions=st.integers(1, 3), count=st.integers(1, 7))
def test_copies_share_blocks_with_their_own_copy_only(sessions: int, count: int) -> None:
    ids = (1, 2, 3)
    blocks = PrefixBlocks(ids=ids, block_tokens=10, scope="trace")
    trace = tuple(
        Session(name, (Turn(session_id=name, turn_id="t", input_tokens=30, blocks=blocks),))
        for name in ("s", "s#1", "s#")[:sessions]
    )
    made = list(islice(copies(trace), count * sessions))
    assert len(made) == count * sessions
    assert tuple(made[:sessions]) == trace
    assert len({session.session_id for session in made}) == len(made)
    prompts = [PromptPlanner(session).plan(session.turns[0]).runs for session in made]
    for one, prompt in enumerate(prompts):
        for other in range(one):
            same_copy = one // sessions == other // sessions
            assert shared_tokens(prompt, prompts[other]) == (30 if same_copy else 0)


@given(concurrency=st.integers(1, 5), count=st.integers(1, 12), spread_ns=st.integers(0, 10**9))
def test_first_sessions_start_evenly(concurrency: int, count: int, spread_ns: int) -> None:
    sessions = [
        Session(f"s{n}", (Turn(session_id=f"s{n}", turn_id="t", input_tokens=9, output_tokens=9),))
        for n in range(count)
    ]
    rows = _sweep_measure._PointRows(sessions, None)
    engine = build_engine(load_deployment(RUBIN), 0)
    with suppress(_sweep_measure._AllHere):
        VirtualRun(engine, StaggeredLoop(sessions, concurrency, spread_ns), rows).run()
    starts = {row.session_id: row.scheduled_ns for row in rows.requests}
    assert len(starts) == count
    for number in range(min(concurrency, count)):
        assert starts[f"s{number}"] == number * spread_ns // concurrency


def test_the_grid_of_a_trace_has_no_contexts() -> None:
    points = grid([PD], [1_000, 2_000], [1, 2], Workload(trace=Path("t")), 0)
    assert [(point.context_tokens, point.concurrency) for point in points] == [(None, 1), (None, 2)]


class UnhurriedEngine:
    """As many requests as come are answered as if each were alone, at a speed of its session's own."""

    def __init__(self, *_: object) -> None:
        self._due: list[tuple[int, int, Emission]] = []

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        step_ns = 1_000_000 + 10_000 * (blake2b(request.session_id.encode(), digest_size=1).digest()[0])
        count = request.output_tokens
        first_ns, end_ns = now_ns + 3 * step_ns, now_ns + (count + 2) * step_ns
        done = Finished(
            request_id=request.request_id,
            at_ns=end_ns,
            first_token_at_ns=first_ns,
            phases=Phases(0, first_ns - now_ns, 0, end_ns - first_ns),
            cached_tokens=0,
            handoff_tokens=0,
            output_tokens=count,
            steps=count,
            replica=0,
            arrivals=lambda: [Arrival(first_ns + step_ns * index, 1) for index in range(count)],
        )
        heappush(self._due, (end_ns, request.request_id, done))

    def advance_to_emission(self, limit_ns: int | None) -> list[Emission]:
        if not self._due or (limit_ns is not None and self._due[0][0] > limit_ns):
            return []
        return [heappop(self._due)[2]]


@pytest.mark.parametrize("traced", [False, True])
def test_what_does_not_depend_on_load_is_the_same_at_every_concurrency(
    traced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sweep_measure, "build_engine", UnhurriedEngine)
    workload = Workload(trace=a_trace(tmp_path / "t.jsonl"), speed=5) if traced else Workload(turns=7)
    points = grid([PD], [2_000], [1, 2, 5, 8, 40], workload, 0)
    rows = [measure(point) for point in points]
    of_load = {"concurrency", "run_s"} | {name for name in COLUMNS if name.startswith("output_tokens_per_s")}
    alone = {name: value for name, value in rows[0].items() if name not in of_load}
    assert alone["sessions"] >= 40
    assert alone["turns"] >= 50 * 40
    assert alone["ttft_p99_ms"] > 1.2 * alone["ttft_p50_ms"] > 0
    for row in rows[1:]:
        assert {name: row[name] for name in alone} == alone
    for row in rows:
        together = row["output_tokens_per_s"] / rows[0]["output_tokens_per_s"]
        assert together == pytest.approx(row["concurrency"], rel=0.05), (
            "places that empty at the end do not count"
        )


def test_a_sweep_at_concurrency_1_begins_with_the_numbers_of_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = a_trace(tmp_path / "t.jsonl")
    replay(ReplayOptions(trace=trace, out=tmp_path / "run", target=PD, load=LoadOptions(concurrency=1)))
    replayed = RunReader(tmp_path / "run").requests().collect().to_dicts()
    rows: list[RequestRow] = []
    keep = _sweep_measure._PointRows.add_request

    def spy(self: Any, row: RequestRow) -> None:
        rows.append(msgspec.structs.replace(row))
        keep(self, row)

    monkeypatch.setattr(_sweep_measure._PointRows, "add_request", spy)
    swept = measure(grid([PD], [], [1, 3], Workload(trace=trace), 0)[0])
    assert swept["sessions"] == swept["turns"] / 4 >= 75
    assert [msgspec.structs.asdict(row) for row in rows[: len(replayed)]] == replayed


def test_gaps_are_those_of_a_report_to_the_last_digit(tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "t.jsonl", sessions=30)
    point = a_point(concurrency=1, workload=Workload(trace=trace))
    played = [turn for session in sessions_of(point) for turn in session.turns]
    write_trace(tmp_path / "played.jsonl", played)
    load = LoadOptions(concurrency=1)
    replay(ReplayOptions(trace=tmp_path / "played.jsonl", out=tmp_path / "run", target=PD, load=load))
    row = measure(point)
    found = overall(RunReader(tmp_path / "run").requests()).collect().to_dicts()[0]
    statistics = ("p50", "p90", "p99", "max")
    names = [f"{metric}_{name}_ms" for metric in ("itl", "ttft", "tpot") for name in statistics]
    assert {name: row[name] for name in names} == {name: found[name] for name in names}
    assert row["turns"] == found["turns"] == len(played)


def test_speed_shortens_the_tools_of_a_trace(tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "t.jsonl", sessions=1)

    def session_s(speed: float) -> float:
        workload = Workload(trace=trace, speed=speed)
        (point,) = grid([PD], [], [1], workload, 0)
        return float(measure(point)["session_p50_s"])

    # Three tools of 0.1 s are waited for; the last one's result goes nowhere.
    assert session_s(1) - session_s(4) == pytest.approx(3 * 0.1 * 0.75, abs=2e-3)


def test_the_bundled_session_beside_itself() -> None:
    workload = Workload(trace=sample_path("weka_trace_0086.json"))
    (point,) = grid([PD], [], [2], workload, 0)
    row = measure(point)
    assert (row["sessions"], row["turns"], row["failed"]) == (42, 42 * 24, 0)
    assert row["output_tokens"] == 42 * 9_340
