"""A sweep in words and cells: its headline, its table, what it holds for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from agentload_analysis._metrics import K_TOKENS
from agentload_analysis._numbers import UNKNOWN, duration, number, percentile
from agentload_analysis._printed_table import Column, PrintedTable
from agentload_traces import counted

Row = Mapping[str, Any]
Manifest = Mapping[str, Any]

NOTES = (
    "tokens/s per user: output speed of one stream, 1 / TPOT, one value a turn; p10 is the slow side.",
    "tokens/s together: of all users, over the time in which all places are taken, tools included; per rack:"
    " divided by all racks of the deployment.",
    "ITL: gaps between tokens, pooled; worst turn: the highest p99 of the gaps of a single turn.",
    "queue: its share of the session times. ~: a percentile of fewer values than it needs.",
    "±: one standard error, by ten groups of sessions in order.",
)


def context_name(tokens: int) -> str:
    """A context as one would give it: "10K", "1.5K", "8,192"."""
    return f"{tokens / K_TOKENS:g}K" if tokens % 100 == 0 else f"{tokens:,}"


def series_name(row: Row) -> str:
    """What one line of a plot is: a deployment, and the context if there is one."""
    name, context = str(row["target"]), row["context_tokens"]
    return name if context is None else f"{name}, {context_name(context)}"


def sweep_title(manifest: Manifest) -> str:
    """The heading; says if points are missing."""
    done, planned = manifest["points_done"], manifest["points_planned"]
    missing = "" if manifest["status"] == "complete" else f" (incomplete: {done} of {planned} points)"
    return f"Interactivity and throughput by concurrency{missing}"


def sweep_headline(rows: Sequence[Row], manifest: Manifest) -> Iterator[str]:
    """One sentence a series: the speed of one user alone and among the most, and what holds the SLO."""
    knees = {(knee["target"], knee["context_tokens"]): knee for knee in manifest["knees"]}
    for _, group in groupby(rows, key=lambda row: (row["target"], row["context_tokens"])):
        held = [row for row in group if row["error"] is None and row["speed_count"]]
        if not held:
            continue
        first = min(held, key=lambda row: row["concurrency"])
        last = max(held, key=lambda row: row["concurrency"])
        line = (
            f"{series_name(first)}: {_speed(first)} tokens/s per user at concurrency {first['concurrency']}"
        )
        if last is not first:
            line += f", {_speed(last)} at {last['concurrency']}"
        knee = knees.get((first["target"], first["context_tokens"]))
        if knee is not None:
            line += f"; {manifest['slo']} holds {_holds(knee)}"
        yield line + "."


def _holds(knee: Mapping[str, Any]) -> str:
    """Up to where an SLO holds, with the values that decide it and their scatter."""
    most = knee["concurrency"]
    if most is None:
        return f"up to: not known, for {counted(knee['missing'], 'point')} {_is_are(knee['missing'])} missing"
    reach = f"up to {most}" if most else "at none of them"
    if most and knee["next_concurrency"] is None:
        reach += ", the most tried"
    told = [
        f"at {at}: {', '.join(values)}"
        for at, values in ((most, knee["at"]), (knee["next_concurrency"], knee["above"]))
        if values
    ]
    if not told:
        return reach
    close = "; within two standard errors of the limit" if knee["close"] else ""
    return f"{reach} ({'; '.join(told)}{close})"


def _is_are(count: int) -> str:
    return "is" if count == 1 else "are"


def _speed(row: Row) -> str:
    return number(row["speed_p50_tokens_per_s"])


def sweep_problems(rows: Sequence[Row]) -> Iterator[str]:
    """What could not be run, each reason once, and which points have turns without an answer."""
    unusable: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["error"] is not None:
            unusable.setdefault((series_name(row), row["error"]), []).append(row["concurrency"])
    for (name, why), points in unusable.items():
        yield f"not run: {name} ({counted(len(points), 'point')}): {why}"
    for row in rows:
        if row["error"] is None and row["failed"] + row["skipped"]:
            yield (
                f"{_name(row)}: {row['failed']:,} of {row['turns']:,} turns failed, {row['skipped']:,} were"
                f" not sent; first error: {row['first_error']}"
            )


def sweep_conditions(manifest: Manifest, *, whole: bool) -> list[str]:
    """What the numbers hold for; `whole`: all that the deployments rest on, else the first two of each: what
    the simulation is, and what its speeds hang on.
    """
    lines = [manifest["workload"], f"Seed {manifest['seed']}, virtual time; {manifest['racks_counted']}."]
    for deployment in manifest["deployments"]:
        sentences = deployment["conditions"]
        racks = ", ".join(f"{count} × {rack}" for rack, count in deployment["racks"].items())
        if sentences:
            lines.append(f"{sentences[0]} {sentences[1]} Racks: {racks}.")
        lines += sentences[2:] if whole else ()
    return list(dict.fromkeys(lines))


def sweep_references(manifest: Manifest) -> list[str]:
    """The published figures that the plots show, with what they hold for."""
    return [f"{ref['name']}: {ref['conditions']} ({ref['source']})." for ref in manifest["references"]]


def sweep_table(rows: Sequence[Row], manifest: Manifest) -> PrintedTable:
    """One row a point that was run."""
    columns = [
        Column("deployment · context · concurrency", text=True),
        Column("p50", "Tokens/s per user"),
        Column("p10", "Tokens/s per user"),
        Column("together", "Tokens/s"),
        Column("per rack", "Tokens/s"),
        Column("p50", "TTFT ms"),
        Column("p99", "TTFT ms"),
        Column("p50", "ITL ms"),
        Column("p99", "ITL ms"),
        Column("worst turn", "ITL ms"),
        Column("p50", "Session"),
        Column("max", "Session"),
        Column("failed"),
        Column("queue"),
    ]
    if manifest["slo"] is not None:
        columns.append(Column("SLO"))
    cells = tuple(tuple(_cells(row, manifest)) for row in rows if row["error"] is None)
    return PrintedTable("Points", tuple(columns), cells)


def _name(row: Row) -> str:
    context = () if row["context_tokens"] is None else (context_name(row["context_tokens"]),)
    return " · ".join((row["target"], *context, f"{row['concurrency']}"))


def _cells(row: Row, manifest: Manifest) -> Iterator[str]:
    yield _name(row)
    yield _speed(row)
    yield percentile(row["speed_p10_tokens_per_s"], "p10", row["speed_count"])
    yield number(row["output_tokens_per_s"])
    yield number(row["output_tokens_per_s_per_rack"])
    for metric in ("ttft", "itl"):
        yield number(row[f"{metric}_p50_ms"])
        yield percentile(row[f"{metric}_p99_ms"], "p99", row[f"{metric}_count"])
    yield number(row["turn_itl_p99_max_ms"])
    yield duration(row["session_p50_s"])
    yield duration(row["session_max_s"])
    yield f"{row['failed'] + row['skipped']:,}"
    yield UNKNOWN if row["queue_share"] is None else f"{row['queue_share']:.1%}"
    if manifest["slo"] is not None:
        yield "holds" if row["holds"] else "broken"
