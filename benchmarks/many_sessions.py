"""Very many sessions at a time in one process: what memory one takes, and whether anything drifts.

`agentload replay` plays 2,000 sessions at a time, each with a context of 4,000 to 5,000 tokens; a turn is 40
tokens at 25 ms from `truth_server.c`, then 1 s of a tool. A session has 15 turns, and a new one takes its
place. The same with 20 sessions at a time gives what the process takes anyway. What the replayer saw of
itself (the run's client table) is shown by minute: resident memory, the lag of its event loop, how late turns
were sent.

    python benchmarks/many_sessions.py [--sessions 2000] [--minutes 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from _command import run_measured
from _truth_server import truth_server

from agentload_traces import RunReader, ToolCall, Turn, write_trace

STEP_NS = 25_000_000
PREFILL_NS = 200_000_000
TURNS = 15
FEW = 20
SETTLED_S = 40
"""By then all sessions have begun, and the first have been replaced."""


def write_sessions(path: Path, sessions: int) -> None:
    write_trace(
        path,
        (
            Turn(
                session_id=f"s{session}",
                turn_id=f"t{number}",
                wait_for=(f"t{number - 1}",) if number else (),
                trigger="tool" if number else "user",
                input_tokens=4_000 + 70 * number,
                new_input_tokens=30 if number else 4_000,
                output_tokens=40,
                tool_calls=(ToolCall(name="shell", duration_ms=1_000.0),),
            )
            for session in range(sessions)
            for number in range(TURNS)
        ),
    )


def play(sessions: int, seconds: float, ramp_s: float) -> dict[str, Any]:
    """A run of so many sessions at a time, begun one after the other during `ramp_s`."""
    with (
        tempfile.TemporaryDirectory(prefix="agentload-many-") as name,
        truth_server(STEP_NS, PREFILL_NS) as server,
    ):
        folder = Path(name)
        write_sessions(folder / "trace.jsonl", sessions)
        stages = f"1-{sessions}x{ramp_s:g}s,{sessions}x{seconds:g}s"
        command = [sys.executable, "-m", "agentload", "replay", str(folder / "trace.jsonl")]
        command += ["--target", server.url, "--model", "mock", "--stages", stages, "--no-baseline"]
        command += ["--duration", f"{ramp_s + seconds:g}", "--repeat", "1000", "--no-arrivals"]
        command += ["--out", str(folder / "run")]
        spent = run_measured(command, apart=[server.pid], timeout_s=seconds + 300)
        if spent.exit_code:
            sys.exit(spent.output)
        reader = RunReader(folder / "run")
        rows = reader.requests().select("status", "scheduled_ns", "sent_ns").collect()
        client = reader.client().collect()
        return {
            "sessions": sessions,
            "turns": rows.height,
            "failed": rows.filter(pl.col("status") != "ok").height,
            "turns_per_s": rows.height / (ramp_s + seconds),
            **settled(client, ramp_s),
            "minutes": by_minute(client, rows),
            "valid": reader.manifest.valid,
            "reasons": list(reader.manifest.invalid_reasons),
            "foreign_cores": spent.foreign_cores,
        }


def settled(client: pl.DataFrame, ramp_s: float) -> dict[str, Any]:
    """The process when all sessions were there; the second half of a run that is too short for that."""
    after_ns = pl.min_horizontal(pl.lit((ramp_s + SETTLED_S) * 1e9), pl.col("at_ns").max() / 2)
    figures = client.filter(pl.col("at_ns") > after_ns).select(
        (pl.col("rss_bytes").median() / 1e6).alias("rss_mb"),
        (pl.col("cpu_ns").sum() / pl.col("span_ns").sum()).alias("cpu_cores"),
    )
    return figures.row(0, named=True)


def by_minute(client: pl.DataFrame, rows: pl.DataFrame) -> list[dict[str, Any]]:
    late = (
        rows.filter(pl.col("sent_ns").is_not_null())
        .group_by((pl.col("scheduled_ns") // 60_000_000_000).alias("minute"))
        .agg(
            pl.len().alias("turns"),
            ((pl.col("sent_ns") - pl.col("scheduled_ns")) / 1e6).quantile(0.5).alias("late_p50_ms"),
            ((pl.col("sent_ns") - pl.col("scheduled_ns")) / 1e6).quantile(0.99).alias("late_p99_ms"),
        )
    )
    own = client.group_by((pl.col("at_ns") // 60_000_000_000).alias("minute")).agg(
        (pl.col("rss_bytes").median() / 1e6).alias("rss_mb"),
        (pl.col("loop_lag_ns") / 1e6).quantile(0.5).alias("lag_p50_ms"),
        (pl.col("loop_lag_ns") / 1e6).quantile(0.99).alias("lag_p99_ms"),
        (pl.col("cpu_ns").sum() / pl.col("span_ns").sum()).alias("cpu_cores"),
        pl.col("active_turns").max().alias("active_turns"),
    )
    return own.join(late, on="minute", how="left").sort("minute").to_dicts()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ramp_s = min(20.0, args.minutes * 20)
    few = play(FEW, min(60.0, args.minutes * 60), 1.0)
    many = play(args.sessions, args.minutes * 60, ramp_s)
    per_session_kb = (many["rss_mb"] - few["rss_mb"]) * 1e3 / (args.sessions - FEW)
    if args.json:
        print(json.dumps({"kb_per_session": per_session_kb, "few": few, "many": many}))
        return
    print(
        f"{many['sessions']:,} sessions, {many['turns_per_s']:,.0f} turns/s, {many['failed']} failed, ",
        end="",
    )
    print(f"{many['cpu_cores']:.2f} cores: {many['rss_mb']:.0f} MB; {FEW} sessions: {few['rss_mb']:.0f} MB")
    print(f"{per_session_kb:.0f} KB a session; valid: {many['valid']}", *many["reasons"], sep="\n  ")
    print("minute  RSS MB  lag ms p50    p99  late ms p50    p99  cores  turns")
    for row in many["minutes"]:
        print(
            f"{row['minute']:6} {row['rss_mb']:7.0f} {row['lag_p50_ms']:11.2f} {row['lag_p99_ms']:6.2f} "
            f"{row['late_p50_ms'] or 0:12.3f} {row['late_p99_ms'] or 0:6.2f} {row['cpu_cores']:6.2f} "
            f"{row['turns'] or 0:6}"
        )


if __name__ == "__main__":
    main()
