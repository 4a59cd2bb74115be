"""A table as cells of text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column; `group` names the columns that belong together and stands above the first of them."""

    name: str
    group: str = ""
    text: bool = False


@dataclass(frozen=True)
class PrintedTable:
    """A titled table of text cells; `total_rows` rows at the end sum up the others."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    total_rows: int = 0
