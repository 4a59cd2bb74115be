"""The directory of a sweep, which no two sweeps share."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from agentload_traces import AgentloadError, cannot_write, printable

TABLE_FILE = "sweep.parquet"
MANIFEST_FILE = "sweep.json"


def claim_directory(out: Path | None, manifest: bytes) -> Path:
    """Make a directory that is this sweep's alone, with its manifest; returns it.

    out: made if it is not there; `None` is a new one, sweeps/TIME. Of several sweeps that want one directory
    at the same time one gets it. Raises `AgentloadError` if it holds a sweep or cannot be made.
    """
    path = out
    try:
        if path is None:
            path = Path("sweeps") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            path = make_unused(path)
        else:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AgentloadError(f"{printable(path)}: cannot be made: {error.strerror or error}") from None
    if (path / TABLE_FILE).exists():
        raise _holds_a_sweep(path)
    try:
        # Made by this process or not at all: looking first would let in another between look and write.
        with (path / MANIFEST_FILE).open("xb") as file:
            file.write(manifest)
    except FileExistsError:
        raise _holds_a_sweep(path) from None
    except OSError as error:
        raise cannot_write(path / MANIFEST_FILE, error) from None
    return path


def make_unused(path: Path) -> Path:
    """Make `path`, or the first of `path`-2, `path`-3, … that is not there; returns which."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        numbered = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            numbered.mkdir()
        except FileExistsError:
            continue
        return numbered
    raise AssertionError("there is always a next number")


def _holds_a_sweep(path: Path) -> AgentloadError:
    return AgentloadError(f"{printable(path)}: holds a sweep; give another --out")
