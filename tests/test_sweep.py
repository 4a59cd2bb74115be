"""Sweeps: what a point is, what is conserved, that the number of processes changes nothing."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import PD, RUBIN, SMALL, a_point

from agentload import _sweep_measure
from agentload._cli._sweep_options import MODES
from agentload._sweep import SweepOptions, sweep
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
