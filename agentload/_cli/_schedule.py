"""`agentload schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import echo_json, report_console

if TYPE_CHECKING:
    from rich.console import Console

    from agentload_simbackend._schedule import Budget, StepSchedule
    from agentload_simbackend._schedule_view import ScheduledDeployment

_LINES = ("c2c", "on_chip", "weights", "attention", "head", "host")
_FIRST_BIT_S = 4e-6  # FIRST_BIT_S of the simulator, which need not be imported for help


@click.command(short_help="Show the static schedule of a decode step on a group of LPUs.")
@click.argument("model")
@click.option("--lpus", type=click.IntRange(1), help="LPUs of the tensor-parallel group [the deployment's].")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Streams that decode.")
@click.option("--context", type=click.IntRange(0), help="Tokens of context of each stream [10000].")
@click.option(
    "--draft-tokens",
    type=click.IntRange(0, 64),
    metavar="K",
    help="Draft tokens of a step, which verifies K + 1 [the deployment's].",
)
@click.option("--no-overlap", is_flag=True, help="Send results only when the whole operation is done.")
@click.option(
    "--arbitrate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    is_flag=False,
    flag_value=_FIRST_BIT_S,
    metavar="[SECONDS]",
    help=f"Add a first-bit latency to each exchange, as arbitration on a GPU fabric does [{_FIRST_BIT_S:g}].",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
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
    each kind of layer and of the step, the speed of one stream, and a table of what overlap and the absence
    of arbitration are worth on groups of 8 to 256 LPUs.

    \b
    Example:
      agentload schedule gemma-4-31b --lpus 256
      agentload schedule gpt-oss-120b --batch 8 --context 100000 --out layer.html
      agentload schedule gemma4-31b/pd --no-overlap --arbitrate 4e-6
    """
    from agentload_simbackend._schedule import ScheduleOptions
    from agentload_simbackend._schedule_view import ScheduledDeployment, deployment_to_schedule
    from agentload_traces import AgentloadError, printable

    if out is not None and out.suffix not in (".svg", ".html"):
        raise AgentloadError(f"--out {printable(out)}: the name must end in .svg or .html")
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


def _title(scheduled: ScheduledDeployment) -> str:
    streams = "1 stream" if scheduled.batch == 1 else f"{scheduled.batch} streams"
    return (
        f"{scheduled.deployment.model.name}: a decode step on {scheduled.group.chips} LPUs, {streams} of "
        f"{scheduled.context_tokens:,} tokens, {scheduled.draft_tokens + 1} verified per stream"
    )


def _conditions(scheduled: ScheduledDeployment) -> list[str]:
    """What the numbers hold for, in sentences."""
    from agentload_simbackend import shown_number

    words: dict[str, list[str]] = {"fitted": [], "estimate": []}
    for path, quantity in scheduled.numbers():
        name = path.removeprefix("decode.").removeprefix("chip.").replace(".", " ").replace("_", " ")
        if quantity.kind in words:
            words[quantity.kind].append(f"{name} {shown_number(quantity.value, quantity.unit)}")
    sentences = [f"Built for {scheduled.deployment.name}; not run on any machine."]
    if scheduled.deployment.mode == "afd":
        sentences.append("Without the attention over the context, which runs on the GPUs, and its crossings.")
    if not scheduled.options.overlap:
        sentences.append("Without overlap: results leave when the whole operation is done.")
    if scheduled.options.first_bit_s:
        sentences.append(f"With arbitration: {scheduled.options.first_bit_s * 1e6:g} us more per exchange.")
    weights, kv = scheduled.weights_bytes, scheduled.kv_cache_bytes
    if not scheduled.fits(scheduled.group.chips, weights + kv):
        sentences.append(
            f"The SRAM of {scheduled.group.chips} LPUs does not hold the weights ({weights / 1e9:,.1f} GB) "
            f"and the KV cache ({kv / 1e9:,.1f} GB)."
        )
    if scheduled.fitted_lpus not in (None, scheduled.group.chips):
        sentences.append(f"The operation time was fitted to groups of {scheduled.fitted_lpus} LPUs.")
    if scheduled.draft_tokens and scheduled.draft is None:
        sentences.append("No drafter is known for this model: drafts cost nothing here.")
    if words["fitted"]:
        sentences.append(f"Fitted to published results: {', '.join(words['fitted'])}.")
    if words["estimate"]:
        sentences.append(f"Estimates: {', '.join(words['estimate'])}.")
    return sentences


def _print(scheduled: ScheduledDeployment) -> None:
    from agentload_traces import printable

    console = report_console()
    console.print(f"{printable(_title(scheduled))}\n", highlight=False, markup=False)
    _print_budget(scheduled, console)
    console.print(f"\n{_speeds(scheduled)}\n", highlight=False, markup=False)
    _print_ablation(scheduled, console)
    console.print("\nConditions", highlight=False)
    for sentence in _conditions(scheduled):
        console.print(f"- {printable(sentence)}", highlight=False, markup=False)


def _print_budget(scheduled: ScheduledDeployment, console: Console) -> None:
    from rich.table import Table

    from agentload_simbackend._schedule import Budget

    table = Table(box=None, pad_edge=False)
    table.add_column("us", no_wrap=True)
    for column in ("count", "operations", "exchanges", *_LINES, "total"):
        table.add_column(column.replace("_", " "), justify="right", no_wrap=True)

    def row(name: str, counts: tuple[object, ...], budget: Budget, decimals: int) -> None:
        shown = [f"{seconds * 1e6:,.{decimals}f}" for seconds in (*budget, sum(budget))]
        table.add_row(name, *map(str, counts), *shown)

    parts: list[tuple[str, int, StepSchedule]] = [("step", 1, scheduled.step)]
    if scheduled.draft is not None:
        parts.append(("draft token", scheduled.draft_tokens, scheduled.draft))
    for name, count, schedule in parts:
        for layer in schedule.layers:
            seconds = Budget(*(cycles / schedule.clock_hz for cycles in layer.budget))
            row(layer.name, (layer.count, layer.dependent_operations, len(layer.bursts)), seconds, 3)
        row(name, (count, "", ""), schedule.budget, 1)
    console.print(table, highlight=False)


def _speeds(scheduled: ScheduledDeployment) -> str:
    text = f"One token a step, no drafts: {scheduled.plain_tokens_per_s:,.0f} tokens/s per stream."
    if not scheduled.draft_tokens:
        return text
    drafts = f"{scheduled.draft_tokens} drafts" if scheduled.draft_tokens > 1 else "1 draft"
    text += f"\nStep with {drafts}: {scheduled.seconds * 1e6:,.1f} us"
    if scheduled.tokens_per_s is None:
        return f"{text}; how many tokens it yields is not known for so many."
    speed = f"{scheduled.tokens_per_s:,.0f} tokens/s per stream"
    return f"{text}; at {scheduled.acceptance_length:g} tokens a step {speed}."


def _print_ablation(scheduled: ScheduledDeployment, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("LPUs", justify="right")
    rows = [(lpus, scheduled.ablation(lpus)) for lpus in scheduled.ablation_lpus()]
    for options in rows[0][1]:
        added = " + arbitration" if options.first_bit_s else ""
        table.add_column(f"{'' if options.overlap else 'no '}overlap{added}", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    best = [max(speeds[options] for _, speeds in rows) for options in rows[0][1]]
    for lpus, speeds in rows:
        shown = [
            f"{speed:,.0f}{'*' if speed == top else ' '}"
            for speed, top in zip(speeds.values(), best, strict=True)
        ]
        table.add_row(str(lpus), *shown, "" if scheduled.fits(lpus) else "SRAM too small for the weights")
    length = scheduled.acceptance_length
    yields = f"{length:g} tokens a step" if length and scheduled.draft_tokens else "one token a step"
    first_bit_s = max(options.first_bit_s for options in rows[0][1])
    console.print(
        f"Tokens/s per stream at {yields}, by size of the group (* the fastest); arbitration is "
        f"{first_bit_s * 1e6:g} us an exchange",
        highlight=False,
    )
    console.print(table, highlight=False)


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
        "plain_tokens_per_s": scheduled.plain_tokens_per_s,
        "acceptance_length": scheduled.acceptance_length,
        "tokens_per_s": scheduled.tokens_per_s,
        "ablation": [
            {
                "lpus": lpus,
                "overlap": options.overlap,
                "first_bit_s": options.first_bit_s,
                "tokens_per_s": speed,
                "holds_weights": scheduled.fits(lpus),
            }
            for lpus in scheduled.ablation_lpus()
            for options, speed in scheduled.ablation(lpus).items()
        ],
        "conditions": _conditions(scheduled),
    }


def _draw(scheduled: ScheduledDeployment, out: Path) -> None:
    from agentload_simbackend._gantt import Drawing, gantt_html, gantt_svg
    from agentload_traces import AgentloadError, printable, replacing_file

    layers = [*scheduled.step.layers, *(scheduled.draft.layers if scheduled.draft is not None else ())]
    conditions = [printable(sentence) for sentence in _conditions(scheduled)]
    drawing = Drawing(printable(_title(scheduled)), conditions, layers, scheduled.group.clock_hz)
    text = gantt_html(drawing) if out.suffix == ".html" else gantt_svg(drawing)
    try:
        with replacing_file(out) as file:
            file.write(text.encode())
    except OSError as error:
        raise AgentloadError(f"{printable(out)}: cannot be written: {error.strerror or error}") from None
