"""Turns that outgrow the context of a deployment: found, said and dealt with before a run starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentload._compaction import RESTART_PERCENT, SYSTEM_PERCENT, Compactor
from agentload._options import OverflowPolicy
from agentload._requests import asked_tokens
from agentload_simbackend import Deployment
from agentload_traces import Session, TraceReader, Turn, counted


class ContextLimit(NamedTuple):
    """tokens: how long prompt and answer together may be. what: whose limit it is, in words."""

    tokens: int
    what: str

    def excess(self, turn: Turn) -> str | None:
        """The arithmetic of a turn that does not fit, `None` of one that does."""
        output = asked_tokens(turn)
        if turn.input_tokens + output <= self.tokens:
            return None
        total = turn.input_tokens + output
        return f"{turn.input_tokens:,} prompt + {output:,} output = {total:,} tokens > {self.tokens:,}"

    def reason(self, turn: Turn) -> str | None:
        """Why a turn is not sent, `None` if it may be."""
        excess = self.excess(turn)
        return None if excess is None else f"does not fit {self.what}: {excess}"


def context_limit(deployment: Deployment) -> ContextLimit:
    """What a deployment can serve: the model's context, or less if a decode replica has less room."""
    context = deployment.max_context_tokens
    held = deployment.max_stream_tokens
    if held < context:
        return ContextLimit(held, f"the KV memory of a decode replica of {deployment.name}")
    return ContextLimit(context, f"the context of {deployment.model.name}")


class Overflow:
    """The turns of a trace that do not fit; falsy if all do."""

    def __init__(self, limit: ContextLimit) -> None:
        self.limit = limit
        self.turns = 0
        self.sessions = 0
        self._latest_session: str | None = None
        self._first: tuple[Turn, str] | None = None
        self._largest: Turn | None = None

    def __bool__(self) -> bool:
        return self.turns > 0

    def add(self, turn: Turn, line: int | None) -> None:
        """Count a turn; those of a session come together. line: where it stands in the file, if known."""
        place = turn.source or (None if line is None else f"line {line}")
        shown = f"turn {turn.turn_id!r} of session {turn.session_id!r}{f' ({place})' if place else ''}"
        self.turns += 1
        self.sessions += turn.session_id != self._latest_session
        self._latest_session = turn.session_id
        self._first = self._first or (turn, shown)
        if self._largest is None or _tokens(turn) > _tokens(self._largest):
            self._largest = turn

    def sentence(self) -> str:
        """How many turns do not fit, the largest and the first of them, without a full stop."""
        assert self._first is not None
        assert self._largest is not None
        return (
            f"{counted(self.turns, 'turn')} of {counted(self.sessions, 'session')}"
            f" {'outgrows' if self.turns == 1 else 'outgrow'} {self.limit.what};"
            f" the largest: {self.limit.excess(self._largest)}; the first: {self._first[1]}"
        )


class ContextPlan(NamedTuple):
    """How a run deals with the turns that do not fit.

    too_long: those of the trace. left: those that do not fit even when contexts are compacted.
    compactor: counts what is compacted; `None` under another policy.
    """

    policy: OverflowPolicy
    too_long: Overflow
    left: Overflow
    compactor: Compactor | None

    @property
    def limit(self) -> ContextLimit:
        """What must be fitted into."""
        return self.too_long.limit

    def sessions(self, sessions: Iterable[Session]) -> Iterable[Session]:
        """The sessions as they are to be played, one in memory at a time."""
        if not self.too_long or self.policy != "compact":
            return sessions
        return _compacted(sessions, Compactor(self.limit.tokens))

    def refusal(self) -> str | None:
        """Why the run is not started, `None` if it may be."""
        if not self.too_long or self.policy != "refuse":
            return None
        return (
            f"{self.too_long.sentence()}. --on-overflow cut ends a session before its first such turn,"
            " --on-overflow compact compacts its context, --max-turns plays fewer turns"
        )

    def warning(self) -> str | None:
        """What a user must know before the run starts."""
        if not self.too_long:
            return None
        return f"{self.too_long.sentence()}. {' '.join(self.conditions())}"

    def conditions(self) -> list[str]:
        """What the numbers of the run hold for, a sentence each."""
        sentences = []
        if self.too_long and self.compactor is not None:
            done = self.compactor
            sentences.append(
                f"Contexts of agents that are full are compacted ({counted(done.compactions, 'time')} in"
                f" {counted(done.sessions, 'session')}): the prompt keeps its first {done.system_tokens:,}"
                f" tokens ({SYSTEM_PERCENT}% of the limit) and restarts at {done.restart_tokens:,}"
                f" ({RESTART_PERCENT}%), and later prompts of that agent are as much shorter; this is a rule,"
                " not what an agent did."
            )
        if self.left:
            sentences.append(
                f"Not sent: {counted(self.left.turns, 'turn')} of {counted(self.left.sessions, 'session')}"
                f" that would exceed {self.limit.what} ({self.limit.tokens:,} tokens), and what waits for"
                " them."
            )
        return sentences


def look_through(
    reader: TraceReader, limit: ContextLimit, policy: OverflowPolicy, max_turns: int | None
) -> ContextPlan:
    """Read the trace once, turn by turn, for what does not fit of the first `max_turns` of each session."""
    compactor = Compactor(limit.tokens) if policy == "compact" else None
    too_long, left = Overflow(limit), Overflow(limit)
    for turn in _head_turns(reader, max_turns):
        line = reader.report.lines_read if reader.format in _BY_LINE else None
        if limit.excess(turn) is not None:
            too_long.add(turn, line)
        played = turn if compactor is None else compactor.take(turn)
        if limit.excess(played) is not None:
            left.add(played, line)
    return ContextPlan(policy, too_long, left, compactor)


_BY_LINE = ("agentload-jsonl",)
"""Formats that have a line for each turn, and do not say in the turn which it was."""


def _head_turns(reader: TraceReader, max_turns: int | None) -> Iterator[Turn]:
    session_id, number = None, 0
    for turn in reader.turns():
        if turn.session_id != session_id:
            session_id, number = turn.session_id, 0
        number += 1
        if max_turns is None or number <= max_turns:
            yield turn


def _compacted(sessions: Iterable[Session], compactor: Compactor) -> Iterator[Session]:
    for session in sessions:
        yield Session(session.session_id, tuple(map(compactor.take, session.turns)))


def _tokens(turn: Turn) -> int:
    return turn.input_tokens + asked_tokens(turn)
