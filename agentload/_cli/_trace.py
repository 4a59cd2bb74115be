"""`agentload trace`: look at, check and convert traces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import echo_json
from agentload._cli._interrupts import interruptible_write
from agentload_traces import printable

if TYPE_CHECKING:
    from agentload_traces import ImportReport, TraceInfo, TraceProblem, TraceReader

_format = click.option(
    "--format", "format_name", metavar="NAME", help="Read as this format; default: recognised by its content."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """Look at, check and convert traces.

    A format is recognised by a file's content: agentload's own (JSON lines, zstd or not, and Parquet),
    Mooncake JSON lines, weka JSON.

    \b
    Example:
      agentload trace info my_trace.jsonl
    """


@command.command()
@click.argument("file")
@_format
@_json
def info(file: str, format_name: str | None, as_json: bool) -> None:
    """Print what is in a trace: sessions, turns, tokens, tool calls.

    Problems are counted, and the first is shown; `agentload trace validate` lists them.

    \b
    Example:
      agentload trace info my_trace.jsonl --json
    """
    from agentload_traces import open_trace, trace_info

    reader = open_trace(file, format=format_name)
    with _progress(reader, "reading"):
        totals = trace_info(reader)
    if as_json:
        echo_json(totals)
    else:
        click.echo(_info_text(totals))
    if totals.first_problem:
        more = f" (the first of {totals.problems} problems)" if totals.problems > 1 else ""
        click.echo(f"problem: {totals.first_problem}{more}", err=True)


@command.command()
@click.argument("file")
@click.option("--strict", is_flag=True, help="Stop at the first problem.")
@_format
@_json
def validate(file: str, strict: bool, format_name: str | None, as_json: bool) -> None:
    """Check every line of a trace; print each problem with file, line and field.

    Exit code 0: no problem; 1: problems; 2: not a trace, or not readable.

    \b
    Example:
      agentload trace validate my_trace.jsonl
    """
    from agentload_traces import TraceProblemError, open_trace

    reader = open_trace(file, format=format_name, strict=strict)
    with _progress(reader, "checking"):
        try:
            for _ in reader.turns():
                pass
        except TraceProblemError:
            pass  # it stands in the report
    report = reader.report
    if as_json:
        echo_json(_validation(reader))
    else:
        _list_problems(report.problems, report.problem_count, err=False)
        click.echo(f"{printable(reader.name)}: {_outcome(report)}")
    sys.exit(1 if report.problem_count else 0)


@command.command()
@click.argument("in_file", metavar="IN")
@click.argument("out_file", metavar="OUT")
@click.option("--strict", is_flag=True, help="Write nothing if there is any problem.")
@_format
def convert(in_file: str, out_file: str, strict: bool, format_name: str | None) -> None:
    """Write a trace as agentload's own; OUT ends in .jsonl, .jsonl.zst or .parquet.

    Lines that cannot be used are reported and left out. Exit code 0: all lines were used as they are; 1: OUT
    was written, and there were problems; 2: nothing was written; 130: interrupted, nothing was written.

    \b
    Example:
      agentload trace convert conversation_trace.jsonl trace.parquet
    """
    from agentload_traces import TraceError, TraceProblemError, open_trace, write_trace

    reader = open_trace(in_file, format=format_name, strict=strict)
    if _same_file(in_file, out_file):
        raise TraceError(f"{out_file}: is the file that is read; give another name")
    try:
        with interruptible_write(out_file), _progress(reader, "converting"):
            turns = write_trace(out_file, reader.turns())
    except TraceProblemError:
        raise  # one line says it all
    except TraceError:
        _list_problems(reader.report.problems, reader.report.problem_count, err=True)
        raise
    report = reader.report
    _list_problems(report.problems, report.problem_count, err=True)
    for sentence in report.assumptions:
        click.echo(f"assumed: {sentence}", err=True)
    if report.ignored_fields:
        click.echo(f"fields not read: {_counts(report.ignored_fields)}", err=True)
    click.echo(f"{printable(Path(out_file))}: {turns} turns; {printable(reader.name)}: {_outcome(report)}")
    sys.exit(1 if report.problem_count else 0)


def _same_file(in_file: str, out_file: str) -> bool:
    try:
        return Path(in_file).samefile(out_file)
    except OSError:  # OUT is not there yet, or cannot be looked at, which writing will tell
        return False


def _info_text(totals: TraceInfo) -> str:
    rows: list[tuple[str, object]] = [
        ("file", totals.file),
        ("format", totals.format),
        ("sessions", f"{totals.sessions:,}"),
        ("turns", f"{totals.turns:,}"),
        ("input tokens", f"{totals.input_tokens:,}"),
        ("output tokens", f"{totals.output_tokens:,}"),
        ("sub-agents", f"{totals.subagents:,}"),
        ("sub-agent turns", f"{totals.subagent_turns:,}"),
        ("sub-agent input tokens", f"{totals.subagent_input_tokens:,}"),
        ("sub-agent output tokens", f"{totals.subagent_output_tokens:,}"),
        ("tool calls", f"{totals.tool_calls:,} ({totals.tool_calls_known})"),
        ("longest prompt", f"{totals.max_input_tokens:,} tokens"),
        ("turns with prefix blocks", f"{totals.turns_with_blocks:,}"),
        ("turns without output count", f"{totals.turns_without_output_tokens:,}"),
    ]
    if totals.last_start_ms is not None:
        rows.append(("last turn sent after", f"{totals.last_start_ms / 1000.0:,.1f} s"))
    if totals.models:
        rows.append(("models", ", ".join(totals.models)))
    rows.append(("lines read", f"{totals.lines_read:,}"))
    rows.append(("lines skipped", f"{totals.lines_skipped:,}"))
    for title, counts in (
        ("  by field", totals.skipped_by_field),
        ("lines merged", totals.lines_merged),
        ("lines without a request", totals.lines_other),
        ("fields not read", totals.ignored_fields),
    ):
        if counts:
            rows.append((title, _counts(counts)))
    rows.extend(("assumed", sentence) for sentence in totals.assumptions)
    width = max(len(title) for title, _ in rows) + 2
    return "\n".join(f"{title:<{width}}{printable(value)}" for title, value in rows)


def _validation(reader: TraceReader) -> dict[str, Any]:
    report = reader.report
    return {
        "file": reader.name,
        "format": report.format,
        "lines_read": report.lines_read,
        "turns": report.turns,
        "lines_merged": report.merged,
        "lines_other": report.other,
        "lines_skipped": report.lines_skipped,
        "skipped_by_field": report.skipped,
        "problem_count": report.problem_count,
        "problems": report.problems,
        "ignored_fields": report.ignored_fields,
        "assumptions": report.assumptions,
    }


def _list_problems(problems: list[TraceProblem], count: int, *, err: bool) -> None:
    for problem in problems:
        click.echo(problem, err=err)
    if count > len(problems):
        click.echo(f"... and {count - len(problems)} more problems", err=err)


def _outcome(report: ImportReport) -> str:
    count = report.problem_count
    problems = f"{count or 'no'} problem{'s' if count > 1 else ''}"
    return f"{report.format}, {report.lines_read} lines read, {report.lines_skipped} skipped, {problems}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{printable(name)} {count:,}" for name, count in counts.items())


@contextmanager
def _progress(reader: TraceReader, doing: str) -> Iterator[None]:
    """Show how much of the file has been read, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def bar() -> Table:
        row = Table.grid(padding=(0, 1))
        row.add_row(
            Text(f"{doing} {printable(Path(reader.path.name))}"),  # a name is no markup
            ProgressBar(total=1.0, completed=reader.progress, width=40),
            f"{reader.progress:.0%}",
        )
        return row

    with Live(get_renderable=bar, console=Console(stderr=True), transient=True, refresh_per_second=4):
        yield
