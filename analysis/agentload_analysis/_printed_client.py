"""The tables of a wall-clock run's connections, URLs and workers, as cells of text."""

from __future__ import annotations

from typing import Any

from agentload_analysis._client_side import CONNECTION_PARTS
from agentload_analysis._numbers import percentile
from agentload_analysis._printed_table import Column, PrintedTable
from agentload_analysis._summary import Summary
from agentload_traces import printable

_PART_NAMES = {
    "dns": "name looked up",
    "connect": "connected",
    "tls": "encrypted",
    "send": "request sent",
    "first_byte": "first byte, from then",
}
_TWO = ("p50", "p99")


def client_tables(summary: Summary) -> list[PrintedTable]:
    """Connections; and latencies by URL and by worker, if there were several."""
    tables = [_connections(summary), _by_url(summary), _by_worker(summary)]
    return [table for table in tables if table is not None]


def _connections(summary: Summary) -> PrintedTable | None:
    parts = summary["connections_ms"] or {}
    rows = [
        (
            _PART_NAMES[part],
            f"{values['count']:,}",
            *(percentile(values[q], q, values["count"]) for q in _TWO),
        )
        for part in CONNECTION_PARTS
        if (values := parts.get(part)) and values["count"]
    ]
    if not rows:
        return None
    columns = (Column("step", text=True), Column("count"), *(Column(name) for name in _TWO))
    return PrintedTable("Connections and requests (ms; of all attempts)", columns, tuple(rows))


def _by_url(summary: Summary) -> PrintedTable | None:
    urls = [summary["target"], *(summary["options"].get("more_urls") or ())]

    def name(row: dict[str, Any]) -> str:
        number = row["url_index"]
        return printable(urls[number]) if number < len(urls) else f"{number}"

    return _by("URL", [(name(row), row) for row in summary["per_url"]])


def _by_worker(summary: Summary) -> PrintedTable | None:
    return _by("worker", [(f"{row['worker']}", row) for row in summary["per_worker"]])


def _by(what: str, rows: list[tuple[str, dict[str, Any]]]) -> PrintedTable | None:
    if not rows:
        return None
    columns = (
        Column(what, text=True),
        *(Column(name) for name in ("turns", "answered", "failed")),
        *(Column(name, "TTFT ms") for name in _TWO),
        *(Column(name, "Tokens/s") for name in _TWO),
    )
    cells = tuple(
        (
            name,
            *(f"{row[count]:,}" for count in ("turns", "answered", "failed")),
            *(percentile(row[f"ttft_{q}_ms"], q, row["ttft_count"]) for q in _TWO),
            *(percentile(row[f"speed_{q}_tokens_per_s"], q, row["speed_count"]) for q in _TWO),
        )
        for name, row in rows
    )
    return PrintedTable(f"By {what}", columns, cells)
