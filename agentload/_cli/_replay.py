"""`agentload replay`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agentload._cli._console import echo_json
from agentload._cli._replay_options import exit_code, replay_options, replay_with_progress


@click.command(name="replay", short_help="Replay a trace.")
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(trace: Path | None, as_json: bool, **values: Any) -> None:
    """Replay TRACE against a simulated deployment or an endpoint, and write a run directory.

    \b
    Example:
      agentload replay my_trace.jsonl --target http://127.0.0.1:8000 --concurrency 4 --out runs/mine
      agentload report runs/mine
      agentload replay --resume runs/mine           # had it been interrupted
      agentload replay my_trace.jsonl --target gemma4-31b/pd --faults bad_day.toml --latency-class batch

    Exit code 1: some turns failed or were not sent, lines of the trace were skipped, or the run was
    interrupted. What was recorded is kept in every case.
    """
    if trace is None and values["resume"] is None:
        raise click.UsageError("Missing argument 'TRACE'.")
    result = replay_with_progress(trace, values)
    from agentload_traces import decodable

    run = decodable(result.path)
    if as_json:
        shown = {name: getattr(result, name) for name in ("turns", "failed", "skipped", "interrupted")}
        echo_json({"run": run, **shown})
    else:
        click.echo(f"{result.turns} turns, {result.failed} failed, {result.skipped} not sent: {run}")
    sys.exit(exit_code(result))
