"""The tables that people read, as cells of text; the terminal and the page lay them out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentload_analysis._metrics import QUANTILES
from agentload_analysis._numbers import UNKNOWN, number, percentile, tokens
from agentload_analysis._printed_client import client_tables
from agentload_analysis._printed_table import Column, PrintedTable
from agentload_analysis._sessions import SPLIT
from agentload_analysis._summary import Summary
from agentload_analysis._words import PART_NAMES
from agentload_traces import printable

SESSIONS_SHOWN = 10

_NAMES = (*QUANTILES, "max")
_TTFT = {"TTFT ms": ("ttft", "ms")}
_QUEUE = {"Queue ms": ("queue", "ms")}
_TPOT = {"TPOT ms": ("tpot", "ms")}
_ITL = {"ITL ms": ("itl", "ms")}
_SPEED = {"Tokens/s": ("speed", "tokens_per_s")}
_COUNTED = {"answered": "answered", "failed": "failed", "skipped": "not sent"}


def printed_tables(summary: Summary) -> list[PrintedTable]:
    """Sessions, what happens before and between tokens by turn index and by context, then connections."""
    turns = [(_turn_name(row), row) for row in summary["per_turn_range"]]
    contexts = [(row["context"], row) for row in summary["per_context"]]
    tables = [_sessions(summary)] if summary["sessions"] else []
    before = _TTFT | (_QUEUE if summary["queue_ms"]["count"] else {})
    between = _TPOT | (_ITL if summary["itl_source"] == "arrivals" else {}) | _SPEED
    for key, of, rows in (("turn", "index in its agent", turns), ("context", "input tokens", contexts)):
        if rows:
            first = f"Until the first token, by {key} ({of})"
            then = f"From token to token, by {key} (tokens/s: output, per user)"
            tables.append(_latencies(first, key, rows, before, sizes=True))
            if summary["tpot_ms"]["count"] or summary["itl_ms"]["count"]:
                tables.append(_latencies(then, key, rows, between, sizes=False))
    return [*tables, *client_tables(summary)]


def parts_shown(summary: Summary) -> list[str]:
    """The parts of session time worth a column: the phases that the endpoint tells, or their sum."""
    told = summary["queue_ms"]["count"] or not summary["answered"]
    waited = any(row["first_token_wait_s"] for row in summary["per_session"])
    hidden = set() if told else {"queue", "prefill", "handoff"}
    return [part for part in SPLIT if part not in hidden and (part != "first_token_wait" or waited)]


def slowest_sessions(summary: Summary) -> list[dict[str, Any]]:
    """The sessions to show, slowest first; those without any answered turn last."""
    rows = sorted(summary["per_session"], key=lambda row: -(row["session_time_s"] or 0.0))
    return rows[:SESSIONS_SHOWN]


def _sessions(summary: Summary) -> PrintedTable:
    parts = parts_shown(summary)
    columns = (
        Column("session", text=True),
        *(Column(name) for name in (*_COUNTED.values(), "time")),
        *(Column("net + client" if part == "client" else PART_NAMES[part]) for part in parts),
    )
    rows = [
        (
            _short(row["session_id"]),
            _answered(row),
            *(f"{row[name]:,}" for name in ("failed", "skipped")),
            *(number(row[f"{part}_s"]) for part in ("session_time", *parts)),
        )
        for row in slowest_sessions(summary)
    ]
    whole = [row for row in summary["per_session"] if row["answered_whole"]]
    if whole:
        split = summary["session_split_s"]
        name = "sum" if len(whole) == summary["sessions"] else f"sum of {len(whole):,} whole"
        sums = (sum(values["sum"] for values in split.values()), *(split[part]["sum"] for part in parts))
        counts = (f"{sum(row[name] for row in whole):,}" for name in _COUNTED)
        shares = (split[part]["share"] for part in parts)
        rows.append((name, *counts, *(number(value) for value in sums)))
        rows.append(("share", "", "", "", "", *(UNKNOWN if s is None else f"{s:.1%}" for s in shares)))
    shown = min(SESSIONS_SHOWN, summary["sessions"])
    which = "" if shown == summary["sessions"] else f", the slowest {shown} of {summary['sessions']:,}"
    return PrintedTable(f"Sessions{which} (seconds)", columns, tuple(rows), total_rows=2 if whole else 0)


def _latencies(
    title: str,
    key: str,
    rows: Iterable[tuple[str, dict[str, Any]]],
    metrics: dict[str, tuple[str, str]],
    *,
    sizes: bool,
) -> PrintedTable:
    size_columns = [*(Column(name) for name in _COUNTED.values()), Column("context p50")] if sizes else []
    metric_columns = [Column(name, group) for group in metrics for name in _NAMES]
    cells = []
    for name, row in rows:
        size_cells = [*(f"{row[column]:,}" for column in _COUNTED), tokens(row["input_tokens_p50"])]
        cells.append(
            (
                name,
                *(size_cells if sizes else ()),
                *(
                    percentile(row[f"{head}_{quantile}_{unit}"], quantile, row[f"{head}_count"])
                    for head, unit in metrics.values()
                    for quantile in _NAMES
                ),
            )
        )
    return PrintedTable(title, (Column(key, text=True), *size_columns, *metric_columns), tuple(cells))


def _answered(session: dict[str, Any]) -> str:
    """How many turns were answered, and of a session that was cut off how many it was to have."""
    if session["cut_off"]:
        return f"{session['answered']:,} of {session['session_turns']:,}"
    return f"{session['answered']:,}"


def _turn_name(row: dict[str, Any]) -> str:
    first, last = row["turn_index"], row["last_turn_index"]
    return f"{first}" if first == last else f"{first}-{last}"


def _short(session_id: str, width: int = 22) -> str:
    """Session ids may be hashes or paths: keep both ends."""
    session_id = printable(session_id)  # before it is cut: what cannot be shown takes more room
    if len(session_id) <= width:
        return session_id
    return f"{session_id[: width - 9]}…{session_id[-8:]}"
