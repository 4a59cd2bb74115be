"""A session of 30 turns against a real engine: llama.cpp's server on the CPU, with a small random model.

Played three times: with the recorded history, with what really came (--history live), and with prompts
fitted to the engine's own tokenizer (--tokens server). Printed for turns: prompt tokens that the trace asks
for, that were sent (o200k_base) and that the engine reports, how many of those came from its prefix cache,
and answers as asked, received (o200k_base) and reported.

This engine at times drops a request that comes within 0.1 ms of the end of an answer on the same connection,
whoever sends it; hence the pauses and the retries.

    pip install xllamacpp gguf       # 0.2 GB; no model is downloaded, it is made on the spot
    python benchmarks/real_engine.py [--turns 30] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from llama_server import PACKAGES, llama_server, missing_packages

from agentload_traces import RunReader, ToolCall, Turn, write_trace

PLAYS = {
    "recorded": (),
    "live": ("--history", "live"),
    "fitted": ("--tokens", "server"),
}
FIRST_TOKENS, NEW_TOKENS, ANSWER_TOKENS = 400, 30, 20

COLUMNS = (
    "turn_id",
    "status",
    "error",
    "input_tokens",
    "sent_tokens",
    "reported_input_tokens",
    "cached_tokens",
    "output_tokens_asked",
    "output_tokens",
    "reported_output_tokens",
    "finish_reason",
)


def write_session(path: Path, turns: int) -> None:
    """Write a session whose turns wait 10 ms for a tool call, and every tenth 20 ms for a user."""
    write_trace(
        path,
        (
            Turn(
                session_id="session",
                turn_id=f"t{number}",
                wait_for=(f"t{number - 1}",) if number else (),
                trigger="tool" if number % 10 else "user",
                delay_ms=0.0 if number % 10 else 20.0,
                input_tokens=FIRST_TOKENS + number * (NEW_TOKENS + ANSWER_TOKENS),
                new_input_tokens=NEW_TOKENS if number else FIRST_TOKENS,
                output_tokens=ANSWER_TOKENS,
                tool_calls=(ToolCall(name="shell", duration_ms=10.0),) if (number + 1) % 10 else (),
            )
            for number in range(turns)
        ),
    )


def play(url: str, trace: Path, run: Path, options: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a replay of `trace`, in the order of turns, without attempts that were repeated."""
    command = [sys.executable, "-m", "agentload", "replay", str(trace), "--target", url, "--no-baseline"]
    command += ["--concurrency", "1", "--force-output", "--retries", "3", "--retry-wait", "0.1"]
    command += ["--out", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    rows = RunReader(run).requests().select(COLUMNS).collect().to_dicts()
    rows = [row for row in rows if row["status"] != "retried"]
    return sorted(rows, key=lambda row: int(row["turn_id"][1:]))


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts = {column: sum(row[column] or 0 for row in rows) for column in COLUMNS if "tokens" in column}
    prompts = counts["reported_input_tokens"]
    return {
        "turns": len(rows),
        "ok": sum(row["status"] == "ok" for row in rows),
        **counts,
        "cached_share": counts["cached_tokens"] / prompts if prompts else 0.0,
    }


def print_play(name: str, rows: list[dict[str, Any]]) -> None:
    of_all = totals(rows)
    print(f"\n{name}: {of_all['ok']} of {of_all['turns']} turns answered whole, ", end="")
    print(f"{of_all['cached_share']:.0%} of the prompt tokens came from the engine's cache")
    print("turn   prompt: asked   sent  reported  cached   answer: asked  received  reported  ended by")
    for row in rows:
        if row["turn_id"] in ("t0", "t1", "t2", rows[-1]["turn_id"]) or row["status"] != "ok":
            values = [0 if row[column] is None else row[column] for column in COLUMNS[3:10]]
            asked, sent, reported, cached, *answer = values
            print(f"{row['turn_id']:4} {asked:16} {sent:6} {reported:9} {cached:7} ", end="")
            print(f"{answer[0]:15} {answer[1]:9} {answer[2]:9}  {row['error'] or row['finish_reason']}")
    asked, sent, reported, cached = (of_all[column] for column in COLUMNS[3:7])
    print(f"all  {asked:16} {sent:6} {reported:9} {cached:7} ", end="")
    answer = [of_all[column] for column in COLUMNS[7:10]]
    print(f"{answer[0]:15} {answer[1]:9} {answer[2]:9}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if missing := missing_packages():
        sys.exit(f"not installed: {', '.join(missing)}; pip install {' '.join(PACKAGES)}")
    plays = {}
    with tempfile.TemporaryDirectory(prefix="agentload-engine-") as folder, llama_server() as url:
        trace = Path(folder, "trace.jsonl")
        write_session(trace, args.turns)
        for name, options in PLAYS.items():
            # Another salt each, or the engine would know the prompts of the one before.
            plays[name] = play(url, trace, Path(folder, name), (*options, "--salt", name))
    if args.json:
        print(json.dumps({name: {"totals": totals(rows), "turns": rows} for name, rows in plays.items()}))
        return
    for name, rows in plays.items():
        print_play(name, rows)


if __name__ == "__main__":
    main()
