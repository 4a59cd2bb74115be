"""Writing a native trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from agentload_traces._checks import SessionRules, findings
from agentload_traces._errors import TraceError
from agentload_traces._native import write_jsonl
from agentload_traces._parquet import write_parquet
from agentload_traces._records import Turn
from agentload_traces._replacing import replacing_file

ENDINGS = (".jsonl", ".jsonl.zst", ".parquet")
"""Endings of a native trace's file name; they decide how it is written."""


def check_ending(path: str | Path) -> None:
    """Raise `TraceError` if a trace cannot be written under this name."""
    if not str(path).endswith(ENDINGS):
        raise TraceError(f"{path}: the ending says how to write a trace, use one of {', '.join(ENDINGS)}")


def write_trace(path: str | Path, turns: Iterable[Turn]) -> int:
    """Write a native trace as its turns come, and return how many there were.

    The ending of `path` decides: `.jsonl`, `.jsonl.zst` or `.parquet`. The file appears when it is whole.

    Raises `TraceError` for a turn that a reader would refuse, for no turns at all, for another ending, and
    where the file cannot be written or is no regular file; errors of `turns` pass through. Nothing is left
    behind then, and what was there stays as it was.
    """
    check_ending(path)
    suffix = Path(path).suffix
    counted = _Checked(turns)
    try:
        with replacing_file(path) as file:
            if suffix == ".parquet":
                write_parquet(file, counted)
            else:
                write_jsonl(file, counted, compress=suffix == ".zst")
            if counted.turns == 0:
                raise TraceError(f"{path}: there is no turn to write")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error})") from None
    return counted.turns


class _Checked:
    """Passes turns on, counts them, and raises at the first that breaks a rule."""

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._source = turns
        self.turns = 0

    def __iter__(self) -> Iterator[Turn]:
        rules = SessionRules()
        for turn in self._source:
            wrong = next(findings(turn), None) or rules.refuse(turn)
            if wrong is None:
                turn, unresolved = rules.admit(turn)
                wrong = unresolved[0] if unresolved else None
            if wrong is not None:
                place = f"turn {turn.turn_id!r} of session {turn.session_id!r}"
                raise TraceError(f"{place} cannot be written: {wrong[0]}: {wrong[1]}")
            self.turns += 1
            yield turn
