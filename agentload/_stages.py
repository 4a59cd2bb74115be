"""Load that changes over a run: stages, each a level or a ramp between two for a time.

The level is how many sessions are active (closed loop) or how many start a second (open loop).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate
from math import sqrt
from typing import NamedTuple

from agentload_traces import AgentloadError

_NS_PER_S = 1_000_000_000
_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_STAGE = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?x{_NUMBER}(ms|s|m|h)", re.ASCII)
_LONGEST_NS = 366 * 24 * 3600 * 10**9
_HIGHEST = 10**6


class Stage(NamedTuple):
    """A level that goes evenly from `start` to `end` within `span_ns`."""

    start: float
    end: float
    span_ns: int


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages as they stand in an option: "4x60s,4-16x2m,16x5m".

    Raises `AgentloadError`, which names the stage, for one that cannot be read or lasts no time, and for
    stages of which none ever lets a session start.
    """
    stages = tuple(_parsed(text, part.strip()) for part in text.split(","))
    if not any(stage.start or stage.end for stage in stages):
        raise AgentloadError(f"--stages {text}: all levels are 0, so that no session would start")
    return stages


def _parsed(text: str, part: str) -> Stage:
    found = _STAGE.fullmatch(part)
    if found is None:
        raise AgentloadError(
            f"--stages {text!r}: cannot read the stage {part!r}; a stage is LEVELxTIME or FROM-TOxTIME, such"
            " as 4x60s or 4-16x2m, with times in ms, s, m or h"
        )
    start, end, span, unit = found.groups()
    stage = Stage(float(start), float(start if end is None else end), int(Decimal(span) * _UNITS_NS[unit]))
    if not 0 < stage.span_ns <= _LONGEST_NS:
        raise AgentloadError(
            f"--stages {text}: the stage {part} must last more than no time, and at most a year"
        )
    if max(stage.start, stage.end) > _HIGHEST:
        raise AgentloadError(f"--stages {text}: the stage {part} goes beyond {_HIGHEST:,}")
    return stage


class ConstantLimit:
    """So many sessions at a time; see `StagedLimit`."""

    def __init__(self, places: int) -> None:
        self._places = places

    def room_ns(self, active: int, now_ns: int) -> int | None:
        """See `StagedLimit`."""
        return now_ns if active < self._places else None


class StagedLimit:
    """Sessions at a time by stages, rounded down; after the last stage none starts.

    share: (k, n): the part of worker k of n; the parts add up to the whole at any time.
    """

    def __init__(self, stages: Sequence[Stage], share: tuple[int, int] = (0, 1)) -> None:
        self._stages = [(int(stage.start), int(stage.end), stage.span_ns) for stage in stages]
        self._ends = list(accumulate(stage.span_ns for stage in stages))
        self._share = share

    def room_ns(self, active: int, now_ns: int) -> int | None:
        """When, from `now_ns` on, a session may start beside `active` others; `None` if not any more."""
        share, shares = self._share
        needed = active * shares + share + 1
        for index in range(bisect_right(self._ends, now_ns), len(self._ends)):
            start, end, span_ns = self._stages[index]
            begins_ns = self._ends[index] - span_ns
            elapsed_ns = max(0, now_ns - begins_ns)
            if start < end:
                # From when on `start + (end - start) * elapsed // span` is enough.
                elapsed_ns = max(elapsed_ns, -((start - needed) * span_ns // (end - start)))
            if elapsed_ns < span_ns and start + (end - start) * elapsed_ns // span_ns >= needed:
                return begins_ns + elapsed_ns
        return None


class ConstantRate:
    """So many sessions a second; see `StagedRate`."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s

    def at_ns(self, position: float) -> int | None:
        """See `StagedRate`."""
        return round(position / self._rate_per_s * _NS_PER_S)


class StagedRate:
    """Sessions a second by stages: turns positions, in units of the mean gap, into times."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)
        counts = [(each.start + each.end) / 2 * (each.span_ns / _NS_PER_S) for each in stages]
        self._before = [0.0, *accumulate(counts)]
        self._begins_ns = [0, *accumulate(stage.span_ns for stage in stages)]

    def at_ns(self, position: float) -> int | None:
        """When as many sessions should have started; `None` if that is after the last stage."""
        index = bisect_right(self._before, position) - 1
        if index >= len(self._stages):
            return None
        start, end, span_ns = self._stages[index]
        more = position - self._before[index]
        # The time t at which start * t + (end - start) * t * t / (2 * span) is `more`.
        slope = (end - start) / (span_ns / _NS_PER_S)
        rate = start + sqrt(max(0.0, start * start + 2 * slope * more))
        elapsed_ns = round(2 * more / rate * _NS_PER_S) if rate else 0
        return self._begins_ns[index] + min(elapsed_ns, span_ns - 1)
