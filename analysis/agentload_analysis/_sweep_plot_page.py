"""A sweep's plots as one HTML file that works offline, or as one picture; its table on a terminal."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import altair as alt
import polars as pl
import vl_convert
from rich.console import Console
from rich.text import Text

from agentload_analysis._chart import Chart
from agentload_analysis._html import _document, _list, _plot, _shown, _table
from agentload_analysis._layout import table_lines
from agentload_analysis._sweep_plot import sweep_plots
from agentload_analysis._sweep_plot_words import (
    NOTES,
    Manifest,
    sweep_conditions,
    sweep_headline,
    sweep_problems,
    sweep_references,
    sweep_table,
    sweep_title,
)
from agentload_traces import AgentloadError, printable, write_whole

_PICTURE_WIDTH = 760
_PICTURE_COLUMNS = 170
"""Characters of a line of conditions above a picture."""


def write_sweep_html(table: pl.DataFrame, manifest: Manifest, out_path: str | os.PathLike[str]) -> Path:
    """Write the results of a sweep to `out_path` (by rename) as a page with plots, and return it.

    table, manifest: contents of `sweep.parquet` and `sweep.json`. Raises `AgentloadError` for a file that
    cannot be written.
    """
    out = Path(out_path)
    write_whole(out, _page(table, manifest).encode())
    return out


def write_sweep_plot(table: pl.DataFrame, manifest: Manifest, out_path: str | os.PathLike[str]) -> Path:
    """Write the plots as one picture, with title and conditions in it, to `out_path`, and return it.

    table, manifest: as above. Raises `AgentloadError` for a name that does not end in .svg or .png, a file
    that cannot be written, or a table without a point to plot.
    """
    out = Path(out_path)
    kind = out.suffix.lower()
    if kind not in (".svg", ".png"):
        raise AgentloadError(f"{printable(out)}: a plot's name ends in .svg or .png")
    spec = _picture(table, manifest)
    if kind == ".svg":
        write_whole(out, vl_convert.vegalite_to_svg(spec).encode())
    else:
        write_whole(out, vl_convert.vegalite_to_png(spec, scale=2.0))
    return out


def render_sweep(table: pl.DataFrame, manifest: Manifest, console: Console) -> None:
    """Print the results of a sweep: headline, conditions, table, what could not be run."""
    rows = table.to_dicts()
    console.print(Text(sweep_title(manifest)), style="bold")
    for line in sweep_headline(rows, manifest):
        console.print(Text(printable(line)), style="bold")
    for line in sweep_conditions(manifest, whole=False):
        console.print(Text(f"  - {printable(line)}"))
    console.print()
    for row in table_lines(sweep_table(rows, manifest), console.width):
        style = "bold" if row.strong else None
        console.print(Text(printable(row.text)), style=style, no_wrap=True, overflow="ignore", crop=False)
    console.print()
    for line in sweep_problems(rows):
        console.print(Text(printable(line)), style="bold red")
    for line in (*NOTES, *sweep_references(manifest)):
        console.print(Text(printable(line)), style="dim")


def _page(table: pl.DataFrame, manifest: Manifest) -> str:
    rows = table.to_dicts()
    plots = [Chart(*plot) for plot in sweep_plots(rows, manifest)]
    title = sweep_title(manifest)
    body = [
        f"<h1>{_shown(title)}</h1>",
        *(f'<p class="headline">{_shown(line)}</p>' for line in sweep_headline(rows, manifest)),
        *(f'<p class="headline alarm">{_shown(line)}</p>' for line in sweep_problems(rows)),
        _list("conditions", "These numbers hold for:", sweep_conditions(manifest, whole=False)),
        *(_plot(plot) for plot in plots),
        _table(sweep_table(rows, manifest)),
        _list("notes", "How to read the numbers:", [*NOTES, *sweep_references(manifest)]),
        _list("notes", "What these numbers rest on:", sweep_conditions(manifest, whole=True)),
    ]
    return _document(title, body, plots)


def _picture(table: pl.DataFrame, manifest: Manifest) -> str:
    rows = table.to_dicts()
    plots = sweep_plots(rows, manifest)
    if not plots:
        raise AgentloadError("there is nothing to plot: no point has an answered turn")
    words = [*sweep_conditions(manifest, whole=False), *sweep_references(manifest)]
    title = _picture_title(sweep_title(manifest), *words, offset=14, size=18)
    charts = [
        plot.chart.properties(
            width=_PICTURE_WIDTH, title=_picture_title(plot.title, plot.caption, offset=8, size=13)
        )
        for plot in plots
    ]
    with alt.data_transformers.enable("default", max_rows=None):
        spec: str = alt.vconcat(*charts, title=title).configure_view(stroke=None).to_json()
    return spec


def _picture_title(title: str, *words: str, offset: int, size: int) -> alt.TitleParams:
    lines = [part for line in words for part in textwrap.wrap(printable(line), _PICTURE_COLUMNS)]
    return alt.TitleParams(
        title, subtitle=lines, anchor="start", subtitleFontSize=10, offset=offset, fontSize=size
    )
