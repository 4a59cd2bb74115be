"""The operation time of a group of any size, and which group it was fitted to.

Published results identify an operation time for one size of group only. A size of which a written-out
deployment of the model has its own fit takes that; others take the deployment's, or the chip's.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._load import list_deployments, load_deployment
from agentload_simbackend._model_specs import Decoder
from agentload_simbackend._quantity import Quantity
from agentload_simbackend._specs import LpuChip, LpuSide


class OperationTime(NamedTuple):
    """An operation time; `lpus`, `model`: of the group that it was fitted to (`None`: none is known)."""

    quantity: Quantity
    lpus: int | None
    model: str | None


class _Fit(NamedTuple):
    quantity: Quantity
    lpus: int
    model: Decoder


def operation_time(deployment: Deployment, lpus: int) -> OperationTime:
    """That of a group of `lpus` chips of such a deployment."""
    side, chip = deployment.spec.decode, deployment.decode_chip
    assert isinstance(side, LpuSide)
    assert isinstance(chip, LpuChip)
    own_lpus, fits = side.chips_per_replica.whole, _fits(chip.name)
    used = side.operation_time or chip.operation_time
    if lpus != own_lpus:
        for fit in fits:
            if fit.lpus == lpus and fit.model == deployment.model:
                used = fit.quantity
    if used.kind != "fitted":
        return OperationTime(used, None, None)
    # A value that was taken over was fitted where it comes from.
    equal = [fit for fit in fits if fit.quantity.value == used.value]
    here = [fit for fit in equal if fit.lpus == own_lpus and fit.model == deployment.model]
    for fit in here + equal:
        return OperationTime(used, fit.lpus, fit.model.name)
    if side.operation_time is None:
        return OperationTime(used, None, None)
    return OperationTime(used, own_lpus, deployment.model.name)


@cache
def _fits(chip: str) -> list[_Fit]:
    """What written-out deployments on a chip of that name have been fitted to."""
    fits = []
    for deployment in map(load_deployment, list_deployments()):
        side = deployment.spec.decode
        time = side.operation_time if isinstance(side, LpuSide) else None
        if time is not None and time.kind == "fitted" and deployment.decode_chip.name == chip:
            fits.append(_Fit(time, side.chips_per_replica.whole, deployment.model))
    return fits
