"""`agentload run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agentload._cli._console import echo_json, report_console
from agentload._cli._interrupts import like_ctrl_c
from agentload._cli._option_groups import GroupedCommand
from agentload._cli._replay_options import exit_code, replay_options, replay_with_progress

DEFAULT_SAMPLE = "weka_trace_0533.json.zst"
"""A real coding session of 201 turns; see the samples' README."""


@click.command(cls=GroupedCommand, name="run", short_help="Replay a trace and report it.")
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(trace: Path | None, as_json: bool, **values: Any) -> None:
    """Replay TRACE and report it: the table here, the plots in report.html of the run directory.

    Without TRACE it plays a bundled recording of a real coding agent: 201 turns, 13 million input tokens.

    \b
    Example:
      agentload run
      agentload run my_trace.jsonl --target gemma4-31b/rubin --concurrency 8
      agentload run my_trace.jsonl --clock wall --speed 10 --max-turns 20
      agentload run my_trace.jsonl --faults bad_day.toml --tool-slots 32
      agentload run long_trace.jsonl --on-overflow compact

    Exit code 1: some turns failed or were not sent, lines of the trace were skipped, or the run was
    interrupted.
    """
    from agentload_analysis import render_text, summarise, write_html
    from agentload_traces import decodable, printable, sample_path

    if trace is None and values["resume"] is None:
        trace = sample_path(DEFAULT_SAMPLE)
    result = replay_with_progress(trace, values)
    page = result.path / "report.html"
    try:
        with like_ctrl_c():
            summary = summarise(result.path)
            write_html(result.path, page, summary)
    except KeyboardInterrupt:
        kept = printable(result.path)
        click.echo(f"interrupted: the run is kept in {kept}, its report is not written", err=True)
        sys.exit(1)
    shown_run, shown_page = decodable(result.path), decodable(page)
    if as_json:
        echo_json({**summary, "run": shown_run, "html": shown_page})
    else:
        render_text(summary, report_console())
        click.echo(f"\nrun directory: {shown_run}\nreport: {shown_page}")
    sys.exit(exit_code(result))
