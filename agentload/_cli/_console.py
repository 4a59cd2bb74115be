"""The console that reports are printed on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_NON_TERMINAL_COLUMNS = 120


def report_console() -> Console:
    """As wide as the terminal; a pipe or file gets a fixed width, so that its content is always the same."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _NON_TERMINAL_COLUMNS)
