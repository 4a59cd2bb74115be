"""What lies in a run directory, and how its rows look to Polars.

    manifest.json                          what was run; its status is rewritten last
    requests.jsonl, tool_calls.jsonl       journals: one row a line, appended as the run goes
    requests.parquet, tool_calls.parquet   the same rows, once the run is finished

Where a journal exists it is the truth; a Parquet file beside it is about to be replaced or has just been
written. A journal's last line may be torn (the run was killed while writing); it is then no row.
"""

from __future__ import annotations

import types
import typing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentload_traces._errors import RunDirectoryError
from agentload_traces._results import Manifest, RequestRow, ToolCallRow

if TYPE_CHECKING:
    import polars as pl

MANIFEST_NAME = "manifest.json"
FORMAT = 1
ROW_TYPES: dict[str, type[RequestRow] | type[ToolCallRow]] = {
    "requests": RequestRow,
    "tool_calls": ToolCallRow,
}
ROW_GROUP_ROWS = 20_000

_READ_BYTES = 1 << 16


def journal_path(directory: Path, table: str) -> Path:
    """Path of the journal of `table` ("requests" or "tool_calls")."""
    return directory / f"{table}.jsonl"


def parquet_path(directory: Path, table: str) -> Path:
    """Path of the Parquet file of `table`."""
    return directory / f"{table}.parquet"


def temporary_path(path: Path) -> Path:
    """Where a file is written before it appears under its name."""
    return path.with_name(path.name + ".tmp")


@cache
def polars_schema(table: str) -> pl.Schema:
    """Columns and types of `table`: the fields of its row, whole numbers as 64-bit integers."""
    import polars as pl

    hints = typing.get_type_hints(ROW_TYPES[table])
    columns: dict[str, pl.DataType] = {}
    for field in msgspec.structs.fields(ROW_TYPES[table]):
        hint = hints[field.name]
        if isinstance(hint, types.UnionType):
            (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        if hint is int:
            columns[field.name] = pl.Int64()
        elif typing.get_origin(hint) is list:
            columns[field.name] = pl.List(pl.Int64())
        else:
            columns[field.name] = pl.String()
    return pl.Schema(columns)


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`; a missing or foreign directory is a `RunDirectoryError`."""
    if not directory.exists():
        raise RunDirectoryError(f"{directory}: no such run directory")
    if not directory.is_dir():
        raise RunDirectoryError(f"{directory}: is a file; give the run directory")
    path = directory / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise RunDirectoryError(f"{directory}: not a run directory, it holds no {MANIFEST_NAME}") from None
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path}: not a run's manifest: {error}") from None
    if manifest.format != FORMAT:
        raise RunDirectoryError(
            f"{path}: format {manifest.format}, this version reads format {FORMAT}; update agentload"
        )
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json` by rename."""
    path = directory / MANIFEST_NAME
    temporary = temporary_path(path)
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    temporary.replace(path)


def whole_lines_bytes(path: Path) -> int:
    """Length of the file up to and including its last newline: what is not torn."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(0, end - _READ_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def sink_parquet(rows: pl.LazyFrame, path: Path) -> None:
    """Stream `rows` into a Parquet file that appears by rename; the bytes depend on the rows alone."""
    temporary = temporary_path(path)
    rows.sink_parquet(
        temporary,
        compression="zstd",
        compression_level=3,
        row_group_size=ROW_GROUP_ROWS,
        maintain_order=True,
    )
    temporary.replace(path)
