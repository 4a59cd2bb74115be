"""The report as one HTML file that works offline: words, plots, tables."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from importlib.resources import files
from itertools import groupby
from pathlib import Path

import vl_convert

from agentload_analysis._chart import Chart
from agentload_analysis._charts import PART_COLOURS, charts
from agentload_analysis._printed import printed_tables
from agentload_analysis._printed_table import PrintedTable
from agentload_analysis._snapshot import Run, readable_rows, take_snapshot
from agentload_analysis._summary import Summary, summarise
from agentload_analysis._words import BASIS_TITLE, PART_NAMES, alarming, basis, conditions, headline, notes
from agentload_traces import printable, write_whole

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of the page: the browser itself keeps it from loading anything."""


def write_html(run: Run, out_path: str | os.PathLike[str], summary: Summary | None = None) -> Path:
    """Write the report of a run to `out_path` (by rename) and return it.

    run: a run directory, or a snapshot of one. summary: of this run, if the caller has it already; for a run
    that goes on, give the snapshot that the summary was made from. Raises `RunDirectoryError` for a run that
    cannot be read and `AgentloadError` for a file that cannot be written or is no regular file.
    """
    snapshot = take_snapshot(run)
    if summary is None:
        summary = summarise(snapshot)
    with readable_rows(snapshot.path):
        plots = charts(summary, snapshot.requests)
    out = Path(out_path)
    write_whole(out, _page(summary, plots).encode())
    return out


def _page(summary: Summary, plots: list[Chart]) -> str:
    body = [
        "<h1>What the session took</h1>" if summary["sessions"] == 1 else "<h1>What the sessions took</h1>",
        f'<p class="run">{_shown(summary["run"])}</p>',
        *(_sentence(line) for line in headline(summary)),
        _split_bar(summary),
        _list("conditions", "These numbers hold for:", conditions(summary)),
        *(_plot(plot) for plot in plots),
        *(_table(table) for table in printed_tables(summary)),
        _list("notes", "How to read the numbers:", notes(summary)),
        _list("notes", f"{BASIS_TITLE}:", basis(summary)),
    ]
    return _document(summary["target"], body, plots)


def _document(title: str, body: Iterable[str], plots: Iterable[Chart]) -> str:
    """The parts of `body` as a page that holds all it needs; the parts hold the places of `plots`."""
    # "</" would end the script element early, whatever a session calls itself.
    specs = json.dumps({plot.name: plot.spec for plot in plots}, separators=(",", ":")).replace("</", "<\\/")
    parts = [
        "<!doctype html>",
        f"<!--\n{_resource('report_licences.txt')}-->",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>agentload: {_shown(title)}</title>",
        f"<style>{_resource('report.css')}</style></head><body><main>",
        *body,
        "</main>",
        f'<script type="application/json" id="specs">{specs}</script>',
        f"<script>{_javascript()}</script>",
        f"<script>{_resource('report.js')}</script></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _resource(name: str) -> str:
    return files("agentload_analysis").joinpath(name).read_text(encoding="utf-8")


def _javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed, about 0.9 MB."""
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    return bundle


def _shown(text: str) -> str:
    """Text of any origin as the page may hold it."""
    return html.escape(printable(text))


def _sentence(line: str) -> str:
    alarm = " alarm" if alarming(line) else ""
    return f'<p class="headline{alarm}">{_shown(line)}</p>'


def _split_bar(summary: Summary) -> str:
    shares = {part: values["share"] for part, values in summary["session_split_s"].items()}
    present = {part: share for part, share in shares.items() if share and share > 0}
    if not present:
        return ""
    bars = "".join(
        f'<span style="width:{share:.3%};background:{PART_COLOURS[part]}"></span>'
        for part, share in present.items()
    )
    words = {part: f"{PART_NAMES[part]} {share:.1%}" for part, share in present.items()}
    return f'<div class="split" aria-hidden="true">{bars}</div>{_legend(words)}'


def _legend(words: dict[str, str]) -> str:
    items = (
        f'<li><i style="background:{PART_COLOURS[part]}"></i>{_shown(text)}</li>'
        for part, text in words.items()
    )
    return f'<ul class="parts">{"".join(items)}</ul>'


def _list(name: str, title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{_shown(line)}</li>" for line in lines)
    return f'<div class="{name}"><p>{_shown(title)}</p><ul>{items}</ul></div>'


def _plot(plot: Chart) -> str:
    legend = _legend({part: PART_NAMES[part] for part in plot.parts}) if plot.parts else ""
    return (
        f'<section><h2>{_shown(plot.title)}</h2><p class="caption">{_shown(plot.caption)}</p>{legend}'
        f'<div class="plot" id="plot-{plot.name}"></div></section>'
    )


def _table(table: PrintedTable) -> str:
    starts = {
        number
        for number, column in enumerate(table.columns)
        if column.group and column.group != table.columns[number - 1].group
    }
    classes = [
        "text" if column.text else "start" if number in starts else ""
        for number, column in enumerate(table.columns)
    ]
    groups = ""
    if starts:
        cells = (
            f'<th class="group start" colspan="{len(list(columns))}">{_shown(group)}</th>'
            if group
            else f'<th colspan="{len(list(columns))}"></th>'
            for group, columns in groupby(table.columns, key=lambda column: column.group)
        )
        groups = f"<tr>{''.join(cells)}</tr>"
    names = "".join(
        f'<th scope="col" class="{css}">{_shown(column.name)}</th>'
        for column, css in zip(table.columns, classes, strict=True)
    )
    rows = []
    for number, row in enumerate(table.rows):
        summing = ' class="sum"' if number >= len(table.rows) - table.total_rows else ""
        cells_of_row = "".join(
            f'<td class="{css}">{_shown(cell)}</td>' for cell, css in zip(row, classes, strict=True)
        )
        rows.append(f"<tr{summing}>{cells_of_row}</tr>")
    return (
        f'<section><h2>{_shown(table.title)}</h2><div class="wide" tabindex="0"><table>'
        f"<thead>{groups}<tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )
