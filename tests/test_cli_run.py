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

from agentload_traces import RunReader, ToolCall, Turn, sample_path, write_trace

REQUESTS = "requests.parquet"


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
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert b"interrupted: what was recorded is kept in" in stderr
    reader = RunReader(out)
    assert reader.incomplete
    assert 0 < reader.requests().collect().height < 24
    report = agentload("report", out)
    assert report.returncode == 0
    assert report.stdout.startswith("INCOMPLETE: the run was interrupted")
    done = agentload("replay", *args, "--resume", out)
    assert done.returncode == 0, done.stderr
    assert not RunReader(out).incomplete
    assert RunReader(out).requests().collect().height == 24


def test_resume_with_other_options_is_refused(tmp_path: Path, trace: Path) -> None:
    assert agentload("replay", trace, "--out", tmp_path / "run").returncode == 0
    assert "complete" in failing("replay", trace, "--resume", tmp_path / "run")


def test_bad_lines_are_told_and_the_rest_is_played(trace: Path, tmp_path: Path) -> None:
    trace.write_text(trace.read_text() + '{"session_id": "c", "turn_id": "x", "input_tokens": -4}\n')
    done = agentload("replay", trace, "--out", tmp_path / "run")
    assert done.returncode == 0
    assert "trace.jsonl" in done.stderr
    assert "input_tokens" in done.stderr
    assert "1 of 7 lines skipped" in done.stderr
    assert "Traceback" not in done.stderr
    assert "input_tokens" in failing("replay", trace, "--out", tmp_path / "strict", "--strict")


def test_wrong_input_is_one_line(trace: Path, tmp_path: Path) -> None:
    assert "no-such" in failing("run", tmp_path / "no-such.jsonl")
    assert "gemma4-31b/nope" in failing("run", trace, "--target", "gemma4-31b/nope")
    assert "cannot reach http://127.0.0.1:9" in failing("run", trace, "--target", "http://127.0.0.1:9")
    assert "--clock wall" in failing("run", trace, "--target", "http://127.0.0.1:9", "--clock", "virtual")
    assert "--concurrency" in failing("run", trace, "--concurrency", "0")
    (tmp_path / "empty.jsonl").write_text("")
    failing("run", tmp_path / "empty.jsonl", cwd=tmp_path)
    assert agentload("replay", trace, "--out", tmp_path / "run").returncode == 0
    assert str(tmp_path / "run") in failing("replay", trace, "--out", tmp_path / "run")


def test_failed_turns_are_rows_and_exit_code_1(tmp_path: Path) -> None:
    turns = [
        Turn(session_id="s", turn_id="a", input_tokens=10_000_000, output_tokens=1),
        Turn(session_id="s", turn_id="b", wait_for=("a",), input_tokens=1, output_tokens=1),
    ]
    write_trace(tmp_path / "big.jsonl", turns)
    done = agentload("run", tmp_path / "big.jsonl", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "1 of 2 turns failed and 1 were not sent" in done.stderr
    assert pl.read_parquet(tmp_path / "run" / REQUESTS)["status"].to_list() == ["failed", "skipped"]


def test_the_key_of_an_endpoint_is_not_written(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = agentload("replay", trace, "--out", out, "--clock", "wall", AGENTLOAD_API_KEY="sk-very-secret")
    assert done.returncode == 0
    written = b"".join(path.read_bytes() for path in out.iterdir())
    assert b"sk-very-secret" not in written
    assert "sk-very-secret" not in done.stdout + done.stderr
