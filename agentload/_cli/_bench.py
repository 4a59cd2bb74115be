"""`agentload bench aa` and `agentload bench coding`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from agentload._bench_words import (
    AA_INPUTS,
    AA_OUTPUT,
    AA_REQUESTS,
    CODING_INPUT,
    CODING_OUTPUT,
    CODING_REQUESTS,
    OTHER_OUTPUT,
    BenchKind,
)
from agentload._cli._console import echo_json, report_console
from agentload._cli._endpoint_options import ENDPOINT
from agentload._cli._interrupts import like_ctrl_c
from agentload._cli._option_groups import GroupedCommand, add_options, named, option_group
from agentload._cli._sweep_options import Listed, context_tokens
from agentload._cli._values import SEED, NamedPath

if TYPE_CHECKING:
    from agentload._bench import BenchCase, BenchOptions, BenchResult

_INTERRUPTED = 130
_MOST_REQUESTS = 1_000

_BENCH = option_group(
    "Benchmark",
    named(
        "--target",
        metavar="NAME|FILE|URL",
        default="gemma4-31b/pd",
        show_default=True,
        help="A simulated deployment (see `agentload backends`), a deployment's TOML file, or the URL of an"
        " endpoint.",
    ),
    named(
        "--clock",
        type=click.Choice(["virtual", "wall"]),
        help="virtual: simulate in process (default for deployments). wall: over HTTP in real time (default"
        " for URLs).",
    ),
    named(
        "--output-tokens",
        type=click.IntRange(2, 1_000_000),
        metavar="N",
        help="Tokens to ask for (default: those of the benchmark).",
    ),
    named("--seed", type=SEED, default=0, show_default=True, help="Seed of all draws."),
    named(
        "--out",
        type=NamedPath(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep the runs and bench.json in this new directory (default: keep nothing).",
    ),
    named("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)


def _requests(default: int) -> Callable[[Any], Any]:
    return click.option(
        "--requests",
        type=click.IntRange(1, _MOST_REQUESTS),
        default=default,
        show_default=True,
        help="Requests for each length of prompt, one after the other.",
    )


@click.group(name="bench", short_help="Measure output speed as published benchmarks do.")
def command() -> None:
    """Measure the output speed of a simulated deployment or an endpoint as published benchmarks do.

    \b
    Example:
      agentload bench aa --target gemma4-31b/pd
      agentload bench coding --target http://127.0.0.1:8000 --out bench-1
    """


@command.command(name="aa", cls=GroupedCommand, short_help="As Artificial Analysis did on LPX.")
@click.option(
    "--inputs",
    type=Listed("lengths of prompts", context_tokens),
    default=AA_INPUTS,
    metavar="LENGTHS",
    help="Tokens of prompts (K = 1,000).  [default: 1K,10K,100K]",
)
@_requests(AA_REQUESTS)
@lambda function: add_options(function, (_BENCH, ENDPOINT))
def _aa(inputs: tuple[int, ...], **values: Any) -> None:
    """Measure single requests, one after the other, as Artificial Analysis did on LPX.

    For each length of prompt: the median output speed in o200k_base tokens/s after the first token, TTFT, and
    the whole answer's time, over 50 requests at concurrency 1. Each figure comes with its spread, and all of
    them with what they hold for. Published figures of the same configuration stand beside.

    \b
    Example:
      agentload bench aa
      agentload bench aa --target gemma4-31b/rubin --inputs 10K --json
      agentload bench aa --target https://api.example.com --model m --key-file key --out bench-1

    Exit code 1: requests failed, a length could not be run, or it was interrupted (finished ones are shown).
    """
    from agentload._bench import BenchCase

    asked = values.pop("output_tokens")
    cases = [BenchCase(tokens, asked or AA_OUTPUT.get(tokens, OTHER_OUTPUT)) for tokens in inputs]
    sys.exit(_run("aa", tuple(cases), values))


@command.command(name="coding", cls=GroupedCommand, short_help="In the manner of SPEED-Bench coding.")
@click.option(
    "--input-tokens",
    type=click.IntRange(1, 1_000_000),
    default=CODING_INPUT,
    show_default=True,
    help="Tokens of a prompt.",
)
@_requests(CODING_REQUESTS)
@lambda function: add_options(function, (_BENCH, ENDPOINT))
def _coding(input_tokens: int, **values: Any) -> None:
    """Measure output speed per user on code, in the manner of the coding category of SPEED-Bench.

    Gives its median and P80 over single requests of the average size of that category. A simulated deployment
    speculates as on code. An endpoint gets made-up words and not the prompts of SPEED-Bench, so its figures
    are comparable only if it does not speculate.

    \b
    Example:
      agentload bench coding
      agentload bench coding --target http://127.0.0.1:8000 --requests 20

    Exit code 1: requests failed, or it was interrupted.
    """
    from agentload._bench import BenchCase

    asked = values.pop("output_tokens")
    sys.exit(_run("coding", (BenchCase(input_tokens, asked or CODING_OUTPUT),), values))


def _run(kind: BenchKind, cases: tuple[BenchCase, ...], values: dict[str, Any]) -> int:
    from agentload._bench import run_bench
    from agentload._cli._bench_text import render_bench

    as_json = values.pop("as_json")
    options = _options(kind, cases, values)
    with like_ctrl_c(), _progress(options) as (started, advance, tell):
        result = run_bench(options, started, advance, tell)
    if result.interrupted and not result.cases:
        click.echo("interrupted: no length of prompt was finished", err=True)
        return _INTERRUPTED
    if as_json:
        echo_json(result)
    else:
        render_bench(result, report_console())
        if options.out is not None:
            from agentload_traces import printable

            click.echo(f"\nruns and bench.json: {printable(options.out)}")
    _tell_of_failures(result, options)
    return 0 if result.whole else 1


def _options(kind: BenchKind, cases: tuple[BenchCase, ...], values: dict[str, Any]) -> BenchOptions:
    from agentload._bench import BenchOptions
    from agentload._options import EndpointOptions
    from agentload._replay import is_url

    clock: Literal["virtual", "wall"] | None = values.pop("clock")
    names = [name for name in EndpointOptions.__struct_fields__ if name in values]
    endpoint = EndpointOptions(**{name: values.pop(name) for name in names})
    return BenchOptions(
        kind=kind,
        cases=cases,
        clock=clock or ("wall" if is_url(values["target"]) else "virtual"),
        endpoint=endpoint,
        **values,
    )


def _tell_of_failures(result: BenchResult, options: BenchOptions) -> None:
    from agentload_traces import printable

    for case in result.cases:
        if case.error is not None:
            click.echo(f"error: {case.name}: {printable(case.error)}", err=True)
        elif case.figures is not None and case.figures.failed:
            told = printable(case.figures.first_failure or "no reason was given")
            click.echo(
                f"warning: {case.name}: {case.figures.failed} of {case.figures.requests} requests failed;"
                f" first: {told}",
                err=True,
            )
    if result.interrupted:
        left = ", ".join(case.name for case in options.cases[len(result.cases) :])
        click.echo(f"interrupted: {left} not measured; what was finished is shown", err=True)


@contextmanager
def _progress(
    options: BenchOptions,
) -> Iterator[tuple[Callable[[BenchCase], None], Callable[[], None], Callable[[str], None]]]:
    """Yields what to call with each case, after each request, and with a warning; a bar on a terminal."""
    from agentload_traces import printable

    def warn(warning: str) -> None:
        click.echo(f"warning: {printable(warning)}", err=True)

    if sys.stderr is None or not sys.stderr.isatty():
        yield (lambda case: None), (lambda: None), warn
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=options.requests)

        def started(case: BenchCase) -> None:
            bar.reset(task, description=f"{case.name} in, {case.output_tokens:,} out", total=options.requests)

        def tell(warning: str) -> None:
            bar.console.print(f"warning: {printable(warning)}", markup=False, highlight=False, soft_wrap=True)

        yield started, (lambda: bar.advance(task)), tell
