"""`agentload report`: what a run took, on the terminal, as JSON, CSV or one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from agentload._cli._console import echo_json, report_console
from agentload._cli._values import OutputFile


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole summary as JSON instead of tables.")
@click.option(
    "--csv",
    "csv_directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write per_session.csv, per_turn.csv and per_context.csv into DIR.",
)
@click.option(
    "--html",
    "html_file",
    type=OutputFile(),
    metavar="FILE",
    help="Write one HTML file with plots; it works offline.",
)
def command(run: Path, as_json: bool, csv_directory: Path | None, html_file: Path | None) -> None:
    """Report a run: sessions, where their time went, latencies by turn and by context.

    RUN is a run directory, finished or not; a report of an unfinished run says so.

    \b
    Example:
      agentload report runs/pd
      agentload report runs/pd --json | jq .session_time_s
      agentload report runs/pd --html pd.html --csv tables/
    """
    from agentload_analysis import render_text, summarise, take_snapshot, write_csv, write_html
    from agentload_traces import printable

    snapshot = take_snapshot(run)  # one for all outputs: the run may still be going on
    summary = summarise(snapshot)
    if as_json:
        echo_json(summary)
    else:
        render_text(summary, report_console())
    written = write_csv(summary, csv_directory) if csv_directory else []
    if html_file:
        written.append(write_html(snapshot, html_file, summary))
    for path in written:
        click.echo(f"wrote {printable(path)}", err=as_json)
