"""What lies in a run directory, and how its rows look to Polars.

    manifest.json                          what was run; its status is rewritten last
    requests.jsonl, tool_calls.jsonl, client.jsonl   journals: one row a line, appended as the run goes
    requests.parquet, ...                  the same rows, once the run is finished (of client, if any)
    run.lock                               there while the run goes on; locked by the process that writes

Where a journal exists it is the truth; a Parquet file beside it is about to be replaced or has just been
written. A journal's last line may be torn (the run was killed while writing); it is then no row.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentload_traces._errors import RunDirectoryError
from agentload_traces._journal import extent
from agentload_traces._polars_schema import parquet_source, schema_of
from agentload_traces._replacing import kind_of_file, replacing_file, unfinished_forms
from agentload_traces._results import ClientRow, Manifest, RequestRow, RequestStatus, ToolCallRow

if TYPE_CHECKING:
    import polars as pl

MANIFEST_NAME = "manifest.json"
FORMAT = 1
ROW_TYPES: dict[str, type[RequestRow] | type[ToolCallRow] | type[ClientRow]] = {
    "requests": RequestRow,
    "tool_calls": ToolCallRow,
    "client": ClientRow,
}
ROW_GROUP_ROWS = 20_000


def journal_path(directory: Path, table: str) -> Path:
    """Path of the journal of `table` ("requests", "tool_calls" or "client")."""
    return directory / f"{table}.jsonl"


def parquet_path(directory: Path, table: str) -> Path:
    """Path of the Parquet file of `table`."""
    return directory / f"{table}.parquet"


def unfinished_files(directory: Path) -> list[Path]:
    """What killed writers left of the files of a run directory; raises `OSError`."""
    tables = [path(directory, table) for table in ROW_TYPES for path in (journal_path, parquet_path)]
    return [left for path in (directory / MANIFEST_NAME, *tables) for left in unfinished_forms(path)]


def is_readable(path: Path) -> bool:
    """Tell whether a file is there; raises `RunDirectoryError` for one that cannot be read."""
    try:
        if kind := kind_of_file(path):
            raise RunDirectoryError(f"{path}: is a {kind}, where a run has a file")
        with path.open("rb"):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror or error}") from None


class Key(msgspec.Struct):
    """The part of a journal line that tells whose it is."""

    session_id: str
    turn_id: str
    status: RequestStatus = "ok"


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`; a missing or foreign directory is a `RunDirectoryError`."""
    path = directory / MANIFEST_NAME
    try:
        kind = kind_of_file(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise RunDirectoryError(f"{directory}: no such run directory") from None
    except OSError as error:
        raise RunDirectoryError(f"{directory}: cannot be read: {error.strerror or error}") from None
    if kind != "directory":
        raise RunDirectoryError(f"{directory}: is a {kind or 'file'}; give the run directory")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise RunDirectoryError(f"{directory}: not a run directory, it holds no {MANIFEST_NAME}") from None
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise RunDirectoryError(f"{path}: not a run's manifest: {reason}") from None
    if manifest.format != FORMAT:
        raise RunDirectoryError(
            f"{path}: format {manifest.format}, this version reads format {FORMAT}; update agentload"
        )
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json` by rename."""
    path = directory / MANIFEST_NAME
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    with replacing_file(path) as file:
        file.write(content)


def journal_to_parquet(directory: Path, table: str) -> None:
    """Write the rows of a journal as Parquet; raises `OSError`."""
    import polars as pl

    schema = schema_of(ROW_TYPES[table])
    with journal_path(directory, table).open("rb") as journal:
        empty = journal.seek(0, 2) == 0
        journal.seek(0)
        # The open file, not its path: Polars takes a path with [, * or ? for a pattern.
        rows = pl.LazyFrame(schema=schema) if empty else pl.scan_ndjson(journal, schema=schema)
        _sink_parquet(rows, parquet_path(directory, table))


def scan_table(directory: Path, table: str) -> pl.LazyFrame:
    """The rows of a Parquet file; a column that its version did not have yet is unknown."""
    import polars as pl

    return pl.scan_parquet(
        parquet_source(parquet_path(directory, table)),
        glob=False,  # a path with [, * or ? is no pattern
        schema=schema_of(ROW_TYPES[table]),
        missing_columns="insert",
        extra_columns="ignore",
    )


def restore_journal(directory: Path, table: str) -> int:
    """Make a journal of whole rows, from the Parquet file if the run had been finished; count torn lines."""
    journal = journal_path(directory, table)
    if is_readable(journal):
        with journal.open("rb") as file:
            whole_bytes, torn_lines = extent(file, ROW_TYPES[table])
        if torn_lines:
            os.truncate(journal, whole_bytes)
        return torn_lines
    if is_readable(parquet_path(directory, table)):
        import polars as pl

        rows = scan_table(directory, table)
        try:
            with replacing_file(journal) as new:
                rows.sink_ndjson(new, maintain_order=True)
        except pl.exceptions.PolarsError as error:
            raise RunDirectoryError(
                f"{parquet_path(directory, table)}: cannot be read: {str(error).splitlines()[0]}"
            ) from None
    return 0


@contextmanager
def filtered_journal(directory: Path, table: str, session_ids: Collection[str]) -> Iterator[int]:
    """Write the rows of these sessions beside the journal and yield how many others there are.

    They take the journal's place when the block ends without an exception.
    """
    path = journal_path(directory, table)
    taken = 0
    with replacing_file(path) as file:
        for key, line in journal_lines(path):
            if key.session_id in session_ids:
                file.write(line)
            else:
                taken += 1
        file.flush()  # a full disk is met here, before anything takes a place
        yield taken


def journal_lines(path: Path) -> Iterator[tuple[Key, bytes]]:
    """The rows of a journal that this writer has written or has cut to whole rows."""
    decode = msgspec.json.Decoder(Key).decode
    with path.open("rb") as file:
        for line in file:
            yield decode(line), line


def _sink_parquet(rows: pl.LazyFrame, path: Path) -> None:
    """Stream `rows` into a Parquet file that appears by rename; the bytes depend on the rows alone.

    Raises `OSError` where it cannot be written.
    """
    import polars as pl

    with replacing_file(path) as file:
        try:
            rows.sink_parquet(
                file,
                compression="zstd",
                compression_level=3,
                row_group_size=ROW_GROUP_ROWS,
                maintain_order=True,
            )
        except pl.exceptions.PolarsError as error:  # what the operating system said, in words of Polars
            raise OSError(str(error).splitlines()[0]) from None
