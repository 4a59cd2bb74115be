"""Feeds of whole sessions, as runs of several shapes make them."""

from __future__ import annotations

from collections.abc import Iterable

from agentload._feed import ClosedLoop, Launch, TimedLoop, at_recorded_times
from agentload._stages import ConstantLimit
from agentload_traces import Session


def closed_loop(sessions: Iterable[Session], concurrency: int) -> ClosedLoop:
    return ClosedLoop(map(Launch, sessions), ConstantLimit(concurrency))


def open_loop(sessions: Iterable[Session], speed: float = 1.0, *, not_before_ns: int = 0) -> TimedLoop:
    return TimedLoop(at_recorded_times(map(Launch, sessions), speed), not_before_ns=not_before_ns)
