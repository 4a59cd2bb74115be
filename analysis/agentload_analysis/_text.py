"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentload_analysis._printable import printable
from agentload_analysis._printed import PrintedTable, printed_tables
from agentload_analysis._summary import Summary
from agentload_analysis._words import BASIS_TITLE, alarming, basis, conditions, headline, notes


def render_text(summary: Summary, console: Console) -> None:
    """Print a summary: headline and its conditions, the tables, how to read them, what they rest on."""
    for line in headline(summary):
        console.print(_literal(line), style="bold red" if alarming(line) else "bold")
    first, *others = conditions(summary)
    console.print(_literal(f"Conditions: {first}"))
    for line in others:
        console.print(_literal(f"  - {line}"))
    for table in printed_tables(summary):
        console.print(f"\n{table.title}", style="bold", highlight=False)
        console.print(_rich_table(table), highlight=False)
    console.print()
    for line in notes(summary):
        console.print(_literal(line), style="dim")
    if basis(summary):
        console.print(f"\n{BASIS_TITLE}", style="bold", highlight=False)
    for line in basis(summary):
        console.print(_literal(f"  - {line}"))


def _literal(text: str) -> Text:
    """Text of any origin; brackets and colons in it are no markup and no emoji."""
    return Text(printable(text))


def _rich_table(table: PrintedTable) -> Table:
    rich_table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
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
        rich_table.add_row(*(_literal(cell) for cell in row), style="bold" if summing else None)
    return rich_table
