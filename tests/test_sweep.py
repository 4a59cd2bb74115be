"""Sweeps: what a point is, what is conserved, that the number of processes changes nothing."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import PD, RUBIN, SMALL, a_named_deployment, a_point

from agentload import _sweep_measure
from agentload._cli._sweep_options import MODES
from agentload._sweep import SweepOptions, sweep
from agentload._sweep_directory import claim_directory, make_unused
from agentload._sweep_measure import measure
from agentload._sweep_points import Workload
from agentload._sweep_results import COLUMNS
from agentload._sweep_slo import parse_slo
from agentload._sweep_workload import sessions_of
from agentload_analysis import pareto_frontier
from agentload_simbackend import (
    load_deployment,
)
from agentload_simbackend._specs import MODES as SPEC_MODES
from agentload_traces import (
    AgentloadError,
    RequestRow,
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
    assert row["turns"] == row["answered"] + row["failed"] + row["skipped"] >= 1_000
    counted = {session.session_id for session in sessions_of(a_point(target))}
    others = {each.session_id for each in rows} - counted
    assert len(others) <= 3, "those that fill the other places at the end"
    rows = [each for each in rows if each.session_id in counted]
    assert row["turns"] == len(rows)
    end_s = max(found.end_ns or 0 for found in rows) / 1e9
    tokens = sum(found.output_tokens or 0 for found in rows)
    assert row["output_tokens"] == tokens == 20 * len(rows)
    assert row["run_s"] == pytest.approx(end_s)
    assert tokens / end_s < row["output_tokens_per_s"] < 1.02 * tokens / end_s
    assert row["output_tokens_per_s_per_rack"] * row["racks"] == pytest.approx(row["output_tokens_per_s"])
    assert row["itl_count"] == sum(sum((found.arrival_tokens or [])[1:]) for found in rows)
    for metric, unit in (("ttft", "ms"), ("tpot", "ms"), ("itl", "ms"), ("session", "s")):
        values = [row[f"{metric}_{name}_{unit}"] for name in ("p50", "p90", "p99", "max")]
        assert values == sorted(values)
        assert values[0] > 0
    alone = measure(a_point(target, concurrency=1))
    assert alone["output_tokens_per_s"] == pytest.approx(alone["output_tokens"] / alone["run_s"])


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


def test_the_death_of_a_worker_keeps_the_finished_points(tmp_path: Path) -> None:
    def kill(*_: object) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    result = sweep(options(tmp_path / "s", jobs=2, slo=parse_slo("ttft=1s")), kill)
    assert result.died is not None
    assert "a worker process died" in result.died
    manifest = json.loads((tmp_path / "s" / "sweep.json").read_bytes())
    done = manifest["points_done"]
    assert (manifest["status"], manifest["points_planned"]) == ("incomplete", 8)
    assert 1 <= done == pl.read_parquet(tmp_path / "s" / "sweep.parquet").height < 8
    for found in manifest["knees"]:
        assert (found["concurrency"] is None) == (found["missing"] > 0)


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


def test_of_sweeps_that_want_one_directory_at_once_one_gets_it(tmp_path: Path) -> None:
    barrier = Barrier(8)

    def claim(number: int) -> bool:
        barrier.wait()
        try:
            claim_directory(tmp_path / "s", b"%d" % number)
        except AgentloadError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(claim, range(8)))
    assert sum(won) == 1
    assert (tmp_path / "s" / "sweep.json").read_bytes() == b"%d" % won.index(True)


def test_a_directory_that_another_sweep_takes_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s"
    claim_directory(out, b"other")
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(AgentloadError, match="holds a sweep"):
        sweep(options(out, targets=(PD,), concurrencies=(1,), contexts_tokens=(2_000,)))
    assert [path.name for path in out.iterdir()] == ["sweep.json"]
    assert (out / "sweep.json").read_bytes() == b"other"


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    assert claim_directory(tmp_path, b"{}") == tmp_path


def test_sweeps_without_a_name_of_their_own_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [make_unused(tmp_path / "20300101-000000").name for _ in range(3)]
    assert made == ["20300101-000000", "20300101-000000-2", "20300101-000000-3"]
    monkeypatch.chdir(tmp_path)
    outs = [claim_directory(None, b"{}") for _ in range(3)]
    assert len(set(outs)) == 3
    assert {out.parent for out in outs} == {Path("sweeps")}


def test_polars_is_whole_before_a_point_may_be_interrupted(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from agentload import _sweep
from agentload._sweep_points import Workload

def run_points(*_):
    assert "polars" in sys.modules
    raise KeyboardInterrupt

_sweep.run_points = run_points
options = _sweep.SweepOptions(targets=({PD!r},), concurrencies=(1,), contexts_tokens=(2_000,),
                              workload=Workload(), out=Path({str(tmp_path / "s")!r}))
assert _sweep.sweep(options).interrupted
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert json.loads((tmp_path / "s" / "sweep.json").read_bytes())["status"] == "incomplete"


def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = """
import os, signal
from agentload._sweep_pool import _pool
with _pool(2) as pool:
    for future in [pool.submit(os.getpid) for _ in range(8)]:
        future.result()
    print("started", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    # The output ends when the last process that could write to it has ended.
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (-9, b"started\n")


def test_contexts_that_nothing_can_serve_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "s"
    with pytest.raises(AgentloadError, match=r"^no point can be run: .*; give a shorter --context$"):
        sweep(options(out, targets=(PD,), contexts_tokens=(1_000_000,)))
    most = load_deployment(PD).max_context_tokens
    with pytest.raises(AgentloadError, match=r"^no point can be run: .* --turns plays fewer turns$"):
        sweep(options(out, targets=(PD,), contexts_tokens=(most - 100,)))
    assert not out.exists()
    result = sweep(options(out, targets=(PD,), concurrencies=(1,), contexts_tokens=(2_000, 1_000_000)))
    assert [row["error"] is None for row in result.rows] == [True, False]
    assert {row["mode"] for row in result.rows} == {"pd"}
    assert result.manifest.status == "complete"


def test_a_target_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    target = str(a_named_deployment(tmp_path))
    result = sweep(options(tmp_path / "s", targets=(target,), concurrencies=(1,), contexts_tokens=(2_000,),
                           slo=parse_slo("ttft=1s")))  # fmt: skip
    assert [(row["target"], row["error"]) for row in result.rows] == [(f"{tmp_path}/\ufffd.toml", None)]
    manifest = json.loads((tmp_path / "s" / "sweep.json").read_bytes())
    assert manifest["deployments"][0]["target"] == manifest["knees"][0]["target"] == result.rows[0]["target"]
    missing = str(tmp_path / "\udcfe.toml")
    result = sweep(
        options(tmp_path / "t", targets=(target, missing), concurrencies=(1,), contexts_tokens=(2_000,))
    )
    assert [row["error"] is None for row in result.rows] == [True, False]


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
