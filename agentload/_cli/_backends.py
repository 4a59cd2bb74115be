"""`agentload backends`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import report_console
from agentload_traces import printable

if TYPE_CHECKING:
    from rich.text import Text

    from agentload_simbackend import Deployment


@click.command(short_help="List the simulated deployments and what their numbers rest on.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the simulated deployments, or show all numbers of one.

    NAME is a deployment from the list, MODEL/MODE for any model of the list and any of the modes rubin, lpx,
    pd, afd and drafter (sized by arithmetic), or the path of a TOML file. MODEL may be the path of a model's
    TOML file too. Each number is shown with its unit, its source and its kind: fact, vendor_claim, estimate
    or fitted. A derived number has the weakest kind of those that it rests on.

    \b
    Example:
      agentload backends
      agentload backends gemma4-31b/pd
      agentload backends deepseek-r1/afd
      agentload backends --json my_deployment.toml
    """
    from agentload_simbackend import list_deployments, load_deployment

    if name is not None:
        deployment = load_deployment(name)
        if as_json:
            click.echo(json.dumps(_all(deployment), indent=2))
        else:
            _print_one(deployment)
        return
    deployments = [load_deployment(known) for known in list_deployments()]
    sized = _sized()
    if as_json:
        click.echo(json.dumps([_head(deployment) for deployment in [*deployments, *sized]], indent=2))
    else:
        _print_list(deployments)
        _print_models(sized)


def _sized() -> list[Deployment]:
    """`MODEL/MODE` for all models and modes, without those that are written out."""
    from agentload_simbackend import MODES, list_deployments, list_models, load_deployment

    named = (load_deployment(f"{model}/{mode}") for model in list_models() for mode in MODES)
    written = set(list_deployments())
    return [deployment for deployment in named if deployment.name not in written]


def _head(deployment: Deployment) -> dict[str, Any]:
    return {
        "name": deployment.name,
        "mode": deployment.mode,
        "model": deployment.model.name,
        "summary": deployment.summary,
        "headline": deployment.headline(),
        "racks": dict(deployment.racks),
        "spec_sha256": deployment.spec_sha256,
    }


def _all(deployment: Deployment) -> dict[str, Any]:
    import msgspec

    from agentload_simbackend import derived_figures

    return {
        **_head(deployment),
        "conditions": deployment.conditions(),
        "derived": [msgspec.to_builtins(figure) for figure in derived_figures(deployment)],
        "numbers": [
            {"path": path, **msgspec.to_builtins(quantity)} for path, quantity in deployment.numbers()
        ],
    }


def _racks(deployment: Deployment) -> str:
    return " + ".join(f"{count} {name}" for name, count in deployment.racks)


def _print_list(deployments: list[Deployment]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("deployment", "mode", "what it is"):
        table.add_column(column)
    for deployment in deployments:
        table.add_row(*map(_text, (deployment.name, deployment.mode, deployment.summary)))
    report_console().print(table)


def _print_models(sized: list[Deployment]) -> None:
    """A row for each model: how many LPX racks, and in which groups, the modes take that decode there."""
    from itertools import groupby

    from rich.table import Table

    from agentload_simbackend import MODES

    console = report_console()
    console.print(
        f"\nMODEL/MODE, with MODE one of {', '.join(MODES)}, is any of these models, sized by arithmetic:\n",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for column in ("parameters", "active", "LPX racks: lpx, pd", "afd", "tokens a step"):
        table.add_column(column, justify="right")
    for model, group in groupby(sized, key=lambda deployment: deployment.name.rpartition("/")[0]):
        modes = {deployment.mode: deployment for deployment in group}
        shown = modes["pd"].model
        table.add_row(
            model,
            f"{shown.parameters.value / 1e9:,.1f} B",
            f"{shown.active_parameters.value / 1e9:,.1f} B",
            *(_lpx(modes[mode]) for mode in ("pd", "afd")),
            f"{modes['pd'].acceptance_length:.4g}",
        )
    console.print(table, highlight=False)
    console.print(
        "\nrubin takes one NVL72, drafter one NVL72 and one LPX rack. Tokens a step: mean acceptance length; "
        "1 without published speculation. gemma-4-31b/MODE is gemma4-31b/MODE above.",
        highlight=False,
    )


def _lpx(deployment: Deployment) -> str:
    decode = deployment.spec.decode
    return f"{deployment.racks[-1][1]} ({decode.replicas.whole} x TP{decode.chips_per_replica.whole})"


def _print_one(deployment: Deployment) -> None:
    from rich.table import Table

    from agentload_simbackend import derived_figures, shown_number

    console = report_console()
    console.print(_text(f"{deployment.name} (mode {deployment.mode}): {deployment.summary}"))
    console.print(_text(f"racks: {_racks(deployment)}"))
    console.print(_text(f"speeds hang on: {deployment.headline()}"))
    console.print(_text(f"spec_sha256 {deployment.spec_sha256}"), end="\n\n")
    derived = Table(box=None, pad_edge=False)
    derived.add_column("derived")
    derived.add_column("value", justify="right")
    derived.add_column("weakest kind")
    for figure in derived_figures(deployment):
        derived.add_row(_text(figure.name), shown_number(figure.value, figure.unit), figure.kind)
    console.print(derived)
    console.print()
    sources: dict[str, int] = {}
    numbers = Table(box=None, pad_edge=False)
    numbers.add_column("number", no_wrap=True)
    numbers.add_column("value", justify="right", no_wrap=True)
    numbers.add_column("kind", no_wrap=True)
    numbers.add_column("source and note")
    for path, quantity in deployment.numbers():
        mark = sources.setdefault(quantity.source, len(sources) + 1)
        text = f"[{mark}] {quantity.note or ''}"
        value = shown_number(quantity.value, quantity.unit)
        numbers.add_row(_text(path), value, quantity.kind, _text(text))
    console.print(numbers, highlight=False)
    console.print("\nSources", highlight=False)
    for source, mark in sources.items():
        click.echo(printable(f"[{mark}] {source}"))
    console.print("\nConditions", highlight=False)
    for sentence in deployment.conditions():
        console.print(_text(f"- {sentence}"))


def _text(text: str) -> Text:
    """Text of a file as it is there: no markup, and nothing that steers a terminal."""
    from rich.text import Text

    return Text(printable(text))
