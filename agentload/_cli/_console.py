"""Standard output: a terminal, a pipe, a file, in any encoding, or closed."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agentload_traces._errors import AgentloadError

if TYPE_CHECKING:
    from rich.console import Console

_NON_TERMINAL_COLUMNS = 120


def report_console() -> Console:
    r"""As wide as the terminal; a pipe or file gets a fixed width, so that its content is always the same.

    From here on stdout shows what its encoding lacks as `\u4e2d`. Where it is closed, nothing is printed.
    """
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console(width=None if terminal else _NON_TERMINAL_COLUMNS)


def echo_json(value: Any) -> None:
    """Print JSON in ASCII: every encoding has it, and no character in it steers a terminal."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    click.echo(re.sub(r"[^\n -~]", lambda found: json.dumps(found[0])[1:-1], text))


@contextmanager
def printing() -> Iterator[None]:
    """Turn a full disk under stdout into one line; a reader that went away is left to click."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # type: ignore[assignment]  # or Python would try to flush it once more at its end
        raise AgentloadError(f"standard output: cannot be written: {error.strerror or error}") from None
