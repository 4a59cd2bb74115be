"""Replays by several workers: the turns that one would play, and whatever ends them, a run to be finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest

from agentload import _workers
from agentload._options import LoadOptions, ReplayOptions, ToolOptions
from agentload._replay import replay
from agentload._run_manifest import resumed_options
from agentload_traces import AgentloadError, RunReader, Session, Turn, write_trace

SESSIONS, TURNS = 8, 6


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, (turn for number in range(SESSIONS) for turn in _session(f"s{number}").turns))
    return path


def _session(name: str) -> Session:
    turns = [
        Turn(
            session_id=name,
            turn_id=f"t{n}",
            wait_for=(f"t{n - 1}",) if n else (),
            delay_ms=30.0 if n else None,
            input_tokens=100 + 30 * n,
            new_input_tokens=20 if n else 100,
            output_tokens=10,
        )
        for n in range(TURNS)
    ]
    return Session(name, tuple(turns))


def _options(trace: Path, out: Path, workers: int = 2, slots: int = 0, **load: Any) -> ReplayOptions:
    return ReplayOptions(
        trace=trace,
        out=out,
        clock="wall",
        workers=workers,
        load=LoadOptions(**(load or {"concurrency": 4})),
        tooling=ToolOptions(tool_slots=slots),
    )


def _rows(out: Path) -> list[dict[str, Any]]:
    columns = ("session_id", "turn_id", "status", "worker", "scheduled_ns", "tool_ns", "think_ns", "end_ns")
    return RunReader(out).requests().select(*columns, "gate_turn_id").collect().to_dicts()


def _check_whole(out: Path, sessions: int = SESSIONS) -> list[dict[str, Any]]:
    """The run is complete, and has each turn once, after what it waited for."""
    reader = RunReader(out)
    assert reader.manifest.status == "complete"
    assert reader.manifest.sessions_planned == sessions
    rows = [row for row in _rows(out) if row["status"] != "retried"]
    assert Counter(row["status"] for row in rows) == {"ok": sessions * TURNS}
    done = {(row["session_id"], row["turn_id"]): row for row in rows}
    assert len(done) == sessions * TURNS
    for row in rows:
        if row["gate_turn_id"] is not None:
            gate = done[row["session_id"], row["gate_turn_id"]]
            assert gate["end_ns"] + row["tool_ns"] + row["think_ns"] == row["scheduled_ns"]
    return rows


def test_workers_play_what_one_process_would_at_the_same_times(trace: Path, tmp_path: Path) -> None:
    load = {"arrival": "poisson", "rate_per_s": 30.0, "repeat": 2}
    options = _options(trace, tmp_path / "run", 3, slots=4, **load)
    result = replay(options)
    rows = _check_whole(options.out, 2 * SESSIONS)
    assert (result.turns, result.failed, result.interrupted) == (2 * SESSIONS * TURNS, 0, False)
    assert any("divided among 3 workers" in each for each in RunReader(options.out).manifest.conditions)
    virtual = msgspec.structs.replace(options, out=tmp_path / "virtual", clock="virtual", workers=1)
    replay(virtual)
    starts = {row["session_id"]: row["scheduled_ns"] for row in rows if row["turn_id"] == "t0"}
    expected = {
        row["session_id"]: row["scheduled_ns"] for row in _rows(virtual.out) if row["turn_id"] == "t0"
    }
    assert starts == expected
    # Launch k is of worker k % 3.
    workers = {row["session_id"]: row["worker"] for row in rows}
    order = sorted(starts, key=lambda name: starts[name])
    assert [workers[name] for name in order] == [number % 3 for number in range(2 * SESSIONS)]
    client = RunReader(options.out).client().select("worker").collect()["worker"]
    assert set(client) == {0, 1, 2}


def test_ctrl_c_drains_all_workers_and_the_run_is_finished_later(trace: Path, tmp_path: Path) -> None:
    options, told, count = _options(trace, tmp_path / "run"), list[str](), 0

    def press() -> None:
        nonlocal count
        count += 1
        if count == 6:
            signal.raise_signal(signal.SIGINT)

    result = replay(options, press, told.append)
    assert result.interrupted
    assert any("once more" in each for each in told)
    assert RunReader(options.out).manifest.status == "interrupted"
    assert {row["status"] for row in _rows(options.out)} == {"ok"}
    kept = {(row["session_id"], row["turn_id"]): row["end_ns"] for row in _rows(options.out)}
    assert 6 <= len(kept) < SESSIONS * TURNS
    replay(resumed_options(options.out, None))
    rows = _check_whole(options.out)
    after = {(row["session_id"], row["turn_id"]): row["end_ns"] for row in rows}
    assert kept.items() <= after.items()


def test_a_worker_that_is_killed_ends_the_run_with_its_name(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, children, count = _options(trace, tmp_path / "run"), list[_workers._Child](), 0

    class Child(_workers._Child):
        def __init__(self, number: int) -> None:
            super().__init__(number)
            children.append(self)

    def kill() -> None:
        nonlocal count
        count += 1
        if count == 6:
            os.kill(children[1].process.pid, signal.SIGKILL)

    monkeypatch.setattr(_workers, "_Child", Child)
    with pytest.raises(AgentloadError, match="worker 2 of 2 was killed by SIGKILL"):
        replay(options, kill)
    assert RunReader(options.out).manifest.status == "interrupted"
    assert len(_rows(options.out)) >= 6
    assert all(child.process.returncode is not None for child in children)
    replay(resumed_options(options.out, None))
    _check_whole(options.out)


_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_workers_replay import _options
from agentload._replay import replay
if __name__ == "__main__":
    replay(_options(Path({trace!r}), Path({out!r})), lambda: print("turn", flush=True))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds children in /proc")
def test_a_parent_that_is_killed_leaves_no_worker_and_a_run_to_finish(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = _KILLED.format(tests=str(Path(__file__).parent), trace=str(trace), out=str(out))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        for _ in range(6):
            assert parent.stdout.readline() == "turn\n"
        children = [
            int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ]
        assert len(children) == 3  # with the simulator
        parent.kill()
        parent.wait()
    end = monotonic() + 30
    while any(Path(f"/proc/{pid}/stat").exists() and not _is_zombie(pid) for pid in children):
        assert monotonic() < end, "a worker has outlived its parent"
        sleep(0.01)
    assert RunReader(out).manifest.status == "running"
    replay(resumed_options(out, None))
    _check_whole(out)


def _is_zombie(pid: int) -> bool:
    """Ended, and nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
