"""The points of a sweep: a deployment, a concurrency, and the sessions that are played on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentload_traces import decodable

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

LEAST_SESSIONS = 24
LEAST_TURNS = 1_000
TURNS_OF_A_PLACE = 50
"""What counts at every concurrency: so many sessions and turns at least (of 1,000 turns ten lie beyond a
p99), and so many turns for each place of the largest concurrency, so that it is not over at once."""

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

    def least(self, places: int) -> tuple[int, int]:
        """How many sessions and turns count at least, at every concurrency up to `places`."""
        return max(LEAST_SESSIONS, places), max(LEAST_TURNS, TURNS_OF_A_PLACE * places)

    def sentence(self, places: int) -> str:
        """What is played at concurrencies up to `places`, in words; a condition of every number."""
        sessions, all_turns = self.least(places)
        fixed = f"at least {sessions:,} sessions and {all_turns:,} turns, the same at every concurrency"
        filled = "Others, which do not count, fill the places that become free at the end"
        if self.trace is not None:
            part = f" (of each the first {self.turns} turns)" if self.turns is not None else ""
            pace = "as recorded" if self.speed == 1 else f"{self.speed:g} times as fast as recorded"
            return (
                f"Workload: the sessions of {decodable(self.trace.name)}{part}, copied to {fixed}; tools and"
                f" think time {pace}. Copies share no prefix. The first ones start evenly over"
                f" {TRACE_SPREAD_S / self.speed:g} s. {filled}."
            )
        turns = self.turns or TURNS
        grown = (turns - 1) * (NEW_TOKENS + self.output_tokens)
        return (
            f"Workload: generated sessions of {turns} turns. The first prompt is the context and in no cache;"
            f" each turn answers with {self.output_tokens} tokens and the next adds {NEW_TOKENS}, so a"
            f" session grows by {grown:,} tokens; its tools take {self.tool_s:g} s a turn. There are {fixed};"
            f" the first ones start evenly over {GENERATED_SPREAD_S:g} s. {filled}."
        )


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that a point's numbers depend on; the same point has the same numbers wherever it is run.

    places: the largest concurrency of those that it is compared with, which says how many sessions count.
    """

    target: str
    concurrency: int
    places: int
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
    """Every combination; a trace has contexts of its own, so `contexts_tokens` is left out with one.

    All play the same sessions, as many as the largest concurrency needs.
    """
    contexts: Sequence[int | None] = contexts_tokens if workload.trace is None else (None,)
    return [
        SweepPoint(
            target=target,
            concurrency=concurrency,
            places=max(concurrencies),
            context_tokens=context,
            workload=workload,
            seed=seed,
        )
        for target in targets
        for context in contexts
        for concurrency in concurrencies
    ]
