"""`agentload replay`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import echo_json
from agentload._cli._option_groups import GroupedCommand
from agentload._cli._replay_options import exit_code, replay_options, replay_with_progress

if TYPE_CHECKING:
    from agentload._replay_result import ReplayResult


_SHOWN = (
    "turns",
    "failed",
    "skipped",
    "retried",
    "capped",
    "tool_errors",
    "interrupted",
    "valid",
    "invalid_reasons",
)
"""Fields of a `ReplayResult` that a script would read."""


@click.command(cls=GroupedCommand, name="replay", short_help="Replay a trace.")
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(trace: Path | None, as_json: bool, **values: Any) -> None:
    """Replay TRACE against a simulated deployment or an endpoint, and write a run directory.

    \b
    Example:
      agentload replay my_trace.jsonl --target http://127.0.0.1:8000 --concurrency 4 --out runs/mine
      agentload replay my_trace.jsonl --target https://api.example.com --api messages --key-file key
      agentload replay my_trace.jsonl --target http://127.0.0.1:8000 --arrival poisson --rate 2 --retries 3
      agentload report runs/mine
      agentload replay --resume runs/mine           # had it been interrupted
      agentload replay my_trace.jsonl --target gemma4-31b/pd --faults bad_day.toml --latency-class batch

    Ctrl-C once finishes the turns on their way (wall clock), twice stops them, too.

    Exit code 1: some turns failed or were not sent, lines of the trace were skipped, or the run was
    interrupted. What was recorded is kept in every case. A run in which the client did not keep up ("not
    valid") is told with the reasons, and is no failure.
    """
    if trace is None and values["resume"] is None:
        raise click.UsageError("Missing argument 'TRACE'.")
    result = replay_with_progress(trace, values)
    from agentload_traces import decodable

    run = decodable(result.path)
    if as_json:
        echo_json({"run": run, **{name: getattr(result, name) for name in _SHOWN}})
    else:
        click.echo(f"{_turns(result)}, {result.failed:,} failed, {result.skipped:,} not sent: {run}")
    sys.exit(exit_code(result))


def _turns(result: ReplayResult) -> str:
    if not result.interrupted:
        return f"{result.turns:,} turns"
    planned = "" if result.turns_planned is None else f" of {result.turns_planned:,} planned"
    return f"{result.turns:,}{planned} turns (interrupted)"
