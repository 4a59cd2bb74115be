"""Requests a second with sessions of many turns and no pauses: 20 sessions at a time, 200 turns each.

The server (`truth_server.c`) answers at once with 16 tokens; each turn adds 24 words and the answer to the
history, all of which is sent. The server's times count, from the first request to the last answer.
    agentload  `agentload replay`, arrivals and all rows recorded
    aiperf     AIPerf's replay of a graph of turns (dag_jsonl)
    lean       `lean_sessions.py`: aiohttp, history kept as bytes

    python benchmarks/multi_turn.py [--sessions 20] [--turns 200] [--rounds 3] [--json]
    python benchmarks/multi_turn.py --profile out.prof    # of the replayer, for `python -m pstats`

"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import _aiperf
from _command import Spent, run_measured
from _truth_server import TruthServer, truth_server
from lean_sessions import TEXT, TOKENS

from agentload_traces import Turn, write_trace

WORDS = len(TEXT.split())

Client = Callable[[TruthServer, int, int, Path], Spent]


def write_sessions(path: Path, sessions: int, turns: int) -> None:
    write_trace(
        path,
        (
            Turn(
                session_id=f"s{session}",
                turn_id=f"t{number}",
                wait_for=(f"t{number - 1}",) if number else (),
                input_tokens=WORDS + number * (WORDS + TOKENS),
                new_input_tokens=WORDS,
                output_tokens=TOKENS,
            )
            for session in range(sessions)
            for number in range(turns)
        ),
    )


def agentload(profile: Path | None) -> Client:
    def run(server: TruthServer, sessions: int, turns: int, folder: Path) -> Spent:
        trace = folder / "trace.jsonl"
        write_sessions(trace, sessions, turns)
        command = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else [])]
        command += ["-m", "agentload", "replay", str(trace), "--target", server.url, "--model", "mock"]
        command += ["--concurrency", str(sessions), "--no-baseline", "--out", str(folder / "run")]
        return run_measured(command, apart=[server.pid])

    return run


def lean(server: TruthServer, sessions: int, turns: int, folder: Path) -> Spent:
    command = [sys.executable, str(Path(__file__).with_name("lean_sessions.py"))]
    command += [str(urlsplit(server.url).port), "--sessions", str(sessions), "--turns", str(turns)]
    return run_measured(command, apart=[server.pid])


def aiperf(program: Path, tokenizer: Path) -> Client:
    def run(server: TruthServer, sessions: int, turns: int, folder: Path) -> Spent:
        turn = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": TOKENS}
        lines = [
            json.dumps({"session_id": f"s{session}", "turns": [turn] * turns}) for session in range(sessions)
        ]
        graph = folder / "graph.jsonl"
        graph.write_text("\n".join(lines) + "\n")
        options = ["--input-file", str(graph), "--custom-dataset-type", "dag_jsonl"]
        options += ["--concurrency", str(sessions), "--conversation-num", str(sessions)]
        return _aiperf.run_aiperf(
            program, server.url, tokenizer, folder / "aiperf", options, apart=[server.pid]
        )

    return run


def measure(client: Client, sessions: int, turns: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="agentload-turns-") as folder, truth_server(0) as server:
        spent = client(server, sessions, turns, Path(folder))
    answers = server.answers.values()
    if spent.exit_code or len(answers) != sessions * turns:
        sys.exit(f"{len(answers)} answers of {sessions * turns}, exit code {spent.exit_code}: {spent.output}")
    first_ns = min(answer.received_ns for answer in answers)
    last_ns = max(answer.at_ns[-1] for answer in answers)
    load_cpu_ns = spent.cpu_until_ns(last_ns) - spent.cpu_until_ns(first_ns)
    return {
        "requests_per_s": len(answers) / (last_ns - first_ns) * 1e9,
        "cpu_us_per_request": load_cpu_ns / 1e3 / len(answers),
        "cpu_us_per_request_whole": spent.cpu_s * 1e6 / len(answers),
        "wall_s": spent.wall_s,
        "sent_mb": sum(answer.body_bytes for answer in answers) / 1e6,
        "peak_rss_mb": spent.peak_rss_bytes / 1e6,
        "foreign_cores": spent.foreign_cores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__ + _aiperf.HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="of agentload and lean; AIPerf runs once")
    parser.add_argument("--profile", type=Path, help="profile the replayer only, into this file")
    parser.add_argument("--aiperf", type=Path, default=_aiperf.default_path())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rounds: dict[str, list[dict[str, Any]]] = {"agentload": [], "lean": []}
    clients = {"agentload": agentload(args.profile), "lean": lean}
    for _ in range(1 if args.profile else args.rounds):
        for name in ["agentload"] if args.profile else list(clients):
            rounds[name].append(measure(clients[name], args.sessions, args.turns))
    if args.aiperf and not args.profile:
        with tempfile.TemporaryDirectory() as folder:
            client = aiperf(args.aiperf, _aiperf.train_tokenizer(args.aiperf, Path(folder)))
            rounds["aiperf"] = [measure(client, args.sessions, args.turns)]
    summary: dict[str, Any] = {
        name: {key: statistics.median(each[key] for each in of_client) for key in of_client[0]}
        for name, of_client in rounds.items()
        if of_client
    }
    pairs = zip(rounds["agentload"], rounds["lean"], strict=False)
    ratios = [one["requests_per_s"] / other["requests_per_s"] for one, other in pairs]
    if ratios:
        summary["ratio_to_lean"] = {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        }
    if args.json:
        print(json.dumps({"sessions": args.sessions, "turns": args.turns, **summary}))
        return
    for name, figures in summary.items():
        print(f"{name:14}", "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
