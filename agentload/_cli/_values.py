"""Values that options take, where click's own types let too much through."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from agentload_traces import printable

SEED = click.IntRange(0, 2**63 - 1)
"""What a run's manifest and every draw can hold."""


COUNT = click.IntRange(1, 10**9)
"""How many of something there are to be; no run has more."""


class NumberRange(click.FloatRange):
    """A range that does not let NaN through, which compares as neither too small nor too large."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class NamedPath(click.Path):
    """Refuses an empty name, which a `Path` takes for the directory at hand."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(f"names no {self.name}", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(NamedPath):
    """A file to be written at the end: that it cannot be is told before anything is computed."""

    def __init__(self, *endings: str) -> None:
        super().__init__(path_type=Path, dir_okay=False)
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path: Path = super().convert(value, param, ctx)
        if self._endings and path.suffix.lower() not in self._endings:
            self.fail(f"{printable(path)} must end in {' or '.join(self._endings)}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"there is no directory {printable(path.parent)}", param, ctx)
        if not os.access(path.parent, os.W_OK):
            self.fail(f"the directory {printable(path.parent)} cannot be written to", param, ctx)
        return path
