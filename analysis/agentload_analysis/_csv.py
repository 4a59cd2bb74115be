"""The tables of a summary as CSV files."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

from agentload_analysis._summary import Summary
from agentload_traces import AgentloadError

TABLES = ("per_session", "per_turn", "per_context")


def write_csv(summary: Summary, directory: str | os.PathLike[str]) -> list[Path]:
    """Write per_session.csv, per_turn.csv and per_context.csv, each by rename; returns their paths.

    The columns are those of the summary's rows; an unknown value is an empty cell. The directory is made if
    need be; `AgentloadError` if it cannot be written.
    """
    paths = []
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            path = Path(directory) / f"{table}.csv"
            temporary = path.with_name(path.name + ".tmp")
            pl.DataFrame(summary[table], infer_schema_length=None).write_csv(temporary)
            temporary.replace(path)
            paths.append(path)
    except OSError as error:
        raise AgentloadError(f"{directory}: cannot be written: {error.strerror or error}") from None
    return paths
