"""What a baseline's samples come to: distributions of errors, and whether the client kept up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from agentload_traces import Baseline, ErrorFigures, counted

TTFT_LIMIT_NS = 1_000_000
"""Own errors of TTFT below this count as small."""

GAP_LIMIT_NS = 1_000_000
"""Own errors of a gap between two tokens below this count as small; or below one step, if that is longer."""

CPU_LIMIT = 0.9
"""A client process that takes more of a core than this is about to fall behind."""

_ALLOWED = 0.01
"""The share of errors that may be larger than their limit: small is meant at p99."""

_OWN_WRITES = 0.5
"""So many of the tokens must have had a write of their own, or the load was not the one that was meant."""


class Sample(NamedTuple):
    """One answer. written_ns: of each token by the server; seen_ns: by the client; lost_tokens: not seen."""

    due_ns: int
    sent_ns: int
    received_ns: int
    written_ns: Sequence[int]
    seen_ns: Sequence[int]
    lost_tokens: int


class Level(NamedTuple):
    """So many streams at a time, for a time. tokens: of each answer. cpu_ns: of the client's process."""

    streams: int
    tokens: int
    step_ns: int
    samples: Sequence[Sample]
    cpu_ns: int
    took_ns: int


def ttft_errors(level: Level) -> list[int]:
    """Of each answer, the client's TTFT less the server's own, in order of size.

    The client's counts from when the request was due, the server's from when it had read the request whole:
    so lateness of sending, the way there and back, and lateness of the stamp are all in it.
    """
    return sorted(
        (sample.seen_ns[0] - sample.due_ns) - (sample.written_ns[0] - sample.received_ns)
        for sample in level.samples
        if sample.seen_ns and sample.written_ns
    )


def gap_errors(level: Level) -> list[int]:
    """Of each gap between two tokens, by how much the client saw it longer or shorter, in order of size."""
    errors: list[int] = []
    for sample in level.samples:
        behind = [seen - wrote for seen, wrote in zip(sample.seen_ns, sample.written_ns, strict=False)]
        errors += [abs(later - before) for before, later in pairwise(behind)]
    errors.sort()
    return errors


def kept_up(level: Level) -> bool:
    """Whether the errors were small, no token was lost, and the server could offer what it was to offer."""
    ttft, gaps = ttft_errors(level), gap_errors(level)
    return (
        bool(ttft)
        and not lost_tokens(level)
        and _mostly_within(ttft, TTFT_LIMIT_NS)
        and _mostly_within(gaps, gap_limit_ns(level.step_ns))
        and level.cpu_ns <= CPU_LIMIT * level.took_ns
        and _own_writes(level) >= _OWN_WRITES
    )


def gap_limit_ns(step_ns: int) -> int:
    """Below this the own error of a gap counts as small."""
    return max(GAP_LIMIT_NS, step_ns)


def lost_tokens(level: Level) -> int:
    """Tokens that were asked for and not counted."""
    return sum(sample.lost_tokens for sample in level.samples)


def baseline_of(level: Level, trusted_streams: int | None) -> Baseline:
    """The figures of a level, as a run's manifest has them."""
    seen = sum(len(sample.seen_ns) for sample in level.samples)
    return Baseline(
        step_ns=level.step_ns,
        streams=level.streams,
        tokens=level.tokens,
        ttft=figures(ttft_errors(level)),
        gap=figures(gap_errors(level)),
        send_late=figures(sorted(sample.sent_ns - sample.due_ns for sample in level.samples)),
        lost_tokens=lost_tokens(level),
        cpu_us_per_token=level.cpu_ns / 1e3 / seen if seen else 0.0,
        trusted_streams=trusted_streams,
    )


def figures(ordered: Sequence[int]) -> ErrorFigures:
    """The distribution of errors that are in order of size; percentiles interpolate linearly."""
    if not ordered:
        return ErrorFigures(count=0, p50_ns=0, p99_ns=0, max_ns=0)
    return ErrorFigures(
        count=len(ordered), p50_ns=_quantile(ordered, 50), p99_ns=_quantile(ordered, 99), max_ns=ordered[-1]
    )


def _quantile(ordered: Sequence[int], percent: int) -> int:
    below, rest = divmod((len(ordered) - 1) * percent, 100)
    if not rest:
        return ordered[below]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * rest // 100


def _mostly_within(ordered: Sequence[int], limit_ns: int) -> bool:
    """Whether no more than 1 % lie beyond; of few, one may: any machine stumbles once."""
    beyond = sum(error > limit_ns for error in ordered)
    return beyond <= max(1, _ALLOWED * len(ordered))


def _own_writes(level: Level) -> float:
    written = sum(len(sample.written_ns) for sample in level.samples)
    own = sum(len(set(sample.written_ns)) for sample in level.samples)
    return own / written if written else 0.0


def verdict(baseline: Baseline) -> str:
    """Up to how many streams the machine's own error is small, in a sentence or two."""
    per_s = f"{1e9 / baseline.step_ns:,.0f} tokens/s"
    small = (
        f"stays below {TTFT_LIMIT_NS / 1e6:g} ms for TTFT and {gap_limit_ns(baseline.step_ns) / 1e6:g} ms for"
        " gaps between tokens (99 of 100)"
    )
    trusted = baseline.trusted_streams
    if trusted is None:
        return f"Not even with one stream at {per_s} this machine's own error {small}."
    line = f"Up to {counted(trusted, 'stream')} at {per_s} each this machine's own error {small}."
    if trusted < baseline.streams:
        line += f" With {baseline.streams:,} it does not."
    return line
