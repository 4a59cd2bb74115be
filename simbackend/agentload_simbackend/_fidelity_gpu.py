"""Measured rows of GPU systems beside the predicted ones: errors by model and system, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentload_simbackend._gpu_fit import (
    GpuErrors,
    Split,
    cases_of,
    errors,
    leave_one_out,
    row_key,
    split,
)
from agentload_simbackend._gpu_rows import MEASURED, GpuCase, gpu_parameters, read_gpu_rows
from agentload_simbackend._gpu_terms import GpuParameters
from agentload_traces import decodable

TPOT_LIMIT, TTFT_LIMIT = 0.15, 0.25
"""Median absolute errors on rows that were not fitted to; beyond them the fit has drifted."""

_FITTED_LIMITS = {"h100_sxm": (0.075, 0.15), "h200_sxm": (0.145, 0.2), "b200_sxm": (0.08, 0.165)}
"""Of TPOT and TTFT on the rows of each type that were fitted to: what the fit left, and a point more."""


class GpuGroupErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one model on one system.

    fitted_on: rows that its parameters were fitted to. not_fitted_on: all others. model_left_out: all rows,
    with parameters fitted without this model (only for the built-in rows).
    """

    model: str
    system: str
    fitted_on: GpuErrors
    not_fitted_on: GpuErrors
    model_left_out: GpuErrors | None = None


class GpuSystem(msgspec.Struct, frozen=True, kw_only=True):
    """One type of GPU: `fitted_rows` is 0 where its parameters are those of another type."""

    system: str
    rows: int
    fitted_rows: int
    parameters: dict[str, float]


class GpuPin(msgspec.Struct, frozen=True, kw_only=True):
    """Median absolute errors that must not grow beyond their limits."""

    name: str
    tpot_median: float
    tpot_limit: float
    ttft_median: float
    ttft_limit: float
    drifted: bool


class GpuFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """All of a file of measured rows. `left_out`: rows by the reason for which they have no prediction.

    pinned: of the built-in rows alone.
    """

    file: str
    rows: int
    fitted_on: GpuErrors
    not_fitted_on: GpuErrors
    model_left_out: GpuErrors | None
    disaggregated: GpuErrors
    by_model_and_system: list[GpuGroupErrors]
    systems: list[GpuSystem]
    left_out: dict[str, int]
    pinned: list[GpuPin]


class FittedGpu(NamedTuple):
    """How many GPU parameters are fitted, of how many types; how many measured numbers they are fitted to."""

    parameters: int
    types: int
    targets: int


def gpu_fidelity(path: str | Path | None = None) -> GpuFidelity:
    """Evaluate a file of measured rows (`None`: the built-in one). Raises `SpecError` if it is wrong."""
    fitted = _built_in()
    if path is None:
        found, left_out = [*fitted.fit, *fitted.others, *fitted.disaggregated], fitted.left_out
    else:
        found, left_out = cases_of(read_gpu_rows(path))
    trained = {row_key(case.row) for case in fitted.fit}
    aggregated = [case for case in found if not case.row.disaggregated]
    seen = [case for case in aggregated if row_key(case.row) in trained]
    others = [case for case in aggregated if row_key(case.row) not in trained]
    without = _without_each_model() if path is None else {}
    left = [case for case in aggregated if _left_key(case) in without]
    not_fitted_on = errors(others, _parameters)
    return GpuFidelity(
        file=decodable(path or MEASURED.name),
        rows=len(found) + sum(left_out.values()),
        fitted_on=errors(seen, _parameters),
        not_fitted_on=not_fitted_on,
        model_left_out=errors(left, _of(without)) if path is None else None,
        disaggregated=errors((case for case in found if case.row.disaggregated), _parameters),
        by_model_and_system=list(_groups(seen, others, without)),
        systems=list(_systems(found, fitted)),
        left_out=dict(left_out.most_common()),
        pinned=list(_pins(not_fitted_on, seen)) if path is None else [],
    )


def fitted_gpu() -> FittedGpu:
    """What was fitted: for each type all parameters but the time of a stream, which is one for all."""
    parts = _built_in()
    types = len(parts.systems)
    parameters = types * (len(GpuParameters._fields) - 1) + 1
    return FittedGpu(parameters, types, len(parts.fit) + sum(not case.queues for case in parts.fit))


@cache
def _built_in() -> Split:
    return split(read_gpu_rows())


@cache
def _without_each_model() -> dict[tuple[str, str], GpuParameters]:
    return leave_one_out(_built_in().of_systems)


def _parameters(case: GpuCase) -> GpuParameters:
    return gpu_parameters(case.row.system)


def _left_key(case: GpuCase) -> tuple[str, str]:
    return case.row.system, case.row.model_path


def _of(without: dict[tuple[str, str], GpuParameters]) -> Callable[[GpuCase], GpuParameters]:
    return lambda case: without[_left_key(case)]


def _pins(not_fitted_on: GpuErrors, seen: list[GpuCase]) -> Iterator[GpuPin]:
    yield _pin("GPU rows not fitted on", not_fitted_on, (TPOT_LIMIT, TTFT_LIMIT))
    for system, limits in _FITTED_LIMITS.items():
        own = errors((case for case in seen if case.row.system == system), _parameters)
        yield _pin(f"GPU rows fitted on, {system}", own, limits)


def _pin(name: str, found: GpuErrors, limits: tuple[float, float]) -> GpuPin:
    tpot, ttft = found.tpot_median, found.ttft_median
    assert tpot is not None
    assert ttft is not None
    return GpuPin(
        name=name,
        tpot_median=tpot,
        tpot_limit=limits[0],
        ttft_median=ttft,
        ttft_limit=limits[1],
        drifted=not (tpot <= limits[0] and ttft <= limits[1]),
    )


def _groups(
    seen: list[GpuCase], others: list[GpuCase], without: dict[tuple[str, str], GpuParameters]
) -> Iterator[GpuGroupErrors]:
    for system, model in sorted({_left_key(case) for case in seen + others}, key=lambda key: key[::-1]):
        own = [[case for case in part if _left_key(case) == (system, model)] for part in (seen, others)]
        left = (system, model) in without
        yield GpuGroupErrors(
            model=model,
            system=system,
            fitted_on=errors(own[0], _parameters),
            not_fitted_on=errors(own[1], _parameters),
            model_left_out=errors(own[0] + own[1], _of(without)) if left else None,
        )


def _systems(found: list[GpuCase], fitted: Split) -> Iterator[GpuSystem]:
    rows = Counter(case.row.system for case in found)
    fitted_rows = Counter(case.row.system for case in fitted.fit)
    for system in sorted(rows | fitted_rows):
        yield GpuSystem(
            system=system,
            rows=rows[system],
            fitted_rows=fitted_rows[system],
            parameters=gpu_parameters(system)._asdict(),
        )
