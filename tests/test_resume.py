"""A run that is told to stop: once it finishes what is on the way, twice it does not; resuming by turn."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Reply, fake_endpoint_thread

from agentload_simbackend import SESSION_HEADER, TURN_HEADER
from agentload_traces import RunReader, ToolCall, Turn, write_trace

TURNS = 5


def write_sessions(path: Path, sessions: int = 2) -> None:
    """Sessions of turns that each take a tool call, the third with a sub-agent."""
    turns = []
    for session in range(sessions):
        for number in range(TURNS):
            turns.append(
                Turn(
                    session_id=f"s{session}",
                    turn_id=f"t{number}",
                    wait_for=(f"t{number - 1}",) if number else (),
                    input_tokens=200 + 60 * number,
                    new_input_tokens=40 if number else 200,
                    output_tokens=20,
                    tool_calls=(ToolCall(name="ls", duration_ms=2.0),),
                )
            )
    write_trace(path, turns)


def stalls_at(turn: int) -> Any:
    """Answers the n-th request by a stall, until the endpoint lets it go on."""
    return lambda number, body: Reply(fault="stall") if number == turn else Reply()


@contextmanager
def replaying(endpoint: FakeEndpoint, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "agentload", "replay", *options, "--json"]
    if "--resume" not in options:
        command += [str(folder / "t.jsonl"), "--target", endpoint.url, "--out", str(folder / "run")]
        command += ["--concurrency", "2", "--no-baseline"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_it_stalls(endpoint: FakeEndpoint, process: subprocess.Popen[str]) -> None:
    future = asyncio.run_coroutine_threadsafe(endpoint.stalled.wait(), endpoint._loop)
    future.result(timeout=60)
    assert process.poll() is None


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return RunReader(folder / "run").requests().collect().to_dicts()


def ends(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    return Counter((row["session_id"], row["turn_id"]) for row in rows if row["status"] != "retried")


def came(endpoint: FakeEndpoint) -> Counter[tuple[str, str]]:
    return Counter((seen.headers[SESSION_HEADER], seen.headers[TURN_HEADER]) for seen in endpoint.requests)


ALL = {(f"s{session}", f"t{turn}") for session in range(2) for turn in range(TURNS)}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_told_once_it_finishes_what_is_on_the_way_and_goes_on_by_turn(stop: int, tmp_path: Path) -> None:
    write_sessions(tmp_path / "t.jsonl")
    with fake_endpoint_thread(stalls_at(5)) as endpoint:
        with replaying(endpoint, tmp_path) as process:
            wait_until_it_stalls(endpoint, process)
            process.send_signal(stop)
            assert process.stderr is not None
            told = process.stderr.readline()
            assert told.startswith("warning: finishing ")
            assert "on the way; once more stops" in told
            endpoint.release()
            stdout, stderr = process.communicate()
        assert process.returncode == 1
        assert "interrupted: what was recorded is kept in" in stderr
        outcome = json.loads(stdout)
        assert (outcome["interrupted"], outcome["failed"], outcome["skipped"]) == (True, 0, 0)
        before = rows_of(tmp_path)
        assert RunReader(tmp_path / "run").manifest.status == "interrupted"
        assert {row["status"] for row in before} == {"ok"}
        assert set(ends(before)) == set(came(endpoint)) < ALL
        with replaying(endpoint, tmp_path, "--resume", str(tmp_path / "run")) as process:
            stdout, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert json.loads(stdout)["turns"] == 2 * TURNS
        # Nothing was sent twice, and what was recorded is as it was.
        assert came(endpoint) == Counter(ALL)
    rows = rows_of(tmp_path)
    assert rows[: len(before)] == before
    assert ends(rows) == Counter(ALL)
    assert not RunReader(tmp_path / "run").incomplete
    last_ns = max(row["end_ns"] for row in before)
    ended_ns = {(row["session_id"], row["turn_id"]): row["end_ns"] for row in rows}
    for row in rows[len(before) :]:
        assert row["scheduled_ns"] >= last_ns
        if row["gate_turn_id"] is not None:
            gate_end_ns = ended_ns[row["session_id"], row["gate_turn_id"]]
            assert row["tool_ns"] + row["think_ns"] == row["scheduled_ns"] - gate_end_ns


def test_told_twice_it_stops_and_sends_again_what_was_on_the_way(tmp_path: Path) -> None:
    write_sessions(tmp_path / "t.jsonl")
    with fake_endpoint_thread(stalls_at(5)) as endpoint:
        with replaying(endpoint, tmp_path) as process:
            wait_until_it_stalls(endpoint, process)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate()
        assert process.returncode == 1
        assert "Traceback" not in stderr
        # One was stalled, and the other session may have had one on its way.
        stopped = [row for row in rows_of(tmp_path) if row["status"] == "retried"]
        assert len(stopped) in (1, 2)
        assert {row["error_kind"] for row in stopped} == {"interrupted"}
        with replaying(endpoint, tmp_path, "--resume", str(tmp_path / "run")) as process:
            _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        again = [(row["session_id"], row["turn_id"]) for row in stopped]
        assert came(endpoint) == Counter([*ALL, *again])
    rows = rows_of(tmp_path)
    assert ends(rows) == Counter(ALL)
    resent = [row for row in rows if (row["session_id"], row["turn_id"]) in again and row["status"] == "ok"]
    assert [row["attempt"] for row in resent] == [1] * len(again)


def test_with_what_really_came_in_the_history_unfinished_sessions_begin_again(tmp_path: Path) -> None:
    write_sessions(tmp_path / "t.jsonl", sessions=1)
    with fake_endpoint_thread(stalls_at(3)) as endpoint:
        with replaying(endpoint, tmp_path, "--history", "live") as process:
            wait_until_it_stalls(endpoint, process)
            process.kill()
        endpoint.release()
        with replaying(endpoint, tmp_path, "--resume", str(tmp_path / "run")) as process:
            _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert [body.headers[TURN_HEADER] for body in endpoint.requests[4:]] == [f"t{n}" for n in range(5)]
    assert [row["turn_id"] for row in rows_of(tmp_path)] == [f"t{number}" for number in range(TURNS)]
