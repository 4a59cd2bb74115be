"""`agentload schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import echo_json, report_console
from agentload._cli._schedule_text import ablation_caption, conditions, speeds, stops_paying, title
from agentload._cli._sweep_options import context_option
from agentload._cli._values import NumberRange, OutputFile

if TYPE_CHECKING:
    from rich.console import Console

    from agentload_simbackend import AblationRow, Budget, ScheduledDeployment, StepSchedule

_LINES = ("c2c", "on_chip", "weights", "attention", "head", "host")
_FIRST_BIT_S = 2e-6  # FIRST_BIT_S of the simulator, which need not be imported for help


@click.command(short_help="Show the static schedule of a decode step on a group of LPUs.")
@click.argument("model")
@click.option("--lpus", type=click.IntRange(1), help="LPUs of the tensor-parallel group [the deployment's].")
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Streams that decode."
)
@click.option(
    "--context",
    callback=context_option,
    help="Tokens of context of each stream, such as 100K or 8192 [10K].",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(0, 64),
    metavar="K",
    help="Draft tokens of a step, which verifies K + 1 [the deployment's].",
)
@click.option("--no-overlap", is_flag=True, help="Send results only when the whole operation is done.")
@click.option(
    "--arbitrate",
    type=NumberRange(0, 1, min_open=True, max_open=True),
    is_flag=False,
    flag_value=_FIRST_BIT_S,
    metavar="[SECONDS]",
    help="Add a first-bit latency to each exchange, as arbitration on a GPU fabric does; without SECONDS "
    f"{_FIRST_BIT_S:g}: half a small all-reduce on GB300 (4 us; NVIDIA AIConfigurator), for an all-reduce is "
    "two exchanges, a reduce-scatter and an all-gather.",
)
@click.option(
    "--out",
    type=OutputFile(".svg", ".html"),
    metavar="FILE",
    help="Draw one layer of each kind as a Gantt chart: FILE.svg or FILE.html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    lpus: int | None,
    batch: int,
    context: int | None,
    draft_tokens: int | None,
    no_overlap: bool,
    arbitrate: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show the static schedule of one decode step on a tensor-parallel group of LPUs.

    MODEL is a model (its name or TOML file), or a deployment that decodes on LPUs. Printed are the budget of
    each kind of layer and of the step, the speed of one stream, a table of what overlap and the absence of
    arbitration are worth on groups of 8 to 256 LPUs, and what fits in memory.

    \b
    Example:
      agentload schedule gemma-4-31b --lpus 256
      agentload schedule gpt-oss-120b --batch 8 --context 100K --out layer.html
      agentload schedule gemma4-31b/pd --no-overlap --arbitrate 2e-6
    """
    from agentload_simbackend import ScheduledDeployment, ScheduleOptions, deployment_to_schedule
    from agentload_traces import printable

    scheduled = ScheduledDeployment(
        deployment_to_schedule(model),
        lpus=lpus,
        batch=batch,
        context_tokens=context,
        draft_tokens=draft_tokens,
        options=ScheduleOptions(not no_overlap, arbitrate or 0.0),
    )
    if as_json:
        echo_json(_content(scheduled))
    else:
        _print(scheduled)
    if out is not None:
        _draw(scheduled, out)
        click.echo(f"wrote {printable(out)}", err=as_json)


def _print(scheduled: ScheduledDeployment) -> None:
    from agentload_traces import printable

    console = report_console()

    def say(text: str) -> None:
        console.print(printable(text), highlight=False, markup=False)

    say(title(scheduled))
    console.print()
    _print_budget(scheduled, console)
    console.print()
    for line in speeds(scheduled):
        say(line)
    console.print()
    say(ablation_caption(scheduled))
    _print_ablation(scheduled, console)
    say(stops_paying(scheduled))
    console.print("\nConditions", highlight=False)
    for sentence in conditions(scheduled):
        say(f"- {sentence}")


def _print_budget(scheduled: ScheduledDeployment, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("us", no_wrap=True)
    for column in ("count", "operations", "exchanges", *_LINES, "total"):
        table.add_column(column.replace("_", " "), justify="right", no_wrap=True)

    def row(name: str, counts: tuple[object, ...], seconds: list[float], decimals: int) -> None:
        table.add_row(name, *map(str, counts), *(f"{each * 1e6:,.{decimals}f}" for each in seconds))

    def budget(lines: Budget, clock_hz: float = 1.0) -> list[float]:
        return [each / clock_hz for each in (*lines, sum(lines))]

    elsewhere = scheduled.elsewhere
    step = "step on the LPUs" if elsewhere else "step"
    parts: list[tuple[str, int, StepSchedule]] = [(step, 1, scheduled.step)]
    if scheduled.draft is not None:
        parts.append(("draft token", scheduled.draft_tokens, scheduled.draft))
    for name, count, schedule in parts:
        for layer in schedule.layers:
            counts = layer.count, layer.dependent_operations, len(layer.bursts)
            row(layer.name, counts, budget(layer.budget, schedule.clock_hz), 3)
        row(name, (count, "", ""), budget(schedule.budget), 1)
    blank = [""] * (2 + len(_LINES))
    for part in elsewhere:
        table.add_row(part.name, str(part.times), *blank, f"{part.seconds * 1e6:,.1f}")
    if elsewhere:
        name = "step with drafts" if scheduled.draft is not None else "whole step"
        table.add_row(name, "1", *blank, f"{scheduled.seconds * 1e6:,.1f}")
    console.print(table, highlight=False)


def _print_ablation(scheduled: ScheduledDeployment, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("LPUs", justify="right")
    for options in scheduled.ablation[0].speeds:
        added = " + arbitration" if options.first_bit_s else ""
        table.add_column(f"{'' if options.overlap else 'no '}overlap{added}", justify="right")
    table.add_column("operation time", justify="right")
    table.add_column("", no_wrap=True)
    best = {options: scheduled.fastest(options) for options in scheduled.ablation[0].speeds}
    for row in scheduled.ablation:
        shown = [
            f"{speed:,.0f}{'*' if best[options] is row else ' '}" for options, speed in row.speeds.items()
        ]
        time = row.operation_time
        fitted = f" of {time.lpus}" if time.lpus is not None else ""
        table.add_row(
            str(row.lpus), *shown, f"{time.quantity.value * 1e6:.3f} us{fitted}", _held(scheduled, row)
        )
    console.print(table, highlight=False)


def _held(scheduled: ScheduledDeployment, row: AblationRow) -> str:
    if not row.holds_weights:
        return "SRAM too small for the weights"
    if row.streams is not None and row.streams < scheduled.batch:
        return f"holds {row.streams} of {scheduled.batch} streams"
    return ""


def _content(scheduled: ScheduledDeployment) -> dict[str, Any]:
    def schedule(one: StepSchedule) -> dict[str, Any]:
        return {
            "seconds": one.seconds,
            "cycles": one.cycles,
            "budget_s": one.budget._asdict(),
            "layers": [
                {
                    "name": layer.name,
                    "count": layer.count,
                    "cycles": layer.cycles,
                    "operations": layer.dependent_operations,
                    "exchanges": len(layer.bursts),
                    "budget_cycles": layer.budget._asdict(),
                }
                for layer in one.layers
            ],
        }

    return {
        "deployment": scheduled.deployment.name,
        "spec_sha256": scheduled.deployment.spec_sha256,
        "lpus": scheduled.group.chips,
        "batch": scheduled.batch,
        "context_tokens": scheduled.context_tokens,
        "draft_tokens": scheduled.draft_tokens,
        "overlap": scheduled.options.overlap,
        "first_bit_s": scheduled.options.first_bit_s,
        "clock_hz": scheduled.group.clock_hz,
        "seconds": scheduled.seconds,
        "step": schedule(scheduled.step),
        "draft": schedule(scheduled.draft) if scheduled.draft is not None else None,
        "elsewhere_s": {part.name: part.seconds for part in scheduled.elsewhere},
        "plain_tokens_per_s": scheduled.plain_tokens_per_s,
        "acceptance_length": scheduled.acceptance_length,
        "tokens_per_s": scheduled.tokens_per_s,
        "streams_that_fit": scheduled.streams_that_fit(),
        "holds_batch": scheduled.holds_batch,
        "ablation": [
            {
                "lpus": row.lpus,
                "overlap": options.overlap,
                "first_bit_s": options.first_bit_s,
                "tokens_per_s": speed,
                "operation_time_s": row.operation_time.quantity.value,
                "operation_time_fitted_to": row.operation_time.lpus,
                "holds_weights": row.holds_weights,
                "streams_that_fit": row.streams,
                "fastest": scheduled.fastest(options) is row,
            }
            for row in scheduled.ablation
            for options, speed in row.speeds.items()
        ],
        "stops_paying": stops_paying(scheduled),
        "conditions": conditions(scheduled),
    }


def _draw(scheduled: ScheduledDeployment, out: Path) -> None:
    from agentload_simbackend import GanttDrawing, gantt_html, gantt_svg
    from agentload_traces import printable, write_whole

    layers = [*scheduled.step.layers, *(scheduled.draft.layers if scheduled.draft is not None else ())]
    said = [printable(sentence) for sentence in conditions(scheduled)]
    drawing = GanttDrawing(printable(title(scheduled)), said, layers, scheduled.group.clock_hz)
    text = gantt_html(drawing) if out.suffix == ".html" else gantt_svg(drawing)
    write_whole(out, text.encode())
