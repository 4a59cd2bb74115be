"""What the tests of benchmarks share: a benchmark in virtual time, its command, its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from agentload._bench import BenchOptions, BenchResult, run_bench
from agentload._cli import cli
from agentload_traces import RunReader

PD = "gemma4-31b/pd"


def bench(**values: Any) -> BenchResult:
    defaults: dict[str, Any] = {"kind": "aa", "target": PD, "requests": 5}
    return run_bench(BenchOptions(**{**defaults, **values}))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *words])


def rows_of(run: Path | str | None) -> list[dict[str, Any]]:
    assert run is not None
    return RunReader(Path(run)).requests().sort("scheduled_ns").collect().to_dicts()


def speed_of(row: dict[str, Any]) -> float | None:
    """As Artificial Analysis has it: tokens after the first ones, over the time since these came.

    `None` of an answer that came in one read, as on a machine that is busy.
    """
    tokens, gaps_us = row["arrival_tokens"], row["arrival_dt_us"]
    return float(sum(tokens[1:]) / sum(gaps_us[1:]) * 1e6) if sum(gaps_us[1:]) else None
