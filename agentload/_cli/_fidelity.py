"""`agentload fidelity`: every published number beside the simulated one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentload._cli._console import echo_json, report_console

if TYPE_CHECKING:
    from rich.console import Console

    from agentload_simbackend import Fidelity, FidelityRow, GpuErrors


@click.command(short_help="Compare the simulator with every published number.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--prompts",
    type=click.IntRange(100, 1_000_000),
    help="Prompts drawn for each median of a speed.  [default: as many as make its scatter less than 0.5 %]",
)
@click.option(
    "--gpu-rows",
    "gpu_file",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Measured rows of your own, in the format of AIConfigurator's silicon_sample.csv.",
)
def command(as_json: bool, prompts: int | None, gpu_file: Path | None) -> None:
    """Compare the simulator with every published number: fitted or predicted, error, conditions, source.

    The simulator is calibrated, not validated: few numbers are published, and most of them were needed to fit
    it. The exit code is 1 if a pinned figure is off by more than its tolerance.

    \b
    Example:
      agentload fidelity
      agentload fidelity --json | jq '.rows[] | select(.tolerance)'
      agentload fidelity --gpu-rows silicon_sample.csv
    """
    from agentload_simbackend import fidelity

    found = fidelity(gpu_file=gpu_file) if prompts is None else fidelity(prompts, gpu_file)
    if as_json:
        echo_json(found)
    else:
        _print(found, report_console())
    if found.drifted:
        click.echo(f"drifted: {'; '.join(found.drifted)}", err=True)
        sys.exit(1)


def _print(found: Fidelity, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("published figure")
    table.add_column("unit", no_wrap=True)
    for column in ("published", "simulated", "error", "pinned"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("note", justify="right", no_wrap=True)
    notes: dict[str, int] = {}
    sources: dict[str, int] = {}
    for row in found.rows:
        source = sources.setdefault(row.source, len(sources) + 1)
        note = notes.setdefault(f"{row.conditions}{_scatter(row)} [{source}]", len(notes) + 1)
        pinned = "" if row.tolerance is None else _error(row.tolerance, row, sign="")
        table.add_row(
            Text(row.name),
            "" if row.error_kind != "relative" else row.unit,
            _value(row.published, row),
            _value(row.simulated, row),
            _error(row.error, row, sign="+"),
            f"{pinned} !" if row.drifted else pinned,
            row.kind,
            str(note),
        )
    console.print(table, highlight=False)
    console.print(
        "\nfitted: a parameter was chosen so that this comes out. predicted: none was. "
        "paper: the figure is worked out too, so it checks the arithmetic only.",
        highlight=False,
    )
    _print_gpu(found, console)
    console.print("\nFitted parameters", highlight=False)
    for part in found.parameters:
        console.print(
            f"- {part.part}: {part.fitted} for {part.targets:,} targets: {part.what}.",
            highlight=False,
            markup=False,
        )
    console.print("\nNot known", highlight=False)
    for text in found.unknown:
        console.print(f"- {text}", highlight=False, markup=False)
    console.print("\nNotes", highlight=False)
    for text, mark in notes.items():
        console.print(f"{mark}. {text}", highlight=False, markup=False)
    console.print("\nSources", highlight=False)
    for text, mark in sources.items():
        click.echo(f"[{mark}] {text}")


def _print_gpu(found: Fidelity, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    gpu = found.gpu
    console.print(
        f"\nMeasured GPU rows ({gpu.file}, {gpu.rows:,} rows): median and p90 of the absolute error"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    table.add_column("system", no_wrap=True)
    for column in ("rows", "TPOT", "TTFT"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("of", no_wrap=True)
    parts: list[tuple[str, str, GpuErrors | None, str]] = [
        ("all", "all", gpu.not_fitted_on, "not fitted on"),
        ("all", "all", gpu.model_left_out, "model left out of the fit"),
        ("all", "all", gpu.fitted_on, "fitted on"),
        ("all", "all", gpu.disaggregated, "disaggregated"),
    ]
    for group in gpu.by_model_and_system:
        parts.append((group.model, group.system, group.not_fitted_on, "not fitted on"))
        parts.append((group.model, group.system, group.model_left_out, "model left out of the fit"))
        parts.append((group.model, group.system, group.fitted_on, "fitted on"))
    for model, system, errors, of in parts:
        if errors is not None and errors.rows:
            tpot = _pair(errors.tpot_median, errors.tpot_p90)
            ttft = _pair(errors.ttft_median, errors.ttft_p90)
            table.add_row(Text(model), Text(system), str(errors.rows), tpot, ttft, of)
    console.print(table, highlight=False)
    for system_fit in gpu.systems:
        fitted = f"fitted on {system_fit.fitted_rows}" if system_fit.fitted_rows else "nothing fitted"
        console.print(f"- {system_fit.system}: {system_fit.rows} rows predicted, {fitted}", highlight=False)
    if gpu.pinned:
        console.print("\nPinned medians", highlight=False)
    for pin in gpu.pinned:
        console.print(
            f"- {pin.name}: TPOT {pin.tpot_median:.1%}, at most {pin.tpot_limit:.1%}; "
            f"TTFT {pin.ttft_median:.1%}, at most {pin.ttft_limit:.1%}{' !' if pin.drifted else ''}",
            highlight=False,
        )
    if gpu.left_out:
        console.print("\nRows without a prediction", highlight=False)
        for reason, rows in gpu.left_out.items():
            console.print(f"- {rows:,}: {reason}", highlight=False, markup=False)


def _pair(median: float | None, p90: float | None) -> str:
    if median is None or p90 is None:
        return "-"
    return f"{median:.1%} / {p90:.0%}"


def _value(value: float, row: FidelityRow) -> str:
    if row.error_kind == "points":
        return f"{value:+.1%}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _error(value: float, row: FidelityRow, sign: str) -> str:
    if row.error_kind == "count":
        return f"{value:{sign}.0f}"
    if row.error_kind == "points":
        return f"{value * 100:{sign}.1f} pts"
    return f"{value:{sign}.1%}"


def _scatter(row: FidelityRow) -> str:
    if row.simulated_scatter is None or row.published_scatter is None:
        return ""
    return f"; scatter: simulated {row.simulated_scatter:.2%}, published {row.published_scatter:.1%}"
