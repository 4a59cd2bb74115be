"""Service level objectives: what a point must hold, and whether it does.

Grammar:

    slo        = objective *("," objective)
    objective  = metric ["." statistic] "=" number unit
    metric     = "ttft" | "tpot" | "itl" | "session" | "speed"
    statistic  = "p50" | "p90" | "p99" | "max"            (p99 unless said)
               | "p50" | "p10" | "p1" | "min"             (speed; p1 unless said)
    unit       = "us" | "ms" | "s" | "min" | "h"          ("tok/s" for speed)

The first four are upper limits, `speed` (output tokens/s per user) is a lower one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from decimal import Decimal
from typing import Any, NamedTuple

from agentload_traces import AgentloadError, printable

_UNITS_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_TIMES = ("ttft", "tpot", "itl", "session")
_TIME_STATISTICS = ("p99", "p90", "p50", "max")
_SPEED_STATISTICS = ("p1", "p10", "p50", "min")
_MOST = 10**18
"""Longest time in nanoseconds (31 years), and the highest speed."""

_OBJECTIVE = re.compile(r"([a-z]+)(?:\.([a-z0-9]+))?=([0-9]+(?:\.[0-9]+)?)([a-z/]*)", re.ASCII)

EXAMPLE = "ttft=500ms,itl=5ms,session=30min"


class Objective(NamedTuple):
    """One limit. limit: nanoseconds; for speed, tokens/s."""

    metric: str
    statistic: str
    limit: int

    def __str__(self) -> str:
        return f"{self.metric}.{self.statistic}={self.limit_text}"

    @property
    def limit_text(self) -> str:
        """The limit with its unit, as the grammar has it."""
        if self.metric == "speed":
            return f"{self.limit}tok/s"
        for unit, size in reversed(_UNITS_NS.items()):
            number = Decimal(self.limit) / size
            if number >= 1 and number == round(number, 3):
                return f"{round(number, 3).normalize():f}{unit}"
        return f"{Decimal(self.limit) / 1000:f}us"

    def broken_by(self, row: Mapping[str, Any]) -> str | None:
        """How a row of a sweep's results breaks the objective; `None` if it holds."""
        judged = self._judged(row)
        if judged.value is None:
            return judged.text
        if self.metric == "speed":
            broken, sign = judged.value < self.limit, "<"
        else:
            broken, sign = judged.value * judged.unit_size > self.limit, ">"
        return f"{judged.text} {sign} {self.limit_text}{judged.remark}" if broken else None

    def value_in(self, row: Mapping[str, Any]) -> str:
        """The value that a row is judged by, with its standard error: "ttft p99 412 ms ± 9"."""
        judged = self._judged(row)
        if judged.value is None:
            return judged.text
        error = "" if judged.standard_error is None else f" ± {judged.standard_error:,.2g}"
        return f"{judged.text}{error}{judged.remark}"

    def is_close(self, row: Mapping[str, Any]) -> bool:
        """Whether the limit is within two standard errors of a row's value, so that chance decides."""
        judged = self._judged(row)
        if judged.value is None or judged.standard_error is None:
            return False
        unit_size = judged.unit_size
        return abs(judged.value * unit_size - self.limit) < 2 * judged.standard_error * unit_size

    def _judged(self, row: Mapping[str, Any]) -> _Judged:
        """The value of a row that counts: of a percentile that its count cannot carry the worst."""
        from agentload_analysis import VALUES_NEEDED

        count = row[f"{self.metric}_count"]
        statistic, remark = self.statistic, ""
        if count < VALUES_NEEDED.get(statistic, 1):
            statistic = "min" if self.metric == "speed" else "max"
            remark = f" (of {count}, too few for a {self.statistic})"
        unit = {"session": "s", "speed": "tok/s"}.get(self.metric, "ms")
        column = f"{self.metric}_{statistic}_{'tokens_per_s' if self.metric == 'speed' else unit}"
        value = row[column]
        if value is None:
            text = f"{self.metric} {statistic}: no value"
        else:
            shown = f"{value:,.0f}" if self.metric == "speed" else f"{value:,.4g}"
            text = f"{self.metric} {statistic} {shown} {unit}"
        return _Judged(value, row.get(f"{column}_se"), _UNITS_NS.get(unit, 1), text, remark)


class _Judged(NamedTuple):
    """value, standard_error: `None` if there is none; times `unit_size` they are in the unit of the limit."""

    value: float | None
    standard_error: float | None
    unit_size: int
    text: str
    remark: str


class Slo(NamedTuple):
    """Limits that must all hold."""

    objectives: tuple[Objective, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.objectives))

    def broken_by(self, row: Mapping[str, Any]) -> list[str]:
        """How a row of a sweep's results breaks the limits; empty if all hold.

        A turn that was not answered breaks them, too: else what is refused would make the rest fast.
        """
        if row["error"] is not None:
            return [row["error"]]
        unanswered = row["failed"] + row["skipped"]
        first = [f"{unanswered} of {row['turns']} turns not answered"] if unanswered else []
        return first + [how for objective in self.objectives if (how := objective.broken_by(row))]

    def judge(self, row: MutableMapping[str, Any]) -> list[str]:
        """As `broken_by`, and write it into the row's `holds` and `broken`."""
        broken = self.broken_by(row)
        row["holds"], row["broken"] = not broken, "; ".join(broken) or None
        return broken

    def values_in(self, row: Mapping[str, Any]) -> list[str]:
        """The values that a row of a sweep's results is judged by, with their standard errors."""
        return [objective.value_in(row) for objective in self.objectives]

    def is_close(self, row: Mapping[str, Any]) -> bool:
        """Whether a limit is within two standard errors of a row's value."""
        return any(objective.is_close(row) for objective in self.objectives)


def parse_slo(text: str) -> Slo:
    """Read an SLO such as `ttft=500ms,itl.max=5ms`; see the module for the grammar.

    Raises `AgentloadError` that says what is wrong.
    """
    objectives: dict[tuple[str, str], Objective] = {}
    for part in text.split(","):
        objective = _parse(part.strip())
        if objective[:2] in objectives:
            raise AgentloadError(f"--slo: {objective.metric}.{objective.statistic} is given twice")
        objectives[objective[:2]] = objective
    return Slo(tuple(objectives.values()))


def _parse(text: str) -> Objective:
    shown = printable(text)
    match = _OBJECTIVE.fullmatch(text)
    if match is None:
        raise AgentloadError(
            f'--slo: "{shown}" is no objective; write METRIC[.STATISTIC]=NUMBER UNIT, such as {EXAMPLE}'
        )
    metric, statistic, number, unit = match.groups()
    if metric not in (*_TIMES, "speed"):
        raise AgentloadError(
            f'--slo: "{shown}": there is no metric {metric}; there are {", ".join(_TIMES)}, speed'
        )
    statistics = _SPEED_STATISTICS if metric == "speed" else _TIME_STATISTICS
    statistic = statistic or statistics[0]
    if statistic not in statistics:
        raise AgentloadError(f'--slo: "{shown}": {metric} has {", ".join(statistics)}, not {statistic}')
    units = {"tok/s": 1} if metric == "speed" else _UNITS_NS
    if unit not in units:
        what = f"unit {unit}" if unit else "number without a unit"
        raise AgentloadError(f'--slo: "{shown}": {what}; {metric} takes {", ".join(units)}')
    # Longer numbers would be rounded before they are looked at.
    limit = Decimal(number if len(number) < 20 else 0) * units[unit]
    if not 0 < limit <= _MOST or limit != int(limit):
        whole = "tokens/s" if metric == "speed" else "nanoseconds"
        raise AgentloadError(f'--slo: "{shown}": a limit is a whole number of {whole}, from 1 to 10^18')
    return Objective(metric, statistic, int(limit))
