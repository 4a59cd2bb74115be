"""What reports are printed on: a terminal, a pipe, a file, or a closed stdout."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

_NON_TERMINAL_COLUMNS = 120


def report_console() -> Console:
    """As wide as the terminal; a pipe or file gets a fixed width, so that its content is always the same.

    Where stdout is closed, nothing is printed. A pipe that nobody reads any more is a `BrokenPipeError`.
    """
    from rich.console import Console

    class ReportConsole(Console):
        def on_broken_pipe(self) -> None:
            # Console's own ends the process with 1, which is a meaning of its own here.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    terminal = sys.stdout is not None and sys.stdout.isatty()
    return ReportConsole(width=None if terminal else _NON_TERMINAL_COLUMNS)


def echo_json(value: Any) -> None:
    """Print JSON in ASCII: every encoding has it, and no character in it steers a terminal."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    click.echo(re.sub(r"[^\n -~]", lambda found: json.dumps(found[0])[1:-1], text))
