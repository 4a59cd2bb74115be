"""A run as it stands on disk at one moment, so that all numbers of a report are of the same rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from agentload_analysis._metrics import turns_only
from agentload_analysis._tool_queue import tool_queue
from agentload_traces import Manifest, RunDirectoryError, RunReader, printable


@dataclass(frozen=True)
class Snapshot:
    """What `take_snapshot` read.

    requests: one row a turn; of a run that goes on, a copy in memory of the rows that were on disk.
    attempts: one row each time that a turn was sent or skipped: `requests`, and those that were followed by
    another attempt. client: what the replayer saw of itself.
    tool_calls: how many there are, those of all `requests` among them. tool_queue: of these, see there.
    """

    path: Path
    manifest: Manifest
    incomplete: bool
    torn_lines: int
    requests: pl.LazyFrame
    attempts: pl.LazyFrame
    client: pl.LazyFrame
    tool_calls: int
    tool_queue: dict[str, Any]


Run = str | os.PathLike[str] | Snapshot
"""A run directory, to be read now, or what was read of it before."""


def take_snapshot(run: Run) -> Snapshot:
    """Read a run directory, finished or not, once; a snapshot is given back as it is.

    Raises `RunDirectoryError` if it is missing, foreign, or has rows that cannot be read.
    """
    if isinstance(run, Snapshot):
        return run
    with readable_rows(Path(run)):
        reader = RunReader(run)
        incomplete, torn_lines = reader.incomplete, reader.torn_lines
        attempts = reader.requests()
        # After the requests: whoever writes puts a tool call on disk before the turn that waited for it.
        tool_calls = reader.tool_calls()
        count = int(tool_calls.select(pl.len()).collect().item())
        waits = tool_queue(tool_calls)
        client = reader.client()
    return Snapshot(
        path=reader.path,
        manifest=reader.manifest,
        incomplete=incomplete,
        torn_lines=torn_lines,
        requests=turns_only(attempts),
        attempts=attempts,
        client=client,
        tool_calls=count,
        tool_queue=waits,
    )


@contextmanager
def readable_rows(path: Path) -> Iterator[None]:
    """Turn complaints about damaged, vanished or forbidden files into one line that names the run."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunDirectoryError(
            f"{printable(path)}: its rows cannot be read: {printable(first_line)}"
        ) from None
    except OSError as error:
        raise RunDirectoryError(
            f"{printable(path)}: cannot be read: {printable(error.strerror or error)}"
        ) from None
