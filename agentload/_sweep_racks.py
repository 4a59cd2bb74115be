"""How many racks a deployment takes."""

from __future__ import annotations

from collections import Counter

from agentload_simbackend import Deployment
from agentload_simbackend._specs import LpuSide

HOW_COUNTED = (
    "racks: every rack of which the deployment uses a chip counts whole: GPUs of all its parts together over"
    " the GPUs of a rack, rounded up, and each LPX rack that it names"
)


def racks_of(deployment: Deployment) -> dict[str, int]:
    """Racks by their spec's name; see `HOW_COUNTED`."""
    spec = deployment.spec
    gpus: Counter[str] = Counter()
    racks: Counter[str] = Counter()
    if spec.prefill is not None:
        gpus[spec.prefill.rack] += spec.prefill.gpus_per_instance.whole * spec.prefill.instances.whole
    decode = spec.decode
    for side in (decode, spec.spill, spec.draft.lpus if spec.draft is not None else None):
        if side is None:
            continue
        if isinstance(side, LpuSide):
            racks[side.rack] += side.racks.whole
        else:
            gpus[side.rack] += side.chips_per_replica.whole * side.replicas.whole
    if spec.attention is not None and spec.prefill is not None:
        gpus[spec.prefill.rack] += spec.attention.gpus_per_replica.whole * decode.replicas.whole
    for rack, chips in gpus.items():
        racks[rack] += -(-chips // _chips_of(deployment, rack))
    return dict(racks)


def _chips_of(deployment: Deployment, rack: str) -> int:
    for name, found in (
        (deployment.spec.prefill.rack if deployment.spec.prefill else None, deployment.prefill_rack),
        (deployment.spec.decode.rack, deployment.decode_rack),
    ):
        if name == rack and found is not None:
            return found.chips.whole
    raise AssertionError(f"{deployment.name} names no rack {rack}")
