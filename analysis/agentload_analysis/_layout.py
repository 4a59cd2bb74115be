"""Tables as lines of text, no line longer than the terminal is wide and no cell cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.cells import cell_len

from agentload_analysis._printed_table import PrintedTable

_GAP = 2
_GROUP_GAP = 3


class Line(NamedTuple):
    """One line of a table; `strong` for headings and sums."""

    text: str
    strong: bool = False


class _Unit(NamedTuple):
    """Columns that stay together, by number; `group` stands over them, `gap` is the space before them."""

    group: str
    columns: tuple[int, ...]
    width: int
    gap: int


def table_lines(table: PrintedTable, width: int) -> Iterator[Line]:
    """The lines of a table on `width` columns.

    Groups of columns for which there is no room go below the others, each time with the first column
    repeated. Only a single column that is too wide beside the first one makes a line longer than `width`.
    """
    widths = [
        max(map(cell_len, (column.name, *(row[number] for row in table.rows))))
        for number, column in enumerate(table.columns)
    ]
    for number, block in enumerate(_blocks(table, widths, width)):
        if number:
            yield Line("")
        yield from _block_lines(table, widths, block)


def _blocks(table: PrintedTable, widths: Sequence[int], width: int) -> Iterator[list[_Unit]]:
    room = width - widths[0]
    block: list[_Unit] = []
    left = room
    for unit in _units(table, widths, room):
        if block and unit.width + unit.gap > left:
            yield block
            block, left = [], room
        block.append(unit)
        left -= unit.width + unit.gap
    yield block


def _units(table: PrintedTable, widths: Sequence[int], room: int) -> Iterator[_Unit]:
    numbers = range(1, len(table.columns))
    # A column without a group is one of its own.
    for _, found in groupby(numbers, key=lambda number: table.columns[number].group or number):
        columns = tuple(found)
        group = table.columns[columns[0]].group
        unit = _unit(group, columns, widths)
        if unit.width + unit.gap <= room:
            yield unit
        else:
            yield from (_unit(group, (column,), widths) for column in columns)


def _unit(group: str, columns: tuple[int, ...], widths: Sequence[int]) -> _Unit:
    width = sum(widths[column] for column in columns) + _GAP * (len(columns) - 1)
    return _Unit(group, columns, max(width, cell_len(group)), _GROUP_GAP if group else _GAP)


def _block_lines(table: PrintedTable, widths: Sequence[int], block: list[_Unit]) -> Iterator[Line]:
    gap = " " * _GAP

    def line(cells: Sequence[str]) -> str:
        parts = [_padded(cells[0], widths[0])]
        for unit in block:
            columns = gap.join(_padded(cells[column], widths[column], right=True) for column in unit.columns)
            parts.append(" " * unit.gap + _padded(columns, unit.width, right=True))
        return "".join(parts).rstrip()

    if any(unit.group for unit in block):
        groups = (" " * unit.gap + _padded(unit.group, unit.width) for unit in block)
        yield Line((" " * widths[0] + "".join(groups)).rstrip(), strong=True)
    yield Line(line([column.name for column in table.columns]), strong=True)
    for number, row in enumerate(table.rows):
        yield Line(line(row), strong=number >= len(table.rows) - table.total_rows)


def _padded(text: str, width: int, *, right: bool = False) -> str:
    """Characters of some scripts take two places, so `str.ljust` would not do."""
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
