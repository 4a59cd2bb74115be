"""Read a run directory, finished or not."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentload_traces._errors import RunDirectoryError
from agentload_traces._journal import extent
from agentload_traces._polars_schema import schema_of
from agentload_traces._results import Manifest
from agentload_traces._rundir_files import (
    ROW_TYPES,
    is_readable,
    journal_path,
    parquet_path,
    read_manifest,
    scan_table,
)

if TYPE_CHECKING:
    import polars as pl


class RunReader:
    """A run directory as tables.

    Raises `RunDirectoryError` when `path` is missing or is no run directory, and where a finished run lacks a
    table. Works while the run goes on: each call of `requests` or `tool_calls` shows the whole rows that are
    on disk at that moment.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)

    @property
    def incomplete(self) -> bool:
        """Whether rows may be missing: the run goes on, was interrupted or was killed."""
        return self.manifest.status != "complete" or any(
            is_readable(journal_path(self.path, table)) for table in ROW_TYPES
        )

    @property
    def torn_lines(self) -> int:
        """Lines that are not among the rows, for the first of them in its table was cut off or damaged.

        A kill leaves 0, or 1 a table.
        """
        contents = {table: self._journal(table) for table in ROW_TYPES}
        return sum(
            extent(io.BytesIO(content), ROW_TYPES[table]).torn_lines
            for table, content in contents.items()
            if content
        )

    def requests(self) -> pl.LazyFrame:
        """One row a turn in the order of writing; columns and units as in `RequestRow`."""
        return self._table("requests")

    def tool_calls(self) -> pl.LazyFrame:
        """One row a tool call in the order of writing; columns and units as in `ToolCallRow`."""
        return self._table("tool_calls")

    def client(self) -> pl.LazyFrame:
        """What the replayer saw of itself, a row an interval; columns and units as in `ClientRow`."""
        return self._table("client")

    def _table(self, table: str) -> pl.LazyFrame:
        import polars as pl

        schema = schema_of(ROW_TYPES[table])
        content = self._journal(table)
        finished = parquet_path(self.path, table)
        if content is None and not is_readable(finished):
            content = self._journal(table)  # a run that is resumed just now goes back to journals
        if content is not None:
            whole = content[: extent(io.BytesIO(content), ROW_TYPES[table]).whole_bytes]
            return pl.scan_ndjson(whole, schema=schema) if whole else pl.LazyFrame(schema=schema)
        if is_readable(finished):
            return scan_table(self.path, table)
        if self.manifest.status != "running" and table != "client":
            raise RunDirectoryError(f"{finished}: is missing; the run is {self.manifest.status} and had it")
        return pl.LazyFrame(schema=schema)

    def _journal(self, table: str) -> bytes | None:
        """The bytes of a journal, `None` if there is none.

        A copy, not the file: a run that still writes would tear lines under our hands.
        """
        path = journal_path(self.path, table)
        try:
            return path.read_bytes() if is_readable(path) else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunDirectoryError(f"{error.filename}: cannot be read: {error.strerror}") from None
