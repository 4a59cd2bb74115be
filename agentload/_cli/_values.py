"""Values that options take, where click's own types let too much through."""

from __future__ import annotations

from typing import Any

import click

SEED = click.IntRange(0, 2**63 - 1)
"""What a run's manifest and every draw can hold."""


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
