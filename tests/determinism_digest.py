"""Print a digest of each file of traces and run directories, to compare machines and Python versions.

Example: python tests/determinism_digest.py generated.jsonl run_directory
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl


def content(path: Path) -> bytes:
    """What must be the same everywhere: a Parquet file's schema and rows, any other file as it is."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    frame = pl.read_parquet(path)
    columns = [f"{name} {dtype}" for name, dtype in frame.schema.items()]
    return "\n".join([*columns, frame.write_ndjson()]).encode()


def files(path: Path) -> Iterator[Path]:
    """The file itself, or all Parquet files of a run directory."""
    if path.is_file():
        yield path
        return
    found = sorted(path.rglob("*.parquet"))
    if not found:
        raise SystemExit(f"error: {path} holds no .parquet file")
    yield from found


def main(arguments: list[str]) -> None:
    """Print "digest  rows-or-bytes  path" a line."""
    for argument in arguments:
        for path in files(Path(argument)):
            held = content(path)
            sys.stdout.write(f"{hashlib.sha256(held).hexdigest()}  {len(held):>10}  {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
