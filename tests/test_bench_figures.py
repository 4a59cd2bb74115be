"""Figures of benchmarks of single requests: those of the engine, of the rows, and what is published."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_cases import PD, bench, rows_of, speed_of
from hypothesis import given
from hypothesis import strategies as st

from agentload._bench import BenchCase
from agentload._bench_figures import interval_ranks, request_figures
from agentload._bench_words import CODING_INPUT, CODING_OUTPUT, published
from agentload_simbackend import _fidelity_lpx as lpx
from agentload_simbackend import fidelity, load_deployment
from agentload_simbackend._acceptance import Acceptance
from agentload_simbackend._output_speed import output_speeds
from agentload_simbackend._plan import build_plan
from agentload_traces import RequestRow

AA = (10_000, 100_000)


def test_the_virtual_speed_is_that_of_the_engine(tmp_path: Path) -> None:
    case = BenchCase(100_000, 2_000)
    result = bench(cases=(case,), out=tmp_path / "b")
    rows = rows_of(result.cases[0].run)
    deployment = load_deployment(PD)
    speculation = deployment.spec.speculation
    assert speculation is not None
    length = speculation.acceptance_length["general"].value
    steps = build_plan(deployment).replicas[0].steps
    expected = []
    for row in rows:

        class Drawn(Acceptance):
            """Draws what the engine draws for this request."""

            def draw(self, session_id: str, turn_id: str, tokens: int, row: Any = row) -> Any:
                return super().draw(row["session_id"], row["turn_id"], tokens)

        acceptance = Drawn(0, deployment.draft_tokens, length, speculation.prompt_cv.value)
        expected += output_speeds(steps, acceptance, input_tokens=100_000, output_tokens=2_000, prompts=1)
    assert [speed_of(row) for row in rows] == pytest.approx(expected, rel=2e-3)
    figures = result.cases[0].figures
    assert figures is not None
    assert figures.speed_tokens_per_s is not None
    assert figures.speed_tokens_per_s.median == pytest.approx(statistics.median(expected), rel=2e-3)


def test_a_simulated_ttft_is_what_its_phases_add_up_to(tmp_path: Path) -> None:
    result = bench(cases=(BenchCase(10_000, 50),), out=tmp_path / "b")
    (case,) = result.cases
    rows = rows_of(case.run)
    assert case.figures is not None
    assert case.figures.ttft_ms is not None
    assert case.figures.end_to_end_s is not None
    whole = [sum(row[f"{name}_ns"] for name in ("queue", "prefill", "handoff", "decode")) for row in rows]
    assert case.figures.end_to_end_s.median == pytest.approx(statistics.median(whole) / 1e9)
    until_decode = [row["queue_ns"] + row["prefill_ns"] + row["handoff_ns"] for row in rows]
    assert case.figures.ttft_ms.median > statistics.median(until_decode) / 1e6


@pytest.mark.parametrize("count", [1, 2, 7])
def test_figures_are_recomputed_from_the_rows(tmp_path: Path, count: int) -> None:
    result = bench(cases=(BenchCase(300, 60),), requests=count, out=tmp_path / "b")
    written = json.loads((tmp_path / "b" / "bench.json").read_bytes())
    assert written == json.loads(msgspec.json.encode(result))
    (case,) = written["cases"]
    rows, figures = rows_of(case["run"]), case["figures"]
    speeds = sorted(filter(None, map(speed_of, rows)))
    ttfts_ms = [(row["first_token_ns"] - row["sent_ns"]) / 1e6 for row in rows]
    wholes_s = [(row["end_ns"] - row["sent_ns"]) / 1e9 for row in rows]
    assert figures["requests"] == figures["answered"] == count == len({row["session_id"] for row in rows})
    assert figures["speed_tokens_per_s"]["median"] == pytest.approx(statistics.median(speeds), rel=1e-12)
    assert figures["ttft_ms"]["median"] == pytest.approx(statistics.median(ttfts_ms))
    assert figures["end_to_end_s"]["median"] == pytest.approx(statistics.median(wholes_s))
    assert figures["output_tokens"] == 60
    spread = figures["speed_tokens_per_s"]
    assert speeds[0] <= spread["p5"] <= spread["median"] <= spread["p80"] <= spread["p95"] <= speeds[-1]
    interval = (speeds[0], speeds[-1]) if count == 7 else (None, None)
    assert (spread["median_low"], spread["median_high"]) == pytest.approx(interval)


def test_requests_come_one_after_the_other_and_share_no_prefix(tmp_path: Path) -> None:
    result = bench(cases=(BenchCase(5_000, 20),), out=tmp_path / "b")
    rows = rows_of(result.cases[0].run)
    for before, after in pairwise(rows):
        assert after["sent_ns"] >= before["end_ns"]
    assert [row["cached_tokens"] for row in rows] == [0] * 5


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    case = (BenchCase(300, 60),)
    assert bench(cases=case, seed=3) == bench(cases=case, seed=3)
    assert bench(cases=case, seed=3).cases != bench(cases=case, seed=4).cases


@pytest.mark.parametrize(
    ("count", "q", "ranks"),
    [(50, 0.5, (18, 33)), (5, 0.5, (None, None)), (6, 0.5, (1, 6)), (80, 0.5, (31, 50)), (5, 0.8, (2, None))],
)
def test_intervals_of_quantiles(count: int, q: float, ranks: tuple[int | None, int | None]) -> None:
    """Known: the tables of order statistics have ranks 18 and 33 of 50 for a median."""
    assert interval_ranks(count, q) == ranks


@given(count=st.integers(1, 1_000), q=st.floats(0.01, 0.99))
def test_an_interval_holds_the_quantile_as_often_as_it_says(count: int, q: float) -> None:
    low, high = interval_ranks(count, q)

    def below(rank: int) -> float:
        """The chance that fewer than `rank` values lie below the quantile."""
        return sum(comb(count, k) * q**k * (1 - q) ** (count - k) for k in range(rank))

    if low is not None:
        assert below(low) <= 0.025 + 1e-9
        assert below(low + 1) > 0.025 - 1e-9
    if high is not None:
        assert 1 - below(high) <= 0.025 + 1e-9
        assert 1 - below(high - 1) > 0.025 - 1e-9
    if low is not None and high is not None:
        assert low <= high


def test_published_figures_are_those_of_the_fidelity_report() -> None:
    for target, group in ((PD, "TP128"), (f"{PD}-1replica", "TP256")):
        found = {
            **{f"AA {n // 1000}K output speed, median ({group})": published("aa", target, n)[0] for n in AA},
            **{
                f"SPEED-Bench coding output speed, {label} ({group})": each
                for label, each in zip(
                    ("median", "P80"), published("coding", target, CODING_INPUT), strict=True
                )
            },
        }
        rows = {row.name: row for row in fidelity(100).rows if row.name in found}
        assert rows.keys() == found.keys()
        for name, each in found.items():
            row = rows[name]
            assert (each.tokens_per_s, each.kind, each.source) == (row.published, row.kind, row.source)
    assert (CODING_INPUT, CODING_OUTPUT) == (lpx.CODING_INPUT, lpx.CODING_OUTPUT)


@pytest.mark.parametrize(
    ("kind", "target", "tokens"),
    [
        ("aa", PD, 1_000),
        ("aa", "gemma4-31b/rubin", 10_000),
        ("coding", PD, 10_000),
        ("aa", "http://x", 10_000),
    ],
)
def test_where_nothing_is_published_nothing_is_shown(kind: Any, target: str, tokens: int) -> None:
    assert published(kind, target, tokens) == []


def test_retried_attempts_are_no_requests_and_failures_are_counted() -> None:
    import polars as pl

    def row(number: int, **values: Any) -> dict[str, Any]:
        made = RequestRow(session_id=f"s{number}", turn_id="0", turn_index=0, scheduled_ns=number)
        return {**msgspec.structs.asdict(made), **values}

    answer = {
        **{"sent_ns": 0, "first_token_ns": 2_000_000, "end_ns": 9_000_000, "output_tokens": 5},
        **{"arrival_dt_us": [2_000, 1_000, 3_000], "arrival_tokens": [1, 2, 2], "output_tokens_asked": 6},
        **{"reported_output_tokens": 10, "cached_tokens": 3, "sent_tokens": 300},
    }
    one_arrival = {**answer, "arrival_dt_us": [2_000], "arrival_tokens": [5], "output_tokens_asked": 5}
    rows = [
        row(0, status="retried", error="busy"),
        row(1, **answer),
        row(2, **one_arrival),
        row(3, status="failed", error="no luck"),
        row(4, status="failed", error="again"),
    ]
    figures = request_figures(pl.LazyFrame(rows, infer_schema_length=None))
    assert (figures.requests, figures.answered, figures.failed) == (4, 2, 2)
    assert figures.first_failure == "no luck"
    assert (figures.shorter, figures.cached, figures.reported_per_counted) == (1, 2, 2.0)
    assert figures.speed_tokens_per_s is not None
    assert (figures.speed_tokens_per_s.count, figures.speed_tokens_per_s.median) == (1, 4 / 4_000e-6)
    assert figures.ttft_ms is not None
    assert figures.ttft_ms.median == pytest.approx(2.0)
    assert figures.end_to_end_s is not None
    assert figures.end_to_end_s.median == pytest.approx(0.009)
