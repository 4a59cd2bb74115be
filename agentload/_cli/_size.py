"""`agentload size`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import echo_json, report_console
from agentload._cli._interrupts import like_ctrl_c
from agentload._cli._sweep_options import (
    MODES,
    SLO_HELP,
    check_model,
    context_option,
    slo_option,
    take_workload,
    workload_options,
)

if TYPE_CHECKING:
    from agentload._size import Probe, SizeOptions, Sizing

_DEFAULT_TARGET = "gemma4-31b/pd"
_DEFAULT_CONTEXT_TOKENS = 100_000


@click.command(name="size", short_help="Find the largest concurrency that holds an SLO.")
@click.option("--target", metavar="NAME|FILE", help=f"A deployment.  [default: {_DEFAULT_TARGET}]")
@click.option("--model", help="In place of --target: a model, with --mode.")
@click.option("--mode", type=click.Choice(MODES), help="Its mode.")
@click.option("--slo", required=True, callback=slo_option, metavar="LIMITS", help=SLO_HELP)
@click.option(
    "--context", callback=context_option, help="First prompt of generated sessions.  [default: 100K]"
)
@workload_options
@click.option(
    "--max-concurrency",
    "most",
    type=click.IntRange(1, 100_000),
    default=1024,
    show_default=True,
    help="The highest concurrency to try.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(as_json: bool, **values: Any) -> None:
    """Find the largest concurrency at which a deployment holds an SLO, in virtual time.

    It doubles the concurrency until the SLO breaks, then bisects, with the same sessions each time. That
    takes for granted that what breaks at one concurrency breaks at every higher one. Each probe is shown, and
    the values that decide with their scatter.

    \b
    Example:
      agentload size --target gemma4-31b/pd --slo ttft=500ms,itl=5ms --context 100K
      agentload size --model gemma4-31b --mode rubin --slo session=30min --trace my_trace.jsonl

    Exit code 1: not even one session holds it, lines of the trace were skipped, or it was interrupted (--json
    has the probes so far). 2: it could not be run.
    """
    from msgspec import structs

    from agentload._cli._replay_options import show_problems
    from agentload._size import size
    from agentload._sweep import checked_trace
    from agentload_traces import decodable

    options = _options(values)
    probes: list[Probe] = []

    def made(probe: Probe) -> None:
        probes.append(probe)
        if not as_json:
            _show_probe(probe)

    try:
        with like_ctrl_c():
            report = checked_trace(options.workload)
            sizing = size(options, made)
    except KeyboardInterrupt:
        if as_json:
            found = {"target": decodable(options.target), "slo": str(options.slo), "largest": None}
            echo_json({"interrupted": True, **found, "probes": probes})
        click.echo("interrupted: the largest concurrency is not known", err=True)
        sys.exit(1)
    if as_json:
        echo_json({"interrupted": False, **structs.asdict(sizing)})
    else:
        _show(sizing)
    if report is not None and options.workload.trace is not None:
        show_problems(options.workload.trace, report)
    sys.exit(1 if sizing.largest == 0 or (report is not None and report.lines_skipped) else 0)


def _options(values: dict[str, Any]) -> SizeOptions:
    from agentload._size import SizeOptions

    workload = take_workload(values)
    context, target = values.pop("context"), values.pop("target")
    model, mode = values.pop("model"), values.pop("mode")
    if workload.trace is not None and context is not None:
        raise click.UsageError("a trace has contexts of its own: leave out --context")
    if (model is None) != (mode is None):
        raise click.UsageError("--model and --mode belong together")
    if model is not None and target is not None:
        raise click.UsageError("give --target, or --model and --mode")
    if model is not None:
        check_model(model)
        target = f"{model}/{mode}"
    return SizeOptions(
        target=target or _DEFAULT_TARGET,
        workload=workload,
        context_tokens=None if workload.trace is not None else context or _DEFAULT_CONTEXT_TOKENS,
        **values,
    )


def _show_probe(probe: Probe) -> None:
    from agentload_traces import printable

    outcome = "holds" if probe.holds else f"breaks: {printable('; '.join(probe.broken))}"
    sessions = probe.row["sessions"]
    click.echo(f"concurrency {probe.concurrency:>5,} of {sessions:,} sessions  {outcome}")


def _show(sizing: Sizing) -> None:
    from rich.text import Text

    from agentload_traces import printable

    console = report_console()

    def say(line: str, style: str | None = None) -> None:
        console.print(Text(printable(line)), style=style)

    at, above = sizing.at, sizing.above
    if above is not None and sizing.largest == 0:
        broken = "; ".join(above.broken)
        say(f"{sizing.target} does not hold {sizing.slo} with one session: {broken}", "bold red")
    else:
        most = f"{sizing.largest} sessions at a time"
        held = f"with {most}, the most tried" if sizing.at_limit else f"with up to {most}"
        say(f"{sizing.target} holds {sizing.slo} {held}", "bold")
    decisive = [probe for probe in (at, above) if probe is not None]
    for probe in decisive:
        say(f"With {probe.concurrency}: {'; '.join(probe.values)}")
    say("(± one standard error, by ten groups of sessions in order)")
    if any(probe.close for probe in decisive):
        say("A limit is within two standard errors of one of these: other sessions may give another answer.")
    simulated, hangs_on, *rest = sizing.deployment.conditions
    for line in (simulated, hangs_on, sizing.assumption, sizing.workload, *rest):
        say(f"  - {line}")
