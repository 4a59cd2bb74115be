"""The options that `run` and `replay` share, and how both show a replay's course and outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from agentload._cli._endpoint_options import ENDPOINT, PROMPTS
from agentload._cli._failure_options import FAILURE
from agentload._cli._interrupts import like_ctrl_c
from agentload._cli._load_options import LOAD
from agentload._cli._option_groups import add_options, named, option_group
from agentload._cli._tool_options import TOOLS
from agentload._cli._values import SEED, NamedPath
from agentload_traces import printable

if TYPE_CHECKING:
    from agentload._options import ReplayOptions
    from agentload._replay_result import ReplayResult
    from agentload_traces import ImportReport

_PROBLEMS_SHOWN = 10

_MAY_HAVE_MOVED = ("target", "faults", "key_file", "headers", "query", "extra_body")
"""Options of files, which a run that is resumed may find elsewhere, and of values that are not recorded."""


RUN = option_group(
    "Run",
    named(
        "--target",
        metavar="NAME|FILE|URL",
        default="gemma4-31b/pd",
        show_default=True,
        help="A simulated deployment (see `agentload backends`), a deployment's TOML file, or the URL of an"
        " endpoint. A key is taken from AGENTLOAD_API_KEY.",
    ),
    named(
        "--clock",
        type=click.Choice(["virtual", "wall"]),
        default=None,
        help="virtual: simulate in process, as fast as it computes (default for deployments). wall: over HTTP"
        " in real time; a deployment is then served by a process of its own (default for URLs).",
    ),
    named(
        "--faults",
        type=NamedPath(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="What befalls a deployment during the run: chips down, drains, stalls, 503s (TOML or JSON, see"
        " the simulator's README).",
    ),
    named(
        "--content",
        metavar="CLASS",
        help="Content class of all requests, such as coding: decides what speculative decoding yields"
        " (default: the deployment's).",
    ),
    named(
        "--latency-class",
        type=click.Choice(["interactive", "standard", "batch"]),
        help="Whom the router is to serve all requests before or after (default: standard).",
    ),
    named(
        "--on-overflow",
        type=click.Choice(["refuse", "cut", "compact"]),
        default="refuse",
        show_default=True,
        help="Turns that outgrow the context of the deployment, or the one that an endpoint tells"
        " (max_model_len). refuse: do not start. cut: end the session before"
        " the first. compact: shorten the agent's context from there on, keeping its beginning.",
    ),
    named("--seed", type=SEED, default=0, show_default=True, help="Seed of all draws."),
    named("--format", "trace_format", help="The trace's format (default: recognised by its content)."),
    named("--strict", is_flag=True, help="Stop at the first bad line of the trace."),
    named(
        "--arrivals/--no-arrivals",
        default=True,
        show_default=True,
        help="Record when each token came. Without it a virtual run is faster and ITL falls back to TPOT.",
    ),
    named(
        "--workers",
        type=click.IntRange(min=1, max=64),
        default=1,
        show_default=True,
        help="Processes that send, when one core is not enough (wall clock).",
    ),
    named(
        "--baseline/--no-baseline",
        default=True,
        show_default=True,
        help="Measure this machine's own error for a few seconds before the run (wall clock).",
    ),
    named(
        "--out", type=click.Path(path_type=Path), help="Run directory to write (default: runs/TRACE-TIME)."
    ),
    named(
        "--resume",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="RUN",
        help="Finish an interrupted run with the trace and the options that it was started with. TRACE,"
        " --target, --faults and --key-file may say where their files now are; --header, --query and"
        " --extra-body are given once more, for values are not recorded.",
    ),
)


def replay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command."""
    return add_options(command, (RUN, LOAD, ENDPOINT, PROMPTS, FAILURE, TOOLS))


def replay_with_progress(trace: Path | None, values: dict[str, Any]) -> ReplayResult:
    """Replay with the values of the shared options; shows progress on a terminal's stderr.

    trace: `None` only with `--resume`, which then takes the run's own.
    """
    from agentload._replay import replay

    options = _options(trace, values)
    trace = options.trace
    label = f"{trace.name} on {options.target}, {options.clock} clock"
    with like_ctrl_c(), _progress(label) as (advance, tell):
        result = replay(options, advance, tell)
    show_problems(trace, result.trace)
    return result


def _options(trace: Path | None, values: dict[str, Any]) -> ReplayOptions:
    from agentload._options import GROUPS, ReplayOptions
    from agentload._replay import is_url
    from agentload._run_manifest import resumed_options

    resume: Path | None = values.pop("resume")
    if resume is not None:
        context = click.get_current_context()
        given = [name for name in values if _on_command_line(context, name)]
        others = [name for name in given if name not in _MAY_HAVE_MOVED]
        if others:
            raise click.UsageError(
                f"--resume takes the options from the run: leave out {_flag(context, others[0])}"
            )
        return resumed_options(resume, trace, **{name: values[name] for name in given})
    out: Path | None = values.pop("out")
    clock: Literal["virtual", "wall"] | None = values.pop("clock")
    assert trace is not None
    groups: dict[str, Any] = {
        group: kind(**{name: values.pop(name) for name in kind.__struct_fields__})
        for group, kind in GROUPS.items()
    }
    return ReplayOptions(
        trace=trace,
        out=out or _default_out(trace),
        clock=clock or ("wall" if is_url(values["target"]) else "virtual"),
        **groups,
        **values,
    )


def _flag(context: click.Context, name: str) -> str:
    return next(param.opts[0] for param in context.command.params if param.name == name)


def _on_command_line(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE


def show_problems(trace: Path, report: ImportReport) -> None:
    """Tell of the trace's bad lines on stderr."""
    for problem in report.problems[:_PROBLEMS_SHOWN]:
        click.echo(f"warning: {problem}", err=True)
    if report.problem_count > _PROBLEMS_SHOWN:
        more = report.problem_count - _PROBLEMS_SHOWN
        click.echo(f"warning: {more} more problems; see them all: agentload trace validate {trace}", err=True)
    if report.lines_skipped:
        click.echo(f"warning: {trace}: {report.lines_skipped} of {report.lines_read} lines skipped", err=True)


def exit_code(result: ReplayResult) -> Literal[0, 1]:
    """Say on stderr what went wrong; 1 if anything did."""
    for reason in result.invalid_reasons if result.valid is False else ():
        click.echo(f"warning: not valid: {printable(reason)}", err=True)
    if result.skipped and not result.failed:
        click.echo(
            f"warning: {result.skipped} of {result.turns} turns were not sent; first: {result.first_skip}",
            err=True,
        )
    elif result.failed:
        click.echo(
            f"warning: {result.failed} of {result.turns} turns failed and {result.skipped} were not sent;"
            f" first error: {result.first_error}",
            err=True,
        )
    if result.interrupted:
        click.echo(
            f"interrupted: what was recorded is kept in {result.path}; finish it with --resume {result.path}",
            err=True,
        )
    if result.tool_errors:
        click.echo(
            f"warning: {result.tool_errors} tool calls failed;"
            f" first: {printable(str(result.first_tool_error))}",
            err=True,
        )
    lines_lost = result.trace.lines_skipped > 0
    wrong = result.failed or result.skipped or result.tool_errors or result.interrupted or lines_lost
    return 1 if wrong else 0


def _default_out(trace: Path) -> Path:
    stem = trace.name.split(".", 1)[0]
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{stem}-{stamp}"
    number = 2
    while path.exists():
        path = Path("runs") / f"{stem}-{stamp}-{number}"
        number += 1
    return path


@contextmanager
def _progress(description: str) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """Yields what to call after each turn, and what to call with a warning."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None, _warn
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed} turns"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        shown = bar.console

        def tell(warning: str) -> None:
            shown.print(f"warning: {printable(warning)}", markup=False, highlight=False, soft_wrap=True)

        yield lambda: bar.advance(task), tell


def _warn(warning: str) -> None:
    click.echo(f"warning: {printable(warning)}", err=True)
