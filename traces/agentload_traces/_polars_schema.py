"""How records look as rows of Polars: derived from the records, so that a new field is a new column."""

from __future__ import annotations

import types
import typing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentload_traces._records import BlockId
from agentload_traces._results import Int64

if TYPE_CHECKING:
    import polars as pl


def parquet_source(path: Path) -> Path | bytes:
    """Return what Polars reads a file from: its path, or its content where the path is not UTF-8.

    Raises `OSError` for the latter.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:  # Polars takes no such path
        return path.read_bytes()
    return path


@cache
def schema_of(record: type[msgspec.Struct]) -> pl.Schema:
    """Return the fields of a record as columns: counts as 64-bit integers, words as strings."""
    import polars as pl

    hints = typing.get_type_hints(record, include_extras=True)
    return pl.Schema({field: _column_type(hints[field]) for field in record.__struct_fields__})


def _column_type(hint: Any) -> pl.DataType:
    import polars as pl

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (hint,) = (argument for argument in arguments if argument is not types.NoneType)
        return _column_type(hint)
    if origin in (list, tuple):
        return pl.List(_column_type(arguments[0]))
    if origin is typing.Literal:
        return pl.String()
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return pl.Struct(schema_of(hint))
    simple: dict[Any, pl.DataType] = {
        BlockId: pl.UInt64(),
        int: pl.Int64(),
        Int64: pl.Int64(),
        float: pl.Float64(),
        str: pl.String(),
        bool: pl.Boolean(),
    }
    return simple[hint]
