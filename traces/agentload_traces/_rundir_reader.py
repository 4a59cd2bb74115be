"""Read a run directory, finished or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentload_traces._results import Manifest
from agentload_traces._rundir_files import (
    ROW_TYPES,
    journal_path,
    parquet_path,
    polars_schema,
    read_manifest,
    whole_lines_bytes,
)

if TYPE_CHECKING:
    import polars as pl


class RunReader:
    """A run directory as tables.

    Raises `RunDirectoryError` when `path` is missing or is no run directory. Works while the run goes on:
    each call of `requests` or `tool_calls` shows the whole rows that are on disk at that moment.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)

    @property
    def incomplete(self) -> bool:
        """Whether rows may be missing: the run goes on, was interrupted or was killed."""
        return self.manifest.status != "complete" or any(
            journal_path(self.path, table).exists() for table in ROW_TYPES
        )

    @property
    def torn_lines(self) -> int:
        """Lines that were cut off while being written (0, or 1 a table); they are not among the rows."""
        journals = [journal_path(self.path, table) for table in ROW_TYPES]
        return sum(path.stat().st_size > whole_lines_bytes(path) for path in journals if path.exists())

    def requests(self) -> pl.LazyFrame:
        """One row a turn in the order of writing; columns and units as in `RequestRow`."""
        return self._table("requests")

    def tool_calls(self) -> pl.LazyFrame:
        """One row a tool call in the order of writing; columns and units as in `ToolCallRow`."""
        return self._table("tool_calls")

    def _table(self, table: str) -> pl.LazyFrame:
        import polars as pl

        journal = journal_path(self.path, table)
        if journal.exists():
            # A copy of the bytes, not the file: a run that still writes would tear lines under our hands.
            with journal.open("rb") as file:
                content = file.read(whole_lines_bytes(journal))
            if content:
                return pl.scan_ndjson(content, schema=polars_schema(table))
        elif parquet_path(self.path, table).exists():
            return pl.scan_parquet(parquet_path(self.path, table))
        return pl.LazyFrame(schema=polars_schema(table))
