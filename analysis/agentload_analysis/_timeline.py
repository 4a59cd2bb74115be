"""Bars of a session timeline: what each agent was doing when, few enough to draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from agentload_analysis._metrics import ANSWERED, FAILED
from agentload_analysis._sessions import SPLIT, SPLIT_NS

_MAX_LANES = 16
_MAX_EXACT_BARS = 6_000
_SLICES = 60

_ORDER = ("tool", "think", "queue", "prefill", "handoff", "first_token_wait", "decode", "client")
"""The parts in the order in which they come before and in a turn; network + client, spread in truth, last."""


class Bar(NamedTuple):
    """`part` lasted from `start_ns` to `end_ns` after the start of the session, in these turns."""

    part: str
    start_ns: int
    end_ns: int
    first_turn_index: int
    last_turn_index: int


@dataclass(frozen=True)
class Lane:
    """One agent of one session; `agent_id` is `None` for the main agent. `sliced`: bars are summed up."""

    session_id: str
    agent_id: str | None
    bars: list[Bar]
    failures: list[Failure]
    sliced: bool


class Failure(NamedTuple):
    """A failed turn, due `at_ns` after the start of the session."""

    at_ns: int
    turn_index: int
    error: str | None


@dataclass(frozen=True)
class Timeline:
    """Lanes of the sessions asked for, the end of all that is in them, how many sub-agents had no room."""

    lanes: list[Lane]
    longest_ns: int
    lanes_left_out: int


def timeline(requests: pl.LazyFrame, starts_ns: dict[str, int]) -> Timeline:
    """Lanes for the sessions in `starts_ns` (id → start of the session), in that order.

    Sub-agents have lanes below their session as long as there are at most 16 in all, the longest first. A
    lane with more than its share of 6,000 bars is cut into slices of 1/60 of the longest session, and each
    slice shows how much of each part fell into it. Failed turns are marks beside the bars.
    """
    turns = (
        requests.filter((ANSWERED | FAILED) & pl.col("session_id").is_in(list(starts_ns)))
        # A failed turn is a mark where it was due; how long its answer was waited for is not drawn.
        .with_columns(pl.when(FAILED).then("scheduled_ns").otherwise("end_ns").alias("end_ns"), failed=FAILED)
        .filter(pl.col("scheduled_ns").is_not_null() & pl.col("end_ns").is_not_null())
        .select(
            *("session_id", "agent_id", "turn_index", "scheduled_ns", "end_ns", "failed", "error", *SPLIT_NS)
        )
        .collect()
        .sort("scheduled_ns", "turn_index", maintain_order=True)
    )
    groups: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for turn in turns.iter_rows(named=True):
        groups.setdefault((turn["session_id"], turn["agent_id"]), []).append(turn)
    chosen = _choose(groups, list(starts_ns))
    bars = {
        key: [
            bar for turn in groups[key] if not turn["failed"] for bar in _turn_bars(turn, starts_ns[key[0]])
        ]
        for key in chosen
    }
    failures = {
        key: [
            Failure(turn["scheduled_ns"] - starts_ns[key[0]], turn["turn_index"], turn["error"])
            for turn in groups[key]
            if turn["failed"]
        ]
        for key in chosen
    }
    ends_ns = [bar.end_ns for lane in bars.values() for bar in lane]
    longest_ns = max([*ends_ns, *(mark.at_ns for lane in failures.values() for mark in lane)], default=0)
    most_bars = _MAX_EXACT_BARS // max(1, len(chosen))
    lanes = [_lane(key, bars[key], failures[key], most_bars, longest_ns) for key in chosen]
    return Timeline(lanes, longest_ns, lanes_left_out=len(groups) - len(chosen))


def _choose(
    groups: dict[tuple[str, str | None], list[dict[str, Any]]], session_ids: list[str]
) -> list[tuple[str, str | None]]:
    """All main agents and the longest-lived sub-agents, from first due time to last end."""
    ends_ns = {key: max(turn["end_ns"] for turn in turns) for key, turns in groups.items()}
    lengths_ns = {key: ends_ns[key] - turns[0]["scheduled_ns"] for key, turns in groups.items()}
    mains = [key for key in groups if key[1] is None]
    subagents = sorted((key for key in groups if key[1] is not None), key=lambda key: -lengths_ns[key])
    chosen = mains + subagents[: max(0, _MAX_LANES - len(mains))]
    order = {session_id: number for number, session_id in enumerate(session_ids)}
    return sorted(chosen, key=lambda key: (order[key[0]], key[1] is not None, ends_ns[key], key[1] or ""))


def _lane(
    key: tuple[str, str | None], bars: list[Bar], failures: list[Failure], most_bars: int, longest_ns: int
) -> Lane:
    if len(bars) <= most_bars:
        return Lane(*key, bars, failures, sliced=False)
    return Lane(*key, list(_sliced(bars, max(1, -(-longest_ns // _SLICES)))), failures, sliced=True)


def _turn_bars(turn: dict[str, Any], session_start_ns: int) -> Iterator[Bar]:
    """The parts of one turn laid end to end, those of length 0 left out."""
    at_ns = turn["scheduled_ns"] - turn["tool_ns"] - turn["think_ns"] - session_start_ns
    for part in _ORDER:
        length_ns = turn[f"{part}_ns"] or 0
        if length_ns > 0:
            yield Bar(part, at_ns, at_ns + length_ns, turn["turn_index"], turn["turn_index"])
            at_ns += length_ns


def _sliced(bars: list[Bar], slice_ns: int) -> Iterator[Bar]:
    """Sum the bars up by slice; equal neighbours that touch become one bar."""
    parts_ns: dict[int, dict[str, int]] = {}
    turns: dict[int, tuple[int, int]] = {}
    for bar in bars:
        for number in range(bar.start_ns // slice_ns, -(-bar.end_ns // slice_ns)):
            inside_ns = min(bar.end_ns, (number + 1) * slice_ns) - max(bar.start_ns, number * slice_ns)
            parts = parts_ns.setdefault(number, dict.fromkeys(SPLIT, 0))
            parts[bar.part] += inside_ns
            low, high = turns.get(number, (bar.first_turn_index, bar.last_turn_index))
            turns[number] = (min(low, bar.first_turn_index), max(high, bar.last_turn_index))
    pending: Bar | None = None
    for number in sorted(parts_ns):
        at_ns = number * slice_ns
        for part in _ORDER:
            length_ns = parts_ns[number][part]
            if length_ns == 0:
                continue
            bar = Bar(part, at_ns, at_ns + length_ns, *turns[number])
            at_ns = bar.end_ns
            if pending and (pending.part, pending.end_ns) == (bar.part, bar.start_ns):
                last_turn = max(pending.last_turn_index, bar.last_turn_index)
                pending = pending._replace(end_ns=bar.end_ns, last_turn_index=last_turn)
                continue
            if pending:
                yield pending
            pending = bar
    if pending:
        yield pending
