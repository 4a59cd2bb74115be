"""What a wall-clock run tells of the client: lateness, connections, attempts, token counts, its own load.

In virtual time there is no client, and all of it but the kinds of failure is `None` or empty. Keys:
analysis/README.md.
"""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from agentload_analysis._metrics import ANSWERED, FAILED, QUANTILES, RETRIED, measured, with_metrics
from agentload_analysis._snapshot import Snapshot

Figures = dict[str, Any]

CONNECTION_PARTS = ("dns", "connect", "tls", "send", "first_byte")
"""Opening a connection, in its parts; sending a request; from then on to the first byte of the answer."""

_COUNTS = {
    "prompt": ("sent_tokens", "reported_input_tokens"),
    "output": ("output_tokens", "reported_output_tokens"),
}


def client_side(snapshot: Snapshot) -> Figures:
    """The part of a summary that is about the client."""
    manifest = snapshot.manifest
    baseline = None if manifest.baseline is None else msgspec.to_builtins(manifest.baseline)
    failed_by_kind = [
        {"kind": row["kind"], "turns": row["attempts"]} for row in _by_kind(snapshot.requests, FAILED)
    ]
    if manifest.clock != "wall":
        return {
            "baseline": baseline,
            "send_late_ms": None,
            "ttft_from_sent_ms": None,
            "connections_ms": None,
            "retried": 0,
            "retried_by_kind": [],
            "failed_by_kind": failed_by_kind,
            "token_counts": None,
            "client": None,
            "per_url": [],
            "per_worker": [],
        }
    requests, attempts = snapshot.requests, snapshot.attempts
    by_kind = _by_kind(attempts, RETRIED)
    return {
        "baseline": baseline,
        **_lateness(requests),
        "connections_ms": _connections(attempts),
        "retried": sum(row["attempts"] for row in by_kind),
        "retried_by_kind": by_kind,
        "failed_by_kind": failed_by_kind,
        "token_counts": _token_counts(requests),
        "client": _own_load(snapshot.client),
        "per_url": _by_number(requests, "url_index"),
        "per_worker": _by_number(requests, "worker"),
    }


def _lateness(requests: pl.LazyFrame) -> Figures:
    """How late turns were sent, and TTFT without that: as the endpoint's service was.

    A turn that was sent again had to wait for it; that is no lateness.
    """
    late_ms = (pl.col("sent_ns") - pl.col("scheduled_ns")) / 1e6
    first_time = pl.col("attempt").fill_null(0) == 0
    service_ms = (pl.col("first_token_ns") - pl.col("sent_ns")) / 1e6
    sent = requests.filter((ANSWERED | FAILED) & ~pl.col("warmup").fill_null(False))
    return {
        "send_late_ms": _distribution(sent.filter(first_time).select(value=late_ms)),
        "ttft_from_sent_ms": _distribution(requests.filter(measured(requests)).select(value=service_ms)),
    }


def _connections(attempts: pl.LazyFrame) -> Figures:
    opened_ns = pl.sum_horizontal(pl.col("dns_ns", "connect_ns", "tls_ns").fill_null(0))
    waited_ns = pl.col("first_byte_ns") - pl.col("sent_ns") - opened_ns - pl.col("send_ns")
    parts = {part: pl.col(f"{part}_ns") for part in CONNECTION_PARTS} | {"first_byte": waited_ns}
    return {
        part: _distribution(attempts.select(value=value_ns / 1e6), ("p50", "p99"))
        for part, value_ns in parts.items()
    }


def _by_kind(requests: pl.LazyFrame, of: pl.Expr) -> list[Figures]:
    """How often each kind of failure was met, most often first."""
    return (
        requests.filter(of)
        .group_by(pl.col("error_kind").alias("kind"))
        .agg(pl.len().cast(pl.Int64).alias("attempts"))
        .sort(["attempts", "kind"], descending=[True, False])
        .collect()
        .to_dicts()
    )


def _token_counts(requests: pl.LazyFrame) -> Figures:
    """Our count, o200k_base, beside the endpoint's own, over the answers of which both are known."""
    answered = requests.filter(ANSWERED)
    counts: Figures = {}
    for what, (ours, theirs) in _COUNTS.items():
        both = answered.filter(pl.col(ours).is_not_null() & pl.col(theirs).is_not_null())
        row = both.select(
            answers=pl.len().cast(pl.Int64), o200k=pl.col(ours).sum(), reported=pl.col(theirs).sum()
        )
        values: Figures = row.collect().to_dicts()[0]
        values["ratio"] = values["reported"] / values["o200k"] if values["o200k"] else None
        counts[what] = values
    return counts


def _own_load(client: pl.LazyFrame) -> Figures | None:
    rows = client.filter(pl.col("span_ns") > 0).collect()
    if rows.is_empty():
        return None
    cpu = rows["cpu_ns"] / rows["span_ns"]
    return {
        "intervals": rows.height,
        "active_turns_max": rows["active_turns"].max(),
        "loop_lag_ms": _distribution(rows.lazy().select(value=pl.col("loop_lag_ns") / 1e6)),
        "cpu_share": {
            "p50": cpu.median(),
            "p99": cpu.quantile(0.99, interpolation="linear"),
            "max": cpu.max(),
        },
        "unread_bytes_max": rows["unread_bytes"].max(),
        "rss_bytes_max": rows["rss_bytes"].max(),
    }


def _by_number(requests: pl.LazyFrame, column: str) -> list[Figures]:
    """Turns and latencies by URL or by worker; none if there was only one."""
    rows = (
        with_metrics(requests)
        .filter(pl.col(column).is_not_null())
        .group_by(column)
        .agg(
            pl.len().cast(pl.Int64).alias("turns"),
            ANSWERED.sum().cast(pl.Int64).alias("answered"),
            FAILED.sum().cast(pl.Int64).alias("failed"),
            *_two("ttft_ms", "ttft", "_ms"),
            *_two("output_tokens_per_s", "speed", "_tokens_per_s"),
        )
        .sort(column)
        .collect()
    )
    return rows.to_dicts() if rows.height > 1 else []


def _two(column: str, head: str, tail: str) -> list[pl.Expr]:
    value = pl.col(column)
    return [
        value.count().cast(pl.Int64).alias(f"{head}_count"),
        *(
            value.quantile(QUANTILES[name], interpolation="linear").alias(f"{head}_{name}{tail}")
            for name in ("p50", "p99")
        ),
    ]


def _distribution(values: pl.LazyFrame, names: tuple[str, ...] = ("p50", "p90", "p99", "max")) -> Figures:
    """Over the column `value`."""
    value = pl.col("value")
    columns = [value.count().cast(pl.Int64).alias("count")]
    columns += [
        value.max().alias(name)
        if name == "max"
        else value.quantile(QUANTILES[name], interpolation="linear").alias(name)
        for name in names
    ]
    row: Figures = values.select(columns).collect().to_dicts()[0]
    return row
