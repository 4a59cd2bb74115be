"""Kills replays with SIGKILL at random moments, resumes them, and holds what is on disk to what was promised.

    python benchmarks/kills.py --kills 200

A replay of a small trace against a fast server is killed, some runs several times, and resumed until it is
complete. After each kill the run must be readable and say that it is incomplete, each row that was on disk
before must still be there as it was, and no turn may have two ends. In the end the run must equal one that
nobody disturbed: the same turns with the same tokens and tool calls.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentload._baseline import null_server
from agentload_traces import RunReader, ToolCall, Turn, write_trace

Rows = dict[tuple[str, str, int], dict[str, Any]]

_SAME = ("status", "input_tokens", "sent_tokens", "output_tokens", "output_tokens_asked", "session_turns")
"""What a turn's row says in every run alike."""


def make_trace(path: Path) -> None:
    """Write six sessions of 24 turns, each with a sub-agent."""
    turns = []
    for session in range(6):
        context = 0
        for number in range(24):
            new = 600 if number == 0 else 40
            turns.append(
                Turn(
                    session_id=f"s{session}",
                    turn_id=f"t{number}",
                    wait_for=(f"t{number - 1}",) if number else (),
                    trigger="tool" if number else "user",
                    delay_ms=20.0,
                    input_tokens=context + new,
                    new_input_tokens=new,
                    output_tokens=10 + number,
                    tool_calls=(ToolCall(name="shell", duration_ms=15.0), ToolCall(name="read")),
                )
            )
            context += new + 10 + number
            if number == 5:
                parts = {"agent_id": "explore", "input_tokens": 300, "output_tokens": 12}
                turns.append(Turn(session_id=f"s{session}", turn_id="x", parent_turn_id="t5", **parts))
    write_trace(path, turns)


def rows_of(run: Path, broken: list[str]) -> Rows:
    """The rows on disk by session, turn and attempt; complains of a turn with two ends."""
    rows: Rows = {}
    ended: set[tuple[str, str]] = set()
    for row in RunReader(run).requests().collect().iter_rows(named=True):
        key = (row["session_id"], row["turn_id"])
        if row["status"] != "retried":
            if key in ended:
                broken.append(f"{run.name}: {key} has ended twice")
            ended.add(key)
        rows[(*key, row["attempt"])] = row
    return rows


def totals(run: Path) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """What two runs of the same trace have in common."""
    requests = RunReader(run).requests().collect()
    calls = RunReader(run).tool_calls().select("session_id", "turn_id", "call_index", "name").collect()
    turns = {
        f"{row['session_id']} {row['turn_id']}": [row[name] for name in _SAME]
        for row in requests.iter_rows(named=True)
        if row["status"] != "retried"
    }
    return turns, sorted(calls.iter_rows())


class Killer:
    """Starts, kills and resumes replays of one trace."""

    def __init__(self, trace: Path, url: str, seed: int) -> None:
        self._trace = trace
        self._url = url
        self._random = random.Random(seed)
        self.broken: list[str] = []
        self.kills = self.kept_rows = 0

    def start(self, run: Path) -> subprocess.Popen[bytes]:
        """Start a replay into `run`, or resume it if it has begun."""
        command = [sys.executable, "-m", "agentload", "replay"]
        if (run / "manifest.json").exists():
            command += ["--resume", str(run)]
        else:
            command += [str(self._trace), "--target", self._url, "--model", "null", "--out", str(run)]
            command += ["--concurrency", "3", "--no-baseline"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def disturbed(self, run: Path, kills: int) -> None:
        """Kill a run up to so many times, then let it end."""
        known: Rows = {}
        for _ in range(kills):
            process = self.start(run)
            if not self._kill(process, run):
                break
            self.kills += 1
            known = self._checked(run, known)
        else:
            self._finish(run)
        self._checked(run, known, whole=True)

    def _kill(self, process: subprocess.Popen[bytes], run: Path) -> bool:
        """Kill after some growth of the journal and some more; False if the run was over before."""
        journal = run / "requests.jsonl"
        begun = journal.stat().st_size if journal.exists() else 0
        wanted = begun + self._random.choice((0, 1, 1, 20_000, 40_000))
        until = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < until:
            manifest = (run / "manifest.json").exists()
            if manifest and journal.exists() and journal.stat().st_size >= wanted:
                break
            time.sleep(0.002)
        time.sleep(self._random.uniform(0, 0.4))
        process.kill()
        _, stderr = process.communicate()
        over = (run / "manifest.json").exists() and RunReader(run).manifest.status == "complete"
        if process.returncode == 0 or over:
            return False
        if process.returncode > 0:
            self.broken.append(f"{run.name}: exit code {process.returncode}: {stderr.decode()[-300:]}")
            return False
        return True

    def _finish(self, run: Path) -> None:
        process = self.start(run)
        _, stderr = process.communicate(timeout=120)
        if process.returncode != 0:
            self.broken.append(f"{run.name}: could not be finished: {stderr.decode()[-300:]}")

    def _checked(self, run: Path, known: Rows, *, whole: bool = False) -> Rows:
        if not (run / "manifest.json").exists():
            return {}  # killed before there was a run
        rows = rows_of(run, self.broken)
        lost = [key for key, row in known.items() if rows.get(key) != row]
        if lost:
            self.broken.append(f"{run.name}: {len(lost)} rows are lost or changed, such as {lost[0]}")
        if RunReader(run).incomplete == whole:
            self.broken.append(f"{run.name}: says {'in' * whole}complete")
        self.kept_rows += len(known)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, null_server(100_000) as url:
        trace = Path(folder, "trace.jsonl")
        make_trace(trace)
        killer = Killer(trace, url, args.seed)
        killer._finish(Path(folder, "undisturbed"))
        expected = totals(Path(folder, "undisturbed"))
        runs = 0
        while killer.kills < args.kills and not killer.broken:
            run = Path(folder, f"run{runs}")
            killer.disturbed(run, min(1 + runs % 4, args.kills - killer.kills))
            runs += 1
            if totals(run) != expected:
                killer.broken.append(f"{run.name}: differs from the undisturbed run")
    summary = {
        "kills": killer.kills,
        "runs": runs,
        "turns_a_run": len(expected[0]),
        "rows_seen_again": killer.kept_rows,
        "broken": killer.broken,
        "took_s": round(time.monotonic() - began, 1),
    }
    if args.json:
        print(json.dumps(summary))
    else:
        print(
            f"{killer.kills} kills of {runs} runs of {len(expected[0])} turns: "
            f"{'; '.join(killer.broken) or 'all readable, no row lost, no turn twice, totals equal'}"
        )
    sys.exit(1 if killer.broken else 0)


if __name__ == "__main__":
    main()
