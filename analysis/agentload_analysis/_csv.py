"""The tables of a summary as CSV files."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

from agentload_analysis._summary import Summary
from agentload_traces import cannot_write, write_whole

TABLES = ("per_session", "per_turn", "per_context")


def write_csv(summary: Summary, directory: str | os.PathLike[str]) -> list[Path]:
    """Write per_session.csv, per_turn.csv and per_context.csv, each by rename; returns their paths.

    The columns are those of the summary's rows; an unknown value is an empty cell. The directory is made if
    need be; `AgentloadError` if it or a file cannot be written, or what is there is no regular file.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(Path(directory), error) from None
    paths = []
    for table in TABLES:
        path = Path(directory) / f"{table}.csv"
        rows = pl.DataFrame(summary[table], infer_schema_length=None)
        write_whole(path, rows.write_csv().encode())
        paths.append(path)
    return paths
