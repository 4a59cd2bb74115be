"""`agentload sweep`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import echo_json, report_console
from agentload._cli._interrupts import like_ctrl_c
from agentload._cli._sweep_options import (
    MODES,
    SLO_HELP,
    Listed,
    check_model,
    concurrency,
    context_tokens,
    mode,
    slo_option,
    take_workload,
    workload_options,
)
from agentload._cli._values import NamedPath, OutputFile

if TYPE_CHECKING:
    import polars as pl

    from agentload._sweep import SweepOptions, SweepResult

_DEFAULT_MODEL = "gemma4-31b"


@click.command(name="sweep", short_help="Sweep concurrency, context and modes in virtual time.")
@click.option(
    "--model", "models", multiple=True, help=f"A model; may be repeated.  [default: {_DEFAULT_MODEL}]"
)
@click.option(
    "--mode", "modes", type=Listed("modes", mode), help=f"Modes of them.  [default: {','.join(MODES)}]"
)
@click.option(
    "--target",
    "targets",
    metavar="NAME|FILE",
    multiple=True,
    help="A deployment; may be repeated, and with --model.",
)
@click.option(
    "--concurrency",
    "concurrencies",
    type=Listed("numbers", concurrency),
    default="1,2,4,8,12,16,24",
    show_default=True,
    help="Sessions at a time.",
)
@click.option(
    "--context",
    "contexts",
    type=Listed("contexts", context_tokens),
    help="First prompts of generated sessions (K = 1,000).  [default: 10K,100K]",
)
@workload_options
@click.option("--slo", callback=slo_option, metavar="LIMITS", help=SLO_HELP)
@click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Processes (default: all cores); no result depends on it."
)
@click.option(
    "--out",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Directory to write (default: sweeps/TIME).",
)
@click.option(
    "--plot",
    type=OutputFile(".svg", ".png"),
    metavar="FILE.svg|png",
    help="Write the plots into one picture, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(plot: Path | None, as_json: bool, **values: Any) -> None:
    """Run deployments at every concurrency and context in virtual time, on all cores.

    Deployments are named MODEL/MODE, such as gemma4-31b/pd. Per point it gives: output tokens/s per user
    (median, p10), of all users together and per rack (every rack of the deployment, whole), TTFT, ITL,
    session time, failed turns, the share of queueing. It writes sweep.parquet, sweep.json (conditions,
    versions, the meaning of each column) and sweep.html (the plots, offline).

    \b
    Example:
      agentload sweep --mode pd,rubin --slo ttft=500ms,itl=5ms
      agentload sweep --target gemma4-31b/pd --trace my_trace.jsonl --plot pd.svg
      agentload sweep --model gemma4-31b --context 100K --tool-time 0 --json

    Exit code 1: a point could not be run, turns failed, lines of the trace were skipped, a plot could not be
    written, or it was interrupted or a process died (finished points are kept). 2: no point could be run.
    """
    import msgspec

    from agentload._sweep import sweep
    from agentload._sweep_results import table as point_table
    from agentload_analysis import render_sweep
    from agentload_traces import decodable

    options = _options(values)
    points = len(options.targets) * len(options.concurrencies) * max(1, len(options.contexts_tokens))
    with like_ctrl_c(), _progress(points) as advance:
        result = sweep(options, advance)
    manifest, table = msgspec.to_builtins(result.manifest), point_table(result.rows)
    if as_json:
        echo_json({**manifest, "out": decodable(result.out), "points": result.rows})
    else:
        render_sweep(table, manifest, report_console())
        click.echo(f"\nresults: {decodable(result.out)}")
    plotted = _plot(table, manifest, result.out / "sweep.html", plot, as_json)
    code = _exit_code(result)
    sys.exit(code or (0 if plotted else 1))


def _options(values: dict[str, Any]) -> SweepOptions:
    from agentload._sweep import SweepOptions
    from agentload._sweep_pool import usable_cores

    workload = take_workload(values)
    contexts = values.pop("contexts")
    if workload.trace is not None and contexts is not None:
        raise click.UsageError("a trace has contexts of its own: leave out --context")
    targets, models, modes = values.pop("targets"), values.pop("models"), values.pop("modes")
    if models or modes or not targets:
        for model in models:
            check_model(model)
        modes = modes or MODES
        targets += tuple(f"{model}/{mode}" for model in models or (_DEFAULT_MODEL,) for mode in modes)
    jobs, out = values.pop("jobs"), values.pop("out")
    return SweepOptions(
        targets=tuple(dict.fromkeys(targets)),
        contexts_tokens=() if workload.trace is not None else contexts or (10_000, 100_000),
        workload=workload,
        jobs=jobs or usable_cores(),
        out=out,
        **values,
    )


def _plot(
    table: pl.DataFrame, manifest: dict[str, Any], page: Path, plot: Path | None, as_json: bool
) -> bool:
    """Write page and picture; what cannot be written is a warning, for the results are there. False then."""
    from agentload_analysis import write_sweep_html, write_sweep_plot
    from agentload_traces import AgentloadError, decodable

    whole = True
    for write, path in ((write_sweep_html, page), (write_sweep_plot, plot)):
        if path is None:
            continue
        try:
            write(table, manifest, path)
        except AgentloadError as error:
            click.echo(f"warning: {error}", err=True)
            whole = False
        else:
            if not as_json:
                click.echo(f"plots: {decodable(path)}")
    return whole


def _exit_code(result: SweepResult) -> int:
    from agentload._cli._replay_options import show_problems
    from agentload_traces import printable

    lines_lost = False
    if result.trace is not None:
        trace = result.manifest.options["trace"]
        show_problems(Path(trace), result.trace)
        lines_lost = result.trace.lines_skipped > 0
    if result.interrupted or result.died is not None:
        done, planned = result.manifest.points_done, result.manifest.points_planned
        why = "interrupted" if result.died is None else f"error: {result.died}"
        click.echo(f"{why}: {done} of {planned} points are kept in {printable(result.out)}", err=True)
        return 1
    errors = [row["error"] for row in result.rows if row["error"] is not None]
    if errors and len(errors) == len(result.rows):
        click.echo(f"error: no point could be run: {printable(errors[0])}", err=True)
        return 2
    unanswered = sum(row["failed"] + row["skipped"] for row in result.rows if row["error"] is None)
    if errors:
        click.echo(f"warning: {len(errors)} of {len(result.rows)} points could not be run", err=True)
    if unanswered:
        click.echo(f"warning: {unanswered} turns were not answered", err=True)
    return 1 if errors or unanswered or lines_lost else 0


@contextmanager
def _progress(points: int) -> Iterator[Callable[[], None]]:
    """Yields what to call after each point; shown on stderr if it is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("points", total=points)
        yield lambda: bar.advance(task)
