"""Fits the parameters of types of GPU to measured rows, and tells how far off it is on the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from agentload_simbackend._gpu_rows import GpuCase, GpuRow, NotApplicable, case_of
from agentload_simbackend._gpu_terms import GpuParameters
from agentload_simbackend._quantile import quantile

LEAST_ROWS = 50
"""A type of GPU with fewer applicable rows is not fitted; its spec says whose parameters it takes."""

_LOW = GpuParameters(0.5, 1e-6, 1e-6, 0.3, 1e-5, 0.25)
_HIGH = GpuParameters(0.95, 3e-4, 2e-4, 0.75, 1e-2, 0.9)
_START = GpuParameters(0.8, 60e-6, 30e-6, 0.5, 1.2e-3, 0.5)
_ROUNDS = 300
_TTFT_WEIGHT = 0.6
_CAP_TPOT, _CAP_TTFT = 0.5, 0.7
"""Errors beyond these (of TTFT: in the logarithm) count no more: outliers must not lead."""

_NEARNESS = 0.05
"""What a unit of squared distance (in the logarithm) from the fit to all systems costs, in errors: where a
system's own rows leave a parameter open, it takes what the others show."""


class GpuErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute relative errors over some rows; `None` where there are none. TTFT has fewer rows than TPOT."""

    rows: int
    tpot_median: float | None
    tpot_p90: float | None
    ttft_rows: int
    ttft_median: float | None
    ttft_p90: float | None


class Split(NamedTuple):
    """Rows to fit to, rows not fitted to, disaggregated ones, and why how many others have no prediction."""

    fit: list[GpuCase]
    others: list[GpuCase]
    disaggregated: list[GpuCase]
    left_out: Counter[str]

    @property
    def systems(self) -> list[str]:
        """The types of GPU that are fitted."""
        return sorted({case.row.system for case in self.fit})

    @property
    def of_systems(self) -> list[GpuCase]:
        """All rows of those types, whether fitted to or held out."""
        systems = set(self.systems)
        return [case for case in self.fit + self.others if case.row.system in systems]


def cases_of(rows: Iterable[GpuRow]) -> tuple[list[GpuCase], Counter[str]]:
    """The applicable rows, and how many were left out for which reason; repeated rows count once."""
    cases: list[GpuCase] = []
    left_out: Counter[str] = Counter()
    seen: set[tuple[str, int | None, float, float]] = set()
    for row in rows:
        case = case_of(row)
        key = row_key(row)
        if isinstance(case, NotApplicable):
            left_out[case.reason] += 1
        elif key in seen:
            left_out["repeats another row"] += 1
        else:
            seen.add(key)
            cases.append(case)
    return cases, left_out


def row_key(row: GpuRow) -> tuple[str, int | None, float, float]:
    """What is equal in rows that repeat each other."""
    return row.configuration, row.concurrency, row.ttft_s, row.tpot_s


def split(rows: Iterable[GpuRow]) -> Split:
    """Hold out 3 of 10 configurations, whole sweeps over the concurrency, by a hash of what they are.

    Types of GPU that this leaves with fewer than `LEAST_ROWS` rows are not fitted at all.
    """
    cases, left_out = cases_of(rows)
    aggregated = [case for case in cases if not case.row.disaggregated]
    kept = Counter(case.row.system for case in aggregated if not is_held_out(case.row))
    fit: list[GpuCase] = []
    others: list[GpuCase] = []
    for case in aggregated:
        fitted = kept[case.row.system] >= LEAST_ROWS and not is_held_out(case.row)
        (fit if fitted else others).append(case)
    return Split(fit, others, [case for case in cases if case.row.disaggregated], left_out)


def is_held_out(row: GpuRow) -> bool:
    """Whether a row belongs to a configuration that is not fitted to."""
    return blake2b(row.configuration.encode(), digest_size=4).digest()[0] < 77  # of 256: 30 %


def fit(cases: Sequence[GpuCase], near: GpuParameters | None = None) -> GpuParameters:
    """The parameters with the least capped errors, drawn towards `near`, whose time of a stream is kept.

    That time is the host's, which the types of GPU have in common. A model on a system weighs as the root
    of its number of rows.
    """
    groups: dict[tuple[str, str], list[GpuCase]] = {}
    for case in cases:
        groups.setdefault((case.row.system, case.row.model_path), []).append(case)

    def held(p: GpuParameters) -> GpuParameters:
        return p if near is None else p._replace(stream_overhead_s=near.stream_overhead_s)

    def loss(p: GpuParameters) -> float:
        p = held(p)
        total = weights = 0.0
        for rows in groups.values():
            weight = math.sqrt(len(rows))
            total += weight * sum(_loss(case, p) for case in rows) / len(rows)
            weights += weight
        return total / weights + (_NEARNESS * _distance(p, near) if near is not None else 0.0)

    return held(_descend(loss, near or _START))


def fit_systems(cases: Sequence[GpuCase]) -> dict[str, GpuParameters]:
    """By system: the parameters fitted to its cases, drawn towards those fitted to all cases."""
    common = fit(cases)
    systems = sorted({case.row.system for case in cases})
    return {s: fit([case for case in cases if case.row.system == s], common) for s in systems}


def errors(cases: Iterable[GpuCase], parameters: Callable[[GpuCase], GpuParameters]) -> GpuErrors:
    """How far the predictions are off; TTFT only where it is predicted."""
    tpot: list[float] = []
    ttft: list[float] = []
    for case in cases:
        ttft_s, tpot_s = case.times(parameters(case))
        tpot.append(abs(tpot_s / case.row.tpot_s - 1))
        if not case.queues:
            ttft.append(abs(ttft_s / case.row.ttft_s - 1))
    return GpuErrors(
        rows=len(tpot),
        tpot_median=quantile(tpot, 0.5),
        tpot_p90=quantile(tpot, 0.9),
        ttft_rows=len(ttft),
        ttft_median=quantile(ttft, 0.5),
        ttft_p90=quantile(ttft, 0.9),
    )


def leave_one_out(cases: Sequence[GpuCase]) -> dict[tuple[str, str], GpuParameters]:
    """Parameters by (system, model), fitted to the cases of other models alone, if the system has any."""
    found: dict[tuple[str, str], GpuParameters] = {}
    for model in sorted({case.row.model_path for case in cases}):
        others = [case for case in cases if case.row.model_path != model]
        with_model = {case.row.system for case in cases if case.row.model_path == model}
        for system, parameters in (fit_systems(others) if others else {}).items():
            if system in with_model:
                found[system, model] = parameters
    return found


def _loss(case: GpuCase, p: GpuParameters) -> float:
    ttft_s, tpot_s = case.times(p)
    loss = min(abs(tpot_s / case.row.tpot_s - 1), _CAP_TPOT)
    if not case.queues:
        loss += _TTFT_WEIGHT * min(abs(math.log(ttft_s / case.row.ttft_s)), _CAP_TTFT)
    return loss


def _distance(p: GpuParameters, other: GpuParameters) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(p, other, strict=True))


def _descend(loss: Callable[[GpuParameters], float], start_at: GpuParameters) -> GpuParameters:
    """Nelder and Mead's simplex in the logarithms, inside the bounds."""

    def at(point: Sequence[float]) -> float:
        p = GpuParameters(*map(math.exp, point))
        inside = all(low <= value <= high for low, value, high in zip(_LOW, p, _HIGH, strict=True))
        return loss(p) if inside else math.inf

    start = [math.log(value) for value in start_at]
    points = [start] + [[v + 0.3 * (i == j) for j, v in enumerate(start)] for i in range(len(start))]
    points = [[min(v, math.log(high)) for v, high in zip(p, _HIGH, strict=True)] for p in points]
    simplex = sorted(((at(point), point) for point in points), key=lambda each: each[0])
    for _ in range(_ROUNDS):
        if simplex[-1][0] - simplex[0][0] < 1e-6:
            break
        middle = [sum(column) / len(start) for column in zip(*(p for _, p in simplex[:-1]), strict=True)]
        worst_loss, worst = simplex[-1]

        def along(step: float, middle: list[float] = middle, worst: list[float] = worst) -> list[float]:
            return [m + step * (m - w) for m, w in zip(middle, worst, strict=True)]

        tried = [along(1.0)]
        tried_loss = at(tried[0])
        if tried_loss < simplex[0][0]:
            further = along(2.0)
            further_loss = at(further)
            best = min((tried_loss, tried[0]), (further_loss, further), key=lambda each: each[0])
        elif tried_loss < simplex[-2][0]:
            best = (tried_loss, tried[0])
        else:
            inner = along(-0.5)
            best = (at(inner), inner)
        if best[0] < worst_loss:
            simplex[-1] = best
        else:
            first = simplex[0][1]
            shrunk = [[(a + b) / 2 for a, b in zip(first, p, strict=True)] for _, p in simplex[1:]]
            simplex[1:] = [(at(p), p) for p in shrunk]
        simplex.sort(key=lambda each: each[0])
    return GpuParameters(*map(math.exp, simplex[0][1]))
