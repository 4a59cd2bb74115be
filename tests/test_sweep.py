"""Sweeps: what a point is, what is conserved, that the number of processes changes nothing."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agentload import _sweep_measure
from agentload._cli import cli
from agentload._cli._sweep_options import MODES, context_tokens
from agentload._prompts import PromptPlanner, shared_tokens
from agentload._sweep import SweepOptions, sweep
from agentload._sweep_measure import measure
from agentload._sweep_points import SweepPoint, Workload, grid
from agentload._sweep_racks import racks_of
from agentload._sweep_results import COLUMNS, table
from agentload._sweep_slo import parse_slo
from agentload._sweep_workload import StaggeredLoop, copies, generated
from agentload._virtual import VirtualRun
from agentload_analysis import pareto_frontier
from agentload_simbackend import load_deployment
from agentload_simbackend._specs import MODES as SPEC_MODES
from agentload_traces import (
    AgentloadError,
    PrefixBlocks,
    RequestRow,
    Session,
    ToolCall,
    Turn,
    sample_path,
    write_trace,
)

PD, RUBIN = "gemma4-31b/pd", "gemma4-31b/rubin"
SMALL = Workload(turns=3, output_tokens=20)


def a_point(target: str = PD, concurrency: int = 2, context: int = 2_000, **values: Any) -> SweepPoint:
    workload = values.pop("workload", SMALL)
    return SweepPoint(
        target=target, concurrency=concurrency, context_tokens=context, workload=workload, seed=0, **values
    )


def options(out: Path, **values: Any) -> SweepOptions:
    given_values = {
        "targets": (PD, RUBIN),
        "concurrencies": (1, 3),
        "contexts_tokens": (2_000, 9_000),
        "workload": SMALL,
        "out": out,
    }
    return SweepOptions(**{**given_values, **values})


def a_trace(path: Path, sessions: int = 2) -> Path:
    turns = [
        Turn(
            session_id=f"s{number}",
            turn_id=f"t{index}",
            wait_for=(f"t{index - 1}",) if index else (),
            input_tokens=1_000 * (index + 1),
            output_tokens=50 + index,
            blocks=PrefixBlocks(ids=tuple(range(1, 2 * index + 3)), block_tokens=500, scope="trace"),
            tool_calls=(ToolCall(name="tool", duration_ms=100.0),),
        )
        for number in range(sessions)
        for index in range(4)
    ]
    write_trace(path, turns)
    return path


@pytest.mark.parametrize("target", [PD, RUBIN])
def test_a_point_adds_up(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[RequestRow] = []
    keep = _sweep_measure._PointRows.add_request

    def spy(self: Any, row: RequestRow) -> None:
        rows.append(msgspec.structs.replace(row))
        keep(self, row)

    monkeypatch.setattr(_sweep_measure._PointRows, "add_request", spy)
    row = measure(a_point(target, concurrency=4))
    assert row.keys() == COLUMNS.keys()
    assert row["error"] is None
    assert row["turns"] == row["answered"] + row["failed"] + row["skipped"] == len(rows) >= 4 * 100
    end_s = max(found.end_ns or 0 for found in rows) / 1e9
    tokens = sum(found.output_tokens or 0 for found in rows)
    assert row["output_tokens"] == tokens == 20 * len(rows)
    assert row["run_s"] == pytest.approx(end_s)
    assert row["output_tokens_per_s"] == pytest.approx(tokens / end_s)
    assert row["output_tokens_per_s_per_rack"] * row["racks"] == pytest.approx(row["output_tokens_per_s"])
    assert row["itl_count"] == sum(sum((found.arrival_tokens or [])[1:]) for found in rows)
    assert 3 < row["sessions_at_once_mean"] <= 4
    for metric, unit in (("ttft", "ms"), ("tpot", "ms"), ("itl", "ms"), ("session", "s")):
        values = [row[f"{metric}_{name}_{unit}"] for name in ("p50", "p90", "p99", "max")]
        assert values == sorted(values)
        assert values[0] > 0


def test_a_row_is_a_pure_function_of_its_point() -> None:
    assert measure(a_point()) == measure(a_point())


def test_the_table_and_its_manifest_are_the_same_whatever_the_jobs(tmp_path: Path) -> None:
    files = []
    for jobs in (1, 2):
        result = sweep(options(tmp_path / f"{jobs}", jobs=jobs, slo=parse_slo("ttft=1s")))
        assert result.manifest.status == "complete"
        files.append((tmp_path / f"{jobs}" / "sweep.parquet").read_bytes())
    assert files[0] == files[1]
    rows = pl.read_parquet(tmp_path / "1" / "sweep.parquet")
    assert rows.select("target", "context_tokens", "concurrency").rows() == [
        (target, context, concurrency)
        for target in (PD, RUBIN)
        for context in (2_000, 9_000)
        for concurrency in (1, 3)
    ]
    assert rows["holds"].all()


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_keeps_the_finished_points(jobs: int, tmp_path: Path) -> None:
    done: list[None] = []

    def progress() -> None:
        done.append(None)
        if len(done) == 2:
            raise KeyboardInterrupt

    result = sweep(options(tmp_path / "s", jobs=jobs), progress)
    assert result.interrupted
    assert multiprocessing.active_children() == []
    manifest = json.loads((tmp_path / "s" / "sweep.json").read_bytes())
    assert (manifest["status"], manifest["points_done"], manifest["points_planned"]) == ("incomplete", 2, 8)
    kept = pl.read_parquet(tmp_path / "s" / "sweep.parquet")
    whole = sweep(options(tmp_path / "whole"))
    assert kept.height == 2
    assert all(row in whole.rows for row in kept.to_dicts())


def test_a_deployment_that_cannot_be_loaded_is_rows_with_the_reason(tmp_path: Path) -> None:
    result = sweep(options(tmp_path / "s", targets=("gemma4-31b/none", PD)))
    assert result.manifest.status == "complete"
    bad = [row for row in result.rows if row["error"] is not None]
    assert len(bad) == 4
    assert {row["target"] for row in bad} == {"gemma4-31b/none"}
    assert all("none" in row["error"] for row in bad)
    with pytest.raises(AgentloadError, match="none"):
        sweep(options(tmp_path / "t", targets=("gemma4-31b/none",)))
    assert not (tmp_path / "t").exists()


def test_a_session_that_outgrows_the_context_is_told_with_the_arithmetic() -> None:
    most = load_deployment(PD).max_context_tokens
    row = measure(a_point(context=most - 400, workload=Workload(turns=2, output_tokens=100)))
    assert f"{most:,} prompt + 100 output = {most + 100:,} tokens > {most:,}" in row["error"]
    assert row["turns"] is None


def test_a_directory_that_holds_a_sweep_is_refused(tmp_path: Path) -> None:
    sweep(options(tmp_path / "s", targets=(PD,), concurrencies=(1,), contexts_tokens=(2_000,)))
    with pytest.raises(AgentloadError, match="holds a sweep"):
        sweep(options(tmp_path / "s"))


def test_generated_sessions_grow_and_share_their_own_prefix_only() -> None:
    sessions = list(generated(a_point(concurrency=3, context=1_000, workload=Workload(turns=60))))
    assert len(sessions) == 3 * 2
    assert len({session.session_id for session in sessions}) == len(sessions)
    first = [PromptPlanner(session).plan(session.turns[0]).runs for session in sessions]
    assert shared_tokens(first[0], first[1]) == 0
    planner, before = PromptPlanner(sessions[0]), 0
    for turn in sessions[0].turns:
        assert planner.plan(turn).shared_tokens == before
        before = turn.input_tokens + (turn.output_tokens or 0)
    assert sessions[0].turns[-1].input_tokens == 1_000 + 59 * 700


@given(sessions=st.integers(1, 3), least=st.integers(1, 7))
def test_copies_share_blocks_with_their_own_copy_only(sessions: int, least: int) -> None:
    ids = (1, 2, 3)
    blocks = PrefixBlocks(ids=ids, block_tokens=10, scope="trace")
    trace = tuple(
        Session(f"s{n}", (Turn(session_id=f"s{n}", turn_id="t", input_tokens=30, blocks=blocks),))
        for n in range(sessions)
    )
    made = list(copies(trace, least))
    assert len(made) == -(-least // sessions) * sessions >= least
    assert len({session.session_id for session in made}) == len(made)
    prompts = [PromptPlanner(session).plan(session.turns[0]).runs for session in made]
    for one, prompt in enumerate(prompts):
        for other in range(one):
            same_copy = one // sessions == other // sessions
            assert shared_tokens(prompt, prompts[other]) == (30 if same_copy else 0)
    assert made == list(copies(trace, least + 5))[: len(made)]


@given(concurrency=st.integers(1, 5), count=st.integers(1, 12), spread_ns=st.integers(0, 10**9))
def test_first_sessions_start_evenly(concurrency: int, count: int, spread_ns: int) -> None:
    sessions = [
        Session(f"s{n}", (Turn(session_id=f"s{n}", turn_id="t", input_tokens=9, output_tokens=9),))
        for n in range(count)
    ]
    rows = _sweep_measure._PointRows()
    engine = _sweep_measure.build_engine(load_deployment(RUBIN), 0)
    VirtualRun(engine, StaggeredLoop(sessions, concurrency, spread_ns), rows).run()
    starts = {row.session_id: row.scheduled_ns for row in rows.requests}
    assert len(starts) == count
    for number in range(min(concurrency, count)):
        assert starts[f"s{number}"] == number * spread_ns // concurrency


def test_the_grid_of_a_trace_has_no_contexts() -> None:
    points = grid([PD], [1_000, 2_000], [1, 2], Workload(trace=Path("t")), 0)
    assert [(point.context_tokens, point.concurrency) for point in points] == [(None, 1), (None, 2)]


def test_racks_count_whole() -> None:
    assert racks_of(load_deployment(PD)) == {"lpx": 1, "vera-rubin-nvl72": 1}
    assert racks_of(load_deployment(RUBIN)) == {"vera-rubin-nvl72": 1}


def test_the_modes_are_those_of_the_specs() -> None:
    assert set(MODES) == set(SPEC_MODES)


points_of_plane = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=15)


@given(points=points_of_plane)
def test_nothing_beats_the_frontier_and_it_beats_the_rest(points: list[tuple[int, int]]) -> None:
    def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one != other and one[0] >= other[0] and one[1] >= other[1]

    kept = pareto_frontier(points)
    assert kept == sorted(kept, key=lambda index: (*points[index], index))
    assert set(kept) == {
        index for index, point in enumerate(points) if not any(beats(other, point) for other in points)
    }


@pytest.mark.parametrize(
    ("text", "count"), [("10K", 10_000), ("1.5k", 1_500), ("8192", 8_192), ("1M", 1_000_000), ("0.001K", 1)]
)
def test_contexts(text: str, count: int) -> None:
    assert context_tokens(text) == count


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["sweep", *arguments])


QUICK = ("--turns", "3", "--output-tokens", "20", "--concurrency", "1,4", "--context", "2K", "--jobs", "1")


def test_the_command_shows_numbers_with_their_conditions(tmp_path: Path) -> None:
    out = tmp_path / "s"
    done = run("--mode", "pd,rubin", "--slo", "ttft=1s", "--out", str(out), *QUICK)
    assert done.exit_code == 0, done.output
    assert "gemma4-31b/pd, 2K: " in done.output
    assert "holds up to 4, the most tried" in done.output
    for target in (PD, RUBIN):
        assert f"Simulated on {target}" in done.output
    assert "Workload: generated sessions of 3 turns" in done.output
    assert sorted(path.name for path in out.iterdir()) == ["sweep.html", "sweep.json", "sweep.parquet"]
    manifest = json.loads((out / "sweep.json").read_bytes())
    assert manifest["columns"].keys() == set(pl.read_parquet(out / "sweep.parquet").columns)
    assert [found["target"] for found in manifest["deployments"]] == [PD, RUBIN]
    assert all(len(found["spec_sha256"]) == 64 for found in manifest["deployments"])
    assert [found["concurrency"] for found in manifest["knees"]] == [4, 4]


def test_json_is_the_table(tmp_path: Path) -> None:
    done = run("--target", PD, "--json", "--out", str(tmp_path / "s"), *QUICK)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert table(shown["points"]).equals(pl.read_parquet(tmp_path / "s" / "sweep.parquet"))
    assert shown["deployments"][0]["conditions"]


def test_a_trace_is_played_at_every_concurrency(tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "t.jsonl")
    done = run("--target", PD, "--trace", str(trace), "--concurrency", "1,2,5", "--jobs", "1", "--json",
               "--out", str(tmp_path / "s"))  # fmt: skip
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert [point["sessions"] for point in shown["points"]] == [2, 2, 6]
    assert [point["context_tokens"] for point in shown["points"]] == [None] * 3
    assert all(point["output_tokens"] == point["sessions"] * 206 for point in shown["points"])


def test_speed_shortens_the_tools_of_a_trace(tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "t.jsonl", sessions=1)

    def session_s(speed: float) -> float:
        workload = Workload(trace=trace, speed=speed)
        row = measure(SweepPoint(target=PD, concurrency=1, context_tokens=None, workload=workload, seed=0))
        return float(row["session_p50_s"])

    # Three tools of 0.1 s are waited for; the last one's result goes nowhere.
    assert session_s(1) - session_s(4) == pytest.approx(3 * 0.1 * 0.75, abs=2e-3)


def test_points_that_cannot_run_exit_with_1_and_none_with_2(tmp_path: Path) -> None:
    some = run("--target", PD, "--target", "gemma4-31b/none", "--out", str(tmp_path / "a"), *QUICK)
    assert some.exit_code == 1
    assert "not run: gemma4-31b/none, 2K (2 points)" in some.output
    assert "warning: 2 of 4 points could not be run" in some.output
    none = run("--target", PD, "--out", str(tmp_path / "b"), *QUICK[:6], "--context", "90M")
    assert none.exit_code == 2
    assert "error: no point could be run: " in none.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--mode", "pd,dp"], '"dp" is no mode; there are rubin, lpx, pd, afd, drafter'),
        (["--concurrency", "1,two"], '"two" is no whole number from 1 to 100,000'),
        (["--concurrency", "0"], '"0" is no whole number'),
        (["--concurrency", "4,4"], "4 is given twice"),
        (["--context", "10Q"], '"10Q" is no number of tokens, such as 10K'),
        (["--context", "1.5"], '"1.5" is no number of tokens'),
        (["--trace", "TRACE", "--context", "10K"], "leave out --context"),
        (["--trace", "TRACE", "--tool-time", "1"], "leave out --tool-time"),
        (["--format", "weka"], "--format is of a trace"),
        (["--speed", "2"], "--speed is of a trace"),
        (["--tool-time", "nan"], "is not a number"),
        (["--plot", "x.pdf"], "must end in .svg or .png"),
    ],
)
def test_bad_usage_is_told(arguments: list[str], told: str, tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "t.jsonl")
    shown = [str(trace) if argument == "TRACE" else argument for argument in arguments]
    done = run(*shown, "--out", str(tmp_path / "s"))
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "s").exists()


def test_a_bad_slo_is_told(tmp_path: Path) -> None:
    done = run("--slo", "ttft=5", "--out", str(tmp_path / "s"))
    assert done.exit_code != 0
    assert isinstance(done.exception, AgentloadError)
    assert "without a unit" in str(done.exception)


def test_the_bundled_session_beside_itself() -> None:
    workload = Workload(trace=sample_path("weka_trace_0086.json"))
    point = SweepPoint(target=PD, concurrency=2, context_tokens=None, workload=workload, seed=0)
    row = measure(point)
    assert (row["sessions"], row["turns"], row["failed"]) == (2, 48, 0)
    assert row["output_tokens"] == 2 * 9_340
