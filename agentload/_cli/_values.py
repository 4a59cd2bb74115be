"""Values that options take, where click's own types let too much through."""

from __future__ import annotations

from pathlib import Path
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


def named_file(context: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Callback that refuses an empty name, which a `Path` takes for the directory at hand."""
    if value is not None and not value.name:
        raise click.BadParameter("names no file", context, param)
    return value
