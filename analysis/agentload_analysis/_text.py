"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agentload_analysis._layout import table_lines
from agentload_analysis._printed import printed_tables
from agentload_analysis._summary import Summary
from agentload_analysis._words import BASIS_TITLE, alarming, basis, conditions, headline, notes
from agentload_traces import printable


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
        for row in table_lines(table, console.width):
            style = "bold" if row.strong else None
            console.print(_literal(row.text), style=style, no_wrap=True, overflow="ignore", crop=False)
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
