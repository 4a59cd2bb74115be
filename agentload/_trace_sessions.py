"""The sessions of a trace that is to be played, of which there must be one at least."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from agentload_traces import AgentloadError, Session, TraceReader


def first_and_rest(reader: TraceReader) -> Iterator[Session]:
    """The trace's sessions; reads the first at once, so that a trace without any starts no run.

    Raises `AgentloadError` if there is none.
    """
    sessions = reader.sessions()
    first = next(sessions, None)
    if first is None:
        raise no_turn(reader)
    return chain((first,), sessions)


def no_turn(reader: TraceReader) -> AgentloadError:
    """The error of a trace that was read to its end, and has nothing that can be played."""
    problems = reader.report.problems
    return AgentloadError(str(problems[0]) if problems else f"{reader.path}: no turn in it")
