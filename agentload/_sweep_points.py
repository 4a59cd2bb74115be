"""The points of a sweep: a deployment, a concurrency, and the sessions that are played on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

TURNS = 10
OUTPUT_TOKENS = 400
NEW_TOKENS = 300
TOOL_S = 0.3
"""A generated session: turns, tokens of an answer, tokens that each later turn adds to prompt and answer
(tool results), and the time of a turn's tool call.

Rounded from recordings of coding agents: weka/kv-cache-tester, 676 sessions, answers of 217 tokens at the
median and 435 on average, 280 added at the median; five sessions of marot/spotter, tool calls of 0.37 s at
the median.
"""

TURNS_OF_A_PLACE = 100
"""Each place of the loop plays generated sessions until it has so many turns: what a p99 needs."""

GENERATED_SPREAD_S = 1.0
TRACE_SPREAD_S = 60.0
"""Over what time the first sessions start: together they would go in lockstep, and copies of one for ever."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is played at every point of a sweep.

    trace: a trace's path; `None` generates sessions. trace_format: its format, `None` to recognise it.
    turns: of each session, from its first; `None` is all of a trace's, or `TURNS`.
    speed: how much faster than recorded a trace's tools and think time pass.
    output_tokens, tool_s: of each answer of a generated session, and of the tool call that it makes.
    """

    trace: Path | None = None
    trace_format: str | None = None
    turns: int | None = None
    speed: float = 1.0
    output_tokens: int = OUTPUT_TOKENS
    tool_s: float = TOOL_S

    def sentence(self) -> str:
        """What is played, in words; part of the conditions of every number."""
        if self.trace is not None:
            part = f" (of each the first {self.turns} turns)" if self.turns is not None else ""
            pace = "as recorded" if self.speed == 1 else f"{self.speed:g} times as fast as recorded"
            return (
                f"Workload: the sessions of {self.trace.name}{part}, tools and think time {pace}. Where"
                " they are fewer than the concurrency they are copied; copies share no prefix. The first ones"
                f" start evenly over {TRACE_SPREAD_S / self.speed:g} s."
            )
        turns = self.turns or TURNS
        grown = (turns - 1) * (NEW_TOKENS + self.output_tokens)
        return (
            f"Workload: generated sessions of {turns} turns. The first prompt is the context and in no cache;"
            f" each turn answers with {self.output_tokens} tokens and the next adds {NEW_TOKENS}, so a"
            f" session grows by {grown:,} tokens; its tools take {self.tool_s:g} s a turn. Each place plays"
            f" one session after the other until it has {TURNS_OF_A_PLACE} turns; the first ones start evenly"
            f" over {GENERATED_SPREAD_S:g} s."
        )


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that a point's numbers depend on; the same point has the same numbers wherever it is run."""

    target: str
    concurrency: int
    context_tokens: int | None
    workload: Workload
    seed: int


def grid(
    targets: Sequence[str],
    contexts_tokens: Sequence[int],
    concurrencies: Sequence[int],
    workload: Workload,
    seed: int,
) -> list[SweepPoint]:
    """Every combination; a trace has contexts of its own, so `contexts_tokens` is left out with one."""
    contexts: Sequence[int | None] = contexts_tokens if workload.trace is None else (None,)
    return [
        SweepPoint(
            target=target, concurrency=concurrency, context_tokens=context, workload=workload, seed=seed
        )
        for target in targets
        for context in contexts
        for concurrency in concurrencies
    ]
