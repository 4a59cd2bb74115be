"""`agentload sweep`: what it takes, what it shows, how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from sweep_cases import PD, RUBIN, a_named_deployment, a_trace

import agentload_simbackend
from agentload._cli import cli, main
from agentload._cli._sweep_options import context_tokens
from agentload._sweep_measure import measure
from agentload._sweep_pool import WorkerDiedError
from agentload._sweep_results import table
from agentload_simbackend import (
    load_deployment,
)
from agentload_traces import (
    AgentloadError,
)


@pytest.mark.parametrize(
    ("text", "count"), [("10K", 10_000), ("1.5k", 1_500), ("8192", 8_192), ("1M", 1_000_000), ("0.001K", 1)]
)
def test_contexts(text: str, count: int) -> None:
    assert context_tokens(text) == count


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["sweep", *arguments])


QUICK = ("--turns", "3", "--output-tokens", "20", "--concurrency", "1,4", "--context", "2K", "--jobs", "1")


def test_the_command_tells_of_a_dead_worker_and_shows_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(points: Any, jobs: int, done: Any) -> None:
        done(0, measure(points[0]))
        raise WorkerDiedError("a worker process died, perhaps for want of memory; try fewer --jobs")

    monkeypatch.setattr("agentload._sweep.run_points", die)
    done = run("--target", PD, "--slo", "ttft=1s", "--out", str(tmp_path / "s"), *QUICK)
    assert done.exit_code == 1
    text = " ".join(done.output.split())
    assert "error: a worker process died" in text
    assert "1 of 2 points are kept" in text
    assert "ttft.p99=1s holds up to: not known, for 1 point is missing" in text
    assert f"{PD} · 2K · 1" in text
    assert (tmp_path / "s" / "sweep.html").is_file()


def test_a_plot_that_cannot_be_drawn_is_a_warning_after_the_table(tmp_path: Path) -> None:
    plot = tmp_path / "p.svg"
    done = run("--target", PD, "--plot", str(plot), "--out", str(tmp_path / "s"), "--turns", "2",
               "--output-tokens", "1", "--concurrency", "1", "--context", "1K", "--jobs", "1")  # fmt: skip
    assert done.exit_code == 1
    assert f"{PD} · 1K · 1" in done.output
    assert "warning: there is nothing to plot" in done.output
    assert not plot.exists()


def test_the_command_shows_numbers_with_their_conditions(tmp_path: Path) -> None:
    out = tmp_path / "s"
    done = run("--mode", "pd,rubin", "--slo", "ttft=1s", "--out", str(out), *QUICK)
    assert done.exit_code == 0, done.output
    assert "gemma4-31b/pd, 2K: " in done.output
    text = " ".join(done.output.split())
    assert "holds up to 4, the most tried (at 4: ttft p99 " in text
    assert " ± " in text
    for target in (PD, RUBIN):
        assert f"Simulated on {target}" in text
        assert load_deployment(target).headline() in text
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
    assert [point["turns"] for point in shown["points"]] == [1_000] * 3
    assert [point["sessions"] for point in shown["points"]] == [250] * 3
    assert [point["context_tokens"] for point in shown["points"]] == [None] * 3
    assert all(point["output_tokens"] == point["sessions"] * 206 for point in shown["points"])


def test_points_that_cannot_run_exit_with_1_and_none_with_2(tmp_path: Path) -> None:
    some = run("--target", PD, "--target", "gemma4-31b/none", "--out", str(tmp_path / "a"), *QUICK)
    assert some.exit_code == 1
    assert "not run: gemma4-31b/none, 2K (2 points)" in some.output
    assert "warning: 2 of 4 points could not be run" in some.output


def test_points_that_end_by_an_error_exit_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AgentloadError("no room")

    monkeypatch.setattr("agentload._sweep_measure.build_engine", fail)
    none = run("--target", PD, "--out", str(tmp_path / "b"), *QUICK)
    assert none.exit_code == 2
    assert "error: no point could be run: no room" in none.output


def test_a_context_that_nothing_can_serve_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--target", PD, "--context", "1M", "--out", str(tmp_path / "s")])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert re.fullmatch(r"error: no point can be run: .*; give a shorter --context\n", shown.err)
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_target_whose_name_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    target = str(a_named_deployment(tmp_path))
    for output in ((), ("--json",)):
        done = run("--target", target, "--out", str(tmp_path / f"s{len(output)}"), *output, *QUICK)
        assert done.exit_code == 0, done.output


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
        (["--seed", str(2**63)], "is not in the range 0<=x<=9223372036854775807"),
        (["--seed", "-1"], "is not in the range"),
        (["--out", ""], "names no directory"),
        (["--model", "nope"], "no model named 'nope'; there are "),
        (["--model", "nope.toml"], "no such file: nope.toml"),
        (["--plot", "x.pdf"], "must end in .svg or .png"),
        (["--plot", "nowhere/x.svg"], "there is no directory nowhere"),
    ],
)
def test_bad_usage_is_told(arguments: list[str], told: str, tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "t.jsonl")
    shown = [str(trace) if argument == "TRACE" else argument for argument in arguments]
    done = run("--out", str(tmp_path / "s"), *shown)
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "s").exists()


def test_a_model_may_be_a_file(tmp_path: Path) -> None:
    model = tmp_path / "mine.toml"
    built_in = Path(agentload_simbackend.__file__).parent / "specs" / "models" / "llama-3.1-8b.toml"
    model.write_bytes(built_in.read_bytes())
    done = run("--model", str(model), "--mode", "rubin", "--out", str(tmp_path / "s"), *QUICK, "--json")
    assert done.exit_code == 0, done.output
    assert {row["target"] for row in json.loads(done.stdout)["points"]} == {f"{model}/rubin"}


def test_a_bad_slo_is_told(tmp_path: Path) -> None:
    done = run("--slo", "ttft=5", "--out", str(tmp_path / "s"))
    assert done.exit_code != 0
    assert isinstance(done.exception, AgentloadError)
    assert "without a unit" in str(done.exception)
