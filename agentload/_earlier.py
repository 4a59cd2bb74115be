"""What a run had recorded before it was interrupted, as far as going on with it needs to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentload._player import KnownEnd
from agentload._replay_result import ReplayResult
from agentload_traces import RunReader, RunWriter

if TYPE_CHECKING:
    import polars as pl


class Earlier(NamedTuple):
    """What is known of a run from before it was resumed.

    answered: what became of turns, by session id and turn id. attempts: how often a turn that has no end yet
    was sent, by both. done: sessions of which nothing is left to be played. clock_start_ns: where the run's
    clock goes on, after all that was recorded. sent: turns that were sent.
    """

    answered: Mapping[str, Mapping[str, KnownEnd]] = {}
    attempts: Mapping[tuple[str, str], int] = {}
    done: frozenset[str] = frozenset()
    clock_start_ns: int = 0
    sent: int = 0


_COLUMNS = ("session_id", "turn_id", "session_turns", "status", "error", "end_ns")


def earlier_of(path: Path, writer: RunWriter, result: ReplayResult, *, live: bool) -> Earlier:
    """Read an interrupted run and count its rows in `result`.

    live: its histories hold what really came, which is not recorded: of sessions that are not done the rows
    are taken out, for they must begin again.
    """
    reader = RunReader(path)
    rows = reader.requests().select(_COLUMNS).collect()
    done = frozenset(_done(rows))
    if live:
        writer.keep_sessions(done)
        rows = rows.filter(rows["session_id"].is_in(list(done)))
    tools_end_ns = _tools_end_ns(reader.tool_calls().collect().iter_rows(named=True))
    answered: dict[str, dict[str, KnownEnd]] = {}
    attempts: dict[tuple[str, str], int] = {}
    # The clock of a run never goes back, also where no turn ended for long.
    clock_start_ns, sent = int(reader.client().collect()["at_ns"].max() or 0), 0  # type: ignore[arg-type]
    for row in rows.iter_rows(named=True):
        result.count(row["status"], row["error"])
        clock_start_ns = max(clock_start_ns, row["end_ns"] or 0)
        key = (row["session_id"], row["turn_id"])
        if row["status"] == "retried":
            attempts[key] = attempts.get(key, 0) + 1
            continue
        sent += row["status"] != "skipped"
        end = KnownEnd(row["status"], row["end_ns"], tools_end_ns.get(key))
        answered.setdefault(row["session_id"], {})[row["turn_id"]] = end
    return Earlier(answered, attempts, done, clock_start_ns, sent)


def _done(rows: pl.DataFrame) -> Iterable[str]:
    """Sessions that have a row of each of their turns."""
    ends: dict[str, int] = {}
    turns: dict[str, int | None] = {}
    for row in rows.iter_rows(named=True):
        if row["status"] != "retried":
            ends[row["session_id"]] = ends.get(row["session_id"], 0) + 1
            turns[row["session_id"]] = row["session_turns"]
    return (session_id for session_id, count in ends.items() if count == turns[session_id])


def _tools_end_ns(tool_calls: Iterable[dict[str, Any]]) -> dict[tuple[str, str], int]:
    ends: dict[tuple[str, str], int] = {}
    for call in tool_calls:
        key = (call["session_id"], call["turn_id"])
        ends[key] = max(ends.get(key, 0), call["end_ns"])
    return ends
