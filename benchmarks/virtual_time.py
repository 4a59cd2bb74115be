"""How many turns a second virtual time plays on one core: 1,000 generated sessions of 300 turns.

    python benchmarks/virtual_time.py [--sessions 1000] [--turns 300] [--concurrency 12] [--arrivals] [--json]

Times generation and play together (the trace is streamed) and apart, writes a run directory into a
temporary folder, and reports peak memory of the whole process.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from agentload import generate_sessions, load_profile
from agentload._feed import ClosedLoop, Launch
from agentload._stages import ConstantLimit
from agentload._virtual import VirtualRun
from agentload_simbackend import build_engine, load_deployment
from agentload_traces import Manifest, RunWriter


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--target", default="gemma4-31b/pd")
    parser.add_argument("--arrivals", action="store_true", help="record every answer's token timeline too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    profile = load_profile("coding")
    begun = time.perf_counter()
    turns = sum(
        len(s.turns) for s in generate_sessions(profile, sessions=args.sessions, turns=args.turns, seed=0)
    )
    generate_s = time.perf_counter() - begun

    deployment = load_deployment(args.target)
    manifest = Manifest(
        status="running", clock="virtual", seed=0, target=args.target, mode=deployment.mode, trace="generated"
    )
    with tempfile.TemporaryDirectory() as folder, RunWriter(Path(folder) / "run", manifest) as writer:
        begun = time.perf_counter()
        sessions = generate_sessions(profile, sessions=args.sessions, turns=args.turns, seed=0)
        feed = ClosedLoop(map(Launch, sessions), ConstantLimit(args.concurrency))
        VirtualRun(build_engine(deployment, 0), feed, writer, arrivals=args.arrivals).run()
        play_s = time.perf_counter() - begun
        writer.finish("complete")
        total_s = time.perf_counter() - begun

    summary = {
        "turns": turns,
        "concurrency": args.concurrency,
        "arrivals": args.arrivals,
        "generate_s": generate_s,
        "generate_and_play_s": play_s,
        "with_parquet_s": total_s,
        "turns_per_s_with_everything": turns / total_s,
        "turns_per_s_without_generation": turns / (total_s - generate_s),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if args.json:
        print(json.dumps(summary))
        return
    for name, value in summary.items():
        print(f"{name:32} {value:,.1f}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    main()
