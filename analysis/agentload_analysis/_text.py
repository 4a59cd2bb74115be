"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentload_analysis._printed import PrintedTable, printed_tables
from agentload_analysis._summary import Summary
from agentload_analysis._words import conditions, headline, notes


def render_text(summary: Summary, console: Console) -> None:
    """Print a summary: headline and conditions in words, then the tables, then how to read them."""
    for line in headline(summary):
        alarming = line.startswith("INCOMPLETE") or " failed, " in line
        console.print(escape(line), style="bold red" if alarming else "bold", highlight=False)
    first, *others = conditions(summary)
    console.print(f"Conditions: {escape(first)}", highlight=False)
    for line in others:
        console.print(f"  - {escape(line)}", highlight=False)
    for table in printed_tables(summary):
        console.print()
        console.print(_rich_table(table), highlight=False)
    console.print()
    for line in notes(summary):
        console.print(escape(line), style="dim", highlight=False)


def _rich_table(table: PrintedTable) -> Table:
    rich_table = Table(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    shown_group = ""
    grouped = any(column.group for column in table.columns)
    for column in table.columns:
        above = column.group if column.group != shown_group else ""
        shown_group = column.group
        header = f"{above}\n{column.name}" if grouped else column.name
        rich_table.add_column(
            header, justify="left" if column.text else "right", no_wrap=not grouped or not above
        )
    for number, row in enumerate(table.rows):
        summing = number >= len(table.rows) - table.total_rows
        rich_table.add_row(*(escape(cell) for cell in row), style="bold" if summing else None)
    return rich_table
