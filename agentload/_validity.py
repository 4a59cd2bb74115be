"""Whether the client kept up with the endpoint, so that a run's figures are the endpoint's and not its own.

The rules are data: each compares one column of a table of samples with a limit, and allows a share of the
samples to lie beyond it. It is asked of all samples, and of those at 1, 2-3, 4-7, ... turns at a time, so
that the reason can say from how many turns at a time on the figures are not to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentload._validity_tables import Measured, measured, read_turns
from agentload_traces import Baseline, ClientRow, Manifest, RequestRow, RunReader, counted

if TYPE_CHECKING:
    import polars as pl

_MS = 1_000_000

LEAST_TURNS = 10
"""A run with fewer answered turns shows no distribution."""

LEAST_IN_BUCKET = 20
"""So many samples at some number of turns at a time say something about that number."""

SHARE_OF_TTFT = 0.1
"""What makes a TTFT wrong by more than this share of the median is too much."""

COUNT_TOLERANCE = 1.25
"""Output tokens by the endpoint's own count and by o200k_base may differ by this factor: tokenizers do."""

_TTFT = "TTFT and session times"
_GAPS = "Gaps between tokens (ITL) and output speed"
_ALL = "TTFT, gaps between tokens, session times and throughput"


class Verdict(NamedTuple):
    """Whether a run is valid; `None` if there is too little to judge it by.

    reasons: in words, what is not to be trusted and why, or why it is not judged; none if it is valid.
    """

    valid: bool | None
    reasons: tuple[str, ...]


class Rule(NamedTuple):
    """What a table of samples must hold for figures to be trusted.

    table: "turns", one sample a turn that was sent, or "intervals", one an interval of a process. column: of
    it. limit: what a sample may be, by what the run measured. allowed: the share of samples that may lie
    beyond; of few samples as many as `_FEW`. what: said of a sample that lies beyond, with its limit.
    """

    figures: str
    table: Literal["turns", "intervals"]
    column: str
    limit: Callable[[Measured], float]
    allowed: float
    what: str
    unit: Literal["ms", "KB", "% of a core"]


def _part_of_ttft(of: Measured) -> float:
    return max(1 * _MS, SHARE_OF_TTFT * (of.ttft_ns or 0.0))


def _of_a_gap(of: Measured) -> float:
    return max(2 * _MS, of.gap_ns or 0.0)


RULES = (
    Rule(_TTFT, "turns", "late_ns", _part_of_ttft, 0.01, "turns were late by more than", "ms"),
    Rule(_TTFT, "intervals", "lag_ns", _part_of_ttft, 0.05, "the event loop was late by more than", "ms"),
    Rule(_GAPS, "intervals", "lag_ns", _of_a_gap, 0.1, "the event loop was late by more than", "ms"),
    Rule(_ALL, "intervals", "cpu_share", lambda of: 0.9, 0.05, "a process took more than", "% of a core"),
    Rule(
        _GAPS,
        "turns",
        "unread_bytes",
        lambda of: 65_536,
        0.01,
        "the endpoint was ahead of the client, with unread in a socket more than",
        "KB",
    ),
)
"""Why these limits: 1 ms is what this client's stamps are good to, and 2 ms a lag that any shared machine has
at times. An interval shows the worst of four looks at the loop, so that a lag in 5 % of them is one in 1.3 %
of the time, which is as much as a p99 bears; of gaps, which are pooled over turns, twice that. A process of
Python that computes most of the time answers late. 64 KB are hundreds of tokens.
"""

_FEW = {"turns": 1, "intervals": 3}
"""So many samples beyond a limit say nothing: any machine stumbles."""


def judge(
    client: pl.DataFrame | Iterable[ClientRow],
    requests: pl.DataFrame | Iterable[RequestRow],
    baseline: Baseline | None = None,
    workers: int = 1,
) -> Verdict:
    """Judge a finished run by its rows; those of the warm-up do not count.

    Arrivals of tokens are not looked at. baseline: what was measured of the machine before the run, if any;
    of one process, of which the run had `workers`.
    """
    of = measured(client, requests)
    reasons = [reason for rule in RULES if (reason := _broken(rule, of))]
    reasons += _baseline_reasons(of, baseline, workers)
    reasons += _count_reasons(of)
    if not reasons and of.answered < LEAST_TURNS:
        few = f"only {counted(of.answered, 'turn')} answered" if of.answered else "no turn was answered"
        return Verdict(None, (f"Too little to judge by: {few}, {LEAST_TURNS} are needed.",))
    return Verdict(not reasons, tuple(reasons))


def judge_run(path: Path, manifest: Manifest) -> Verdict:
    """Judge the rows of a run directory as they are on disk now, finished or not.

    Raises `RunDirectoryError` for a run that cannot be read.
    """
    workers = manifest.options.get("workers")
    return judge(
        RunReader(path).client().collect(),
        read_turns(path),
        manifest.baseline,
        workers if isinstance(workers, int) else 1,
    )


def _broken(rule: Rule, of: Measured) -> str | None:
    """The reason that a rule gives, `None` if it holds."""
    import polars as pl

    samples = getattr(of, rule.table).filter(pl.col(rule.column).is_not_null())
    limit = rule.limit(of)
    beyond = pl.col(rule.column) > limit
    by_bucket = (
        samples.group_by("bucket")
        .agg(pl.len().alias("count"), beyond.sum().alias("beyond"))
        .sort("bucket")
        .to_dicts()
    )
    count, over = (sum(row[name] for row in by_bucket) for name in ("count", "beyond"))
    first = next(
        (
            row["bucket"]
            for row in by_bucket
            if row["count"] >= LEAST_IN_BUCKET and row["beyond"] > _allowed(rule, row["count"])
        ),
        None,
    )
    if first is None and over <= _allowed(rule, count):
        return None
    where = "" if first is None or first <= 1 else f" from {first:,} turns at a time on"
    there = samples.filter(pl.col("bucket") >= (first or 0))
    worst = there[rule.column].quantile(0.99, interpolation="linear")
    assert worst is not None
    kind = "turn" if rule.table == "turns" else "interval"
    return (
        f"{rule.figures} are not to be trusted{where}: {rule.what} {_shown(limit, rule.unit)} in"
        f" {there.filter(beyond).height:,} of {counted(there.height, kind)}"
        f" (p99 {_shown(worst, rule.unit)}{_against(rule, of)})."
    )


def _allowed(rule: Rule, count: int) -> float:
    """How many of so many samples may lie beyond a rule's limit."""
    return max(_FEW[rule.table], rule.allowed * count)


def _against(rule: Rule, of: Measured) -> str:
    if rule.limit is _part_of_ttft and of.ttft_ns is not None:
        return f"; the median TTFT from when turns were sent is {_shown(of.ttft_ns, 'ms')}"
    if rule.limit is _of_a_gap and of.gap_ns is not None:
        return f"; the median gap is {_shown(of.gap_ns, 'ms')}"
    return ""


def _baseline_reasons(of: Measured, baseline: Baseline | None, workers: int) -> list[str]:
    """What the machine's own error, measured beforehand, says of figures of the size that was measured."""
    if baseline is None:
        return []
    reasons = []
    if baseline.lost_tokens:
        reasons.append(
            f"Token counts are not to be trusted: this machine lost {counted(baseline.lost_tokens, 'token')}"
            f" of a server that knows, with {counted(baseline.streams, 'stream')} at a time."
        )
    # So many streams at the baseline's speed bring tokens as fast as the run's turns did at their most.
    trusted = (baseline.trusted_streams or 0) * workers
    slower = (of.gap_ns or baseline.step_ns) / baseline.step_ns
    if trusted and of.most_active <= trusted * slower:
        return reasons
    where = f" from {int(trusted * slower) + 1:,} turns at a time on" if trusted else ""
    for figures, error, size_ns, limit in (
        (_TTFT, baseline.ttft, of.ttft_ns, _part_of_ttft(of)),
        (_GAPS, baseline.gap, of.gap_ns, _of_a_gap(of)),
    ):
        if size_ns is not None and error.p99_ns > limit:
            reasons.append(
                f"{figures} are not to be trusted{where}: this machine's own error was"
                f" {_shown(error.p99_ns, 'ms')} at p99 with {counted(baseline.streams, 'stream')} at a time,"
                f" of a median of {_shown(size_ns, 'ms')} that was measured."
            )
    return reasons


def _count_reasons(of: Measured) -> list[str]:
    """A token-count mismatch: another tokenizer by far, or tokens that never came."""
    if not of.counted_tokens or not of.reported_tokens:
        return []
    ratio = of.reported_tokens / of.counted_tokens
    if 1 / COUNT_TOLERANCE <= ratio <= COUNT_TOLERANCE:
        return []
    return [
        "Output speed, TPOT and throughput are not to be trusted: a token-count mismatch, the endpoint counts"
        f" {ratio:.2f} output tokens for each o200k token that came; its tokenizer is another, or it did not"
        " send all that it counts."
    ]


def _shown(value: float, unit: str) -> str:
    scale, shown = {"ms": (1e6, "ms"), "KB": (1024, "KB"), "% of a core": (0.01, "% of a core")}[unit]
    number = value / scale
    digits = 0 if number >= 99.95 or number == int(number) else 1 if number >= 9.995 else 2
    return f"{number:,.{digits}f}{'' if shown.startswith('%') else ' '}{shown}"
