"""`agentload backends`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._console import report_console

if TYPE_CHECKING:
    from agentload_simbackend import Deployment


@click.command(short_help="List the simulated deployments and what their numbers rest on.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the simulated deployments, or show all numbers of one.

    NAME is a deployment from the list or the path of a TOML file. Each number is shown with its unit, its
    source and its kind: fact, vendor_claim, estimate or fitted. A derived number has the weakest kind of
    those that it rests on.

    \b
    Example:
      agentload backends
      agentload backends gemma4-31b/pd
      agentload backends --json my_deployment.toml
    """
    from agentload_simbackend import list_deployments, load_deployment

    if name is None:
        deployments = [load_deployment(known) for known in list_deployments()]
        if as_json:
            click.echo(json.dumps([_head(deployment) for deployment in deployments], indent=2))
        else:
            _print_list(deployments)
        return
    deployment = load_deployment(name)
    if as_json:
        click.echo(json.dumps(_all(deployment), indent=2))
    else:
        _print_one(deployment)


def _head(deployment: Deployment) -> dict[str, Any]:
    return {
        "name": deployment.name,
        "mode": deployment.mode,
        "summary": deployment.summary,
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


def _print_list(deployments: list[Deployment]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("deployment", "mode", "what it is"):
        table.add_column(column)
    for deployment in deployments:
        table.add_row(deployment.name, deployment.mode, deployment.summary)
    report_console().print(table)


def _print_one(deployment: Deployment) -> None:
    from rich.table import Table
    from rich.text import Text

    from agentload_simbackend import derived_figures, shown_number

    console = report_console()
    console.print(f"{deployment.name} (mode {deployment.mode}): {deployment.summary}", highlight=False)
    console.print(f"spec_sha256 {deployment.spec_sha256}\n", highlight=False)
    derived = Table(box=None, pad_edge=False)
    derived.add_column("derived")
    derived.add_column("value", justify="right")
    derived.add_column("weakest kind")
    for figure in derived_figures(deployment):
        derived.add_row(figure.name, shown_number(figure.value, figure.unit), figure.kind)
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
        numbers.add_row(path, value, quantity.kind, Text(text))
    console.print(numbers, highlight=False)
    console.print("\nSources", highlight=False)
    for source, mark in sources.items():
        click.echo(f"[{mark}] {source}")
    console.print("\nConditions", highlight=False)
    for sentence in deployment.conditions():
        console.print(f"- {sentence}", highlight=False, markup=False)
