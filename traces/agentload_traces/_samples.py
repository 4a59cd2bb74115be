"""The sample traces that come with the package."""

from __future__ import annotations

from pathlib import Path

from agentload_traces._errors import TraceError

_HERE = Path(__file__).parent
_PLACES = (_HERE / "samples", _HERE.parent / "samples")
"""In an installed wheel, and in a checkout."""

_ENDINGS = (".json", ".jsonl", ".zst", ".parquet")


def list_samples() -> list[str]:
    """Return the file names of the sample traces, sorted; the README there tells their sources."""
    return sorted(path.name for path in _folder().iterdir() if path.name.endswith(_ENDINGS))


def sample_path(name: str) -> Path:
    """Return the path of a sample trace; raises `TraceError` if there is none of that name."""
    if name not in list_samples():
        raise TraceError(f"no sample trace {name!r}; there are {', '.join(list_samples())}")
    return _folder() / name


def _folder() -> Path:
    for place in _PLACES:
        if place.is_dir():
            return place
    raise TraceError(f"the sample traces are missing: no folder {_PLACES[0]}")
