"""`agentload run` and `replay` as a user calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec import structs

import agentload_simbackend
from agentload._options import LoadOptions, ReplayOptions
from agentload._run_manifest import new_manifest
from agentload_simbackend import load_deployment
from agentload_traces import RequestRow, RunReader, RunWriter, ToolCall, Turn, sample_path, write_trace

REQUESTS = "requests.parquet"
specs_directory = Path(agentload_simbackend.__file__).parent / "specs"


def agentload(*args: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentload", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **env}, check=False
    )


def failing(*args: object, cwd: Path | None = None) -> str:
    """Run a command that must exit with 2 and print one line; returns the line."""
    done = agentload(*args, cwd=cwd)
    assert done.returncode == 2, done
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in lines if line]) == 1, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two short sessions of three turns."""
    turns = [
        Turn(
            session_id=session,
            turn_id=f"t{number}",
            wait_for=(f"t{number - 1}",) if number else (),
            start_ms=float(number * 100),
            input_tokens=1_000 * (number + 1),
            new_input_tokens=1_000 if not number else 960,
            output_tokens=40,
            tool_calls=(ToolCall(name="shell", duration_ms=10.0),),
        )
        for session in ("a", "b")
        for number in range(3)
    ]
    path = tmp_path / "trace.jsonl"
    write_trace(path, turns)
    return path


def test_run_reports_the_bundled_session(tmp_path: Path) -> None:
    done = agentload("run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (summary["sessions"], summary["turns"]) == (1, 201)
    assert len(summary["per_turn"]) == 201
    for name in ("session_time_s", "output_tokens_per_s_per_user"):
        assert {"p50", "p90", "p99", "max"} <= summary[name].keys()
    run = tmp_path / summary["run"]
    assert RunReader(run).manifest.status == "complete"
    assert (tmp_path / summary["html"]).read_text().startswith("<!doctype html")


def test_run_prints_the_table_and_the_path(trace: Path, tmp_path: Path) -> None:
    done = agentload("run", trace, "--out", tmp_path / "run", "--concurrency", 1)
    assert done.returncode == 0, done.stderr
    assert "2 sessions, 6 turns" in done.stdout
    assert done.stdout.rstrip().endswith(str(tmp_path / "run" / "report.html"))


def test_wall_clock_needs_no_server_of_the_users(trace: Path, tmp_path: Path) -> None:
    virtual = agentload("replay", trace, "--out", tmp_path / "virtual", "--concurrency", 1)
    wall = agentload("replay", trace, "--out", tmp_path / "wall", "--concurrency", 1, "--clock", "wall")
    assert (virtual.returncode, wall.returncode) == (0, 0), wall.stderr
    columns = ["session_id", "turn_id", "output_tokens", "cached_tokens", "steps", "prefill_ns"]
    tables = [pl.read_parquet(tmp_path / name / REQUESTS).select(columns) for name in ("virtual", "wall")]
    assert tables[0].equals(tables[1])
    assert RunReader(tmp_path / "wall").manifest.options["model"] == "gemma4-31b/pd"
    manifests = [RunReader(tmp_path / name).manifest for name in ("virtual", "wall")]
    assert manifests[0].conditions == manifests[1].conditions
    assert (manifests[0].trace_lines_read, manifests[0].trace_lines_skipped) == (6, 0)


def test_same_seed_same_parquet(trace: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 7), ("two", 7), ("other", 8)):
        assert agentload("replay", trace, "--out", tmp_path / name, "--seed", seed).returncode == 0
    one, two, other = ((tmp_path / name / REQUESTS).read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert one != other


def test_a_run_killed_midway_is_readable_and_can_be_finished(tmp_path: Path) -> None:
    sample = sample_path("weka_trace_0086.json")
    out = tmp_path / "run"
    args = [sample, "--clock", "wall", "--speed", "2000", "--seed", "3"]
    command = [sys.executable, "-m", "agentload", "replay", *map(str, args), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # The journal grows as turns end: a second after the first of them, more than one are on disk.
        journal = out / "requests.jsonl"
        while not (journal.exists() and journal.stat().st_size):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 1
    assert b" turns (interrupted), 0 failed" in stdout
    assert b"interrupted: what was recorded is kept in" in stderr
    assert b"Traceback" not in stderr
    reader = RunReader(out)
    assert reader.incomplete
    assert 0 < reader.requests().collect().height < 24
    report = agentload("report", out)
    assert report.returncode == 0
    assert report.stdout.startswith("INCOMPLETE: ")
    assert "--speed" in failing("replay", "--resume", out, "--speed", "7")
    done = agentload("replay", "--resume", out)
    assert done.returncode == 0, done.stderr
    assert not RunReader(out).incomplete
    assert RunReader(out).requests().collect().height == 24


def _interrupted(trace: Path, out: Path, target: str = "gemma4-31b/pd") -> Path:
    """A run of `trace` that was cut off before its first row."""
    options = ReplayOptions(trace=trace, out=out, target=target, load=LoadOptions(concurrency=1))
    with RunWriter(out, new_manifest(options, load_deployment(target))) as writer:
        writer.finish("interrupted")
    return out


def test_only_an_interrupted_run_of_the_same_things_is_resumed(tmp_path: Path, trace: Path) -> None:
    assert agentload("replay", trace, "--out", tmp_path / "done").returncode == 0
    assert "complete" in failing("replay", "--resume", tmp_path / "done")
    out = _interrupted(trace, tmp_path / "run")
    assert "--concurrency" in failing("replay", "--resume", out, "--concurrency", "1")
    trace.write_text(trace.read_text().replace('"output_tokens":40', '"output_tokens":41'))
    assert "the trace changed" in failing("replay", "--resume", out)
    moved = trace.rename(tmp_path / "moved.jsonl")
    assert f"--resume {out} TRACE" in failing("replay", "--resume", out)
    moved.write_text(moved.read_text().replace('"output_tokens":41', '"output_tokens":40'))
    done = agentload("replay", moved, "--resume", out)
    assert done.returncode == 0, done.stderr
    assert RunReader(out).manifest.options["concurrency"] == 1


def test_a_resumed_run_keeps_its_failures_and_its_clock(tmp_path: Path, trace: Path) -> None:
    out = tmp_path / "run"
    options = ReplayOptions(trace=trace, out=out, clock="wall")
    end_ns = 5_000_000_000
    with RunWriter(out, new_manifest(options, load_deployment(options.target))) as writer:
        row = RequestRow(
            session_id="a", turn_id="t0", turn_index=0, session_turns=3, status="failed", error="x"
        )
        row.scheduled_ns = row.sent_ns = end_ns - 1_000
        row.end_ns = end_ns
        writer.add_request(row)
        for number in (1, 2):
            writer.add_request(structs.replace(row, turn_id=f"t{number}", status="skipped", end_ns=None))
        writer.add_request(structs.replace(row, session_id="b", status="ok"))
        writer.finish("interrupted")
    done = agentload("replay", "--resume", out)
    assert done.returncode == 1
    assert "1 of 6 turns failed and 2 were not sent; first error: x" in done.stderr
    rows = RunReader(out).requests().collect()
    assert rows.height == 6
    assert rows["turn_id"].to_list() == ["t0", "t1", "t2"] * 2
    following = rows.filter(pl.col("session_id") == "b").row(1, named=True)
    assert end_ns <= following["scheduled_ns"] <= following["sent_ns"] < end_ns + 60_000_000_000
    assert following["client_ns"] < 1_000_000_000


def test_resume_on_other_specs_is_refused(tmp_path: Path, trace: Path) -> None:
    text = Path(specs_directory, "deployments/gemma4-31b/pd.toml").read_text()
    deployment = tmp_path / "mine.toml"
    deployment.write_text(text)
    out = _interrupted(trace, tmp_path / "run", str(deployment))
    deployment.write_text(text.replace("value = 0.915", "value = 0.9"))
    assert "specs changed" in failing("replay", "--resume", out)


def test_bad_lines_are_told_and_the_rest_is_played(trace: Path, tmp_path: Path) -> None:
    trace.write_text(trace.read_text() + '{"session_id": "c", "turn_id": "x", "input_tokens": -4}\n')
    done = agentload("replay", trace, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "trace.jsonl" in done.stderr
    assert "input_tokens" in done.stderr
    assert "1 of 7 lines skipped" in done.stderr
    assert "Traceback" not in done.stderr
    assert "input_tokens" in failing("replay", trace, "--out", tmp_path / "strict", "--strict")
    assert not (tmp_path / "strict").exists()
    trace.write_text("{}\n")
    assert "trace.jsonl" in failing("replay", trace, "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_wrong_input_is_one_line(trace: Path, tmp_path: Path) -> None:
    assert "no-such" in failing("run", tmp_path / "no-such.jsonl")
    assert "gemma4-31b/nope" in failing("run", trace, "--target", "gemma4-31b/nope")
    assert "cannot reach http://127.0.0.1:9" in failing("run", trace, "--target", "http://127.0.0.1:9")
    assert "--clock wall" in failing("run", trace, "--target", "http://127.0.0.1:9", "--clock", "virtual")
    assert "--concurrency" in failing("run", trace, "--concurrency", "0")
    for speed in ("0", "nan", "inf", "1e-320"):
        assert "--speed" in failing("run", trace, "--speed", speed)
    for url in ("http://127.0.0.1:abc", "http://", "http://127.0.0.1:80/?a=b", "http://a b"):
        assert "not an endpoint" in failing("run", trace, "--target", url)
    (tmp_path / "empty.jsonl").write_text("")
    failing("run", tmp_path / "empty.jsonl", cwd=tmp_path)
    assert agentload("replay", trace, "--out", tmp_path / "run").returncode == 0
    assert str(tmp_path / "run") in failing("replay", trace, "--out", tmp_path / "run")


def test_failed_turns_are_rows_and_exit_code_1(tmp_path: Path) -> None:
    turns = [
        Turn(session_id="s", turn_id="a", input_tokens=0, output_tokens=1),
        Turn(session_id="s", turn_id="b", wait_for=("a",), input_tokens=1, output_tokens=1),
    ]
    write_trace(tmp_path / "big.jsonl", turns)
    done = agentload("run", tmp_path / "big.jsonl", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "1 of 2 turns failed and 1 were not sent" in done.stderr
    assert pl.read_parquet(tmp_path / "run" / REQUESTS)["status"].to_list() == ["failed", "skipped"]


def test_output_that_cannot_be_written_is_one_line(trace: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentload", "run", str(trace), "--out", str(tmp_path / "run"), "--json"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write the output: ")
    assert "Traceback" not in done.stderr


def test_ids_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    turns = [Turn(session_id="\u4f1a\u8a71\u001b[31m", turn_id="a", input_tokens=9, output_tokens=9)]
    write_trace(tmp_path / "t.jsonl", turns)
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = agentload("run", tmp_path / "t.jsonl", "--out", tmp_path / "run", **plain)
    assert done.returncode == 0, done.stderr
    assert "\u001b" not in done.stdout
    done = agentload("run", tmp_path / "t.jsonl", "--out", tmp_path / "again", "--json", **plain)
    assert json.loads(done.stdout)["sessions"] == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_server_of_a_wall_clock_run_ends_with_it(tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "run"
    args = [sample_path("weka_trace_0086.json"), "--clock", "wall", "--speed", "2000", "--out", out]
    command = [sys.executable, "-m", "agentload", "replay", *map(str, args)]
    # The server inherits stderr: it has ended when the pipe has no writer left.
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        journal = out / "requests.jsonl"
        while not (journal.exists() and journal.stat().st_size):
            assert process.poll() is None
        process.send_signal(how)
        _, stderr = process.communicate(timeout=60)
    assert b"Traceback" not in stderr
    assert RunReader(out).incomplete
    done = agentload("replay", "--resume", out)
    assert done.returncode == 0, done.stderr


def test_a_background_job_of_a_script_can_be_told_to_end(tmp_path: Path) -> None:
    """A shell without job control ignores SIGINT for what it starts with `&`."""
    out = tmp_path / "run"
    args = [sample_path("weka_trace_0086.json"), "--clock", "wall", "--speed", "2000", "--out", out]
    command = [sys.executable, "-m", "agentload", "replay", *map(str, args)]
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    ignoring += "os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", ignoring, *command], stderr=subprocess.PIPE) as process:
        journal = out / "requests.jsonl"
        while not (journal.exists() and journal.stat().st_size):
            assert process.poll() is None
        process.terminate()
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, b"interrupted: " in stderr) == (1, True)


def test_the_key_of_an_endpoint_is_not_written(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = agentload("replay", trace, "--out", out, "--clock", "wall", AGENTLOAD_API_KEY="sk-very-secret")
    assert done.returncode == 0
    written = b"".join(path.read_bytes() for path in out.iterdir())
    assert b"sk-very-secret" not in written
    assert "sk-very-secret" not in done.stdout + done.stderr
