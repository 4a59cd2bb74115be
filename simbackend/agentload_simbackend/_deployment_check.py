"""Whether the parts of a deployment go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from agentload_simbackend._api import LatencyClass
from agentload_simbackend._fit import check_fit
from agentload_simbackend._specs import DeploymentSpec, GpuSide, LpuRack, LpuSide, Mode
from agentload_traces import SpecError, printable

if TYPE_CHECKING:
    from agentload_simbackend._deployment import Deployment

_DECODES: dict[Mode, str] = {"rubin": "gpu", "lpx": "lpu", "pd": "lpu", "afd": "lpu", "drafter": "gpu"}

_NEEDED: dict[Mode, tuple[str, ...]] = {
    "rubin": (),
    "lpx": (),
    "pd": ("prefill", "link"),
    "afd": ("prefill", "link", "attention", "split_link"),
    "drafter": ("draft", "split_link", "speculation"),
}

_ALLOWED: dict[Mode, tuple[str, ...]] = {
    "rubin": ("prefill", "link", "speculation"),
    "lpx": ("speculation",),
    "pd": ("spill", "speculation"),
    "afd": ("speculation",),
    "drafter": ("prefill", "link"),
}

_MOST_RACKS = 1_000

_PARTS = ("prefill", "link", "split_link", "attention", "draft", "spill", "speculation")


def check_deployment(deployment: Deployment, where: str) -> None:
    """Raise `SpecError` if the parts do not fit together; `where` is the deployment's file."""
    spec = deployment.spec
    _check_parts(spec, where)
    _check_router(spec, where)
    _check_racks(spec, where)
    _check_gpus(deployment, where)
    _check_lpus(deployment, where)
    _check_speculation(deployment, where)
    crossings = spec.attention.draft_crossings if spec.attention is not None else None
    if crossings is not None and crossings.value and not deployment.drafter_reads_target:
        raise SpecError(
            f"{where}: attention.draft_crossings is {crossings.whole}, must be 0: "
            "no drafter reads the target's KV"
        )
    if spec.mode == "afd" and not deployment.shape.growing_layers:
        raise SpecError(
            f"{where}: model: no layer of {printable(spec.model)} has what mode "
            '"afd" splits off, full attention'
        )
    check_fit(deployment, where)


def _check_parts(spec: DeploymentSpec, where: str) -> None:
    """Each mode has its parts, and none that it would not use."""
    found = "lpu" if isinstance(spec.decode, LpuSide) else "gpu"
    if found != _DECODES[spec.mode]:
        raise SpecError(
            f'{where}: decode.type is "{found}", must be "{_DECODES[spec.mode]}" in mode "{spec.mode}"'
        )
    for part in _PARTS:
        there = getattr(spec, part) is not None
        if not there and part in _NEEDED[spec.mode]:
            raise SpecError(f'{where}: {part}: missing, mode "{spec.mode}" needs it')
        if there and part not in _NEEDED[spec.mode] + _ALLOWED[spec.mode]:
            raise SpecError(f'{where}: {part}: mode "{spec.mode}" has none, leave it out')
    if (spec.prefill is None) != (spec.link is None):
        missing, there_is = ("link", "prefill") if spec.link is None else ("prefill", "link")
        raise SpecError(f"{where}: {missing}: missing, needed with {there_is}")
    if isinstance(spec.decode, LpuSide) and (spec.decode.prefill_chunk is None) == (spec.mode == "lpx"):
        said = (
            "missing, the LPUs prefill too" if spec.mode == "lpx" else "leave it out, the LPUs do not prefill"
        )
        raise SpecError(f'{where}: decode.prefill_chunk: {said} in mode "{spec.mode}"')
    if spec.draft is not None and spec.draft.lpus.prefill_chunk is not None:
        raise SpecError(f"{where}: draft.lpus.prefill_chunk: leave it out, a drafter does not prefill")


def _check_router(spec: DeploymentSpec, where: str) -> None:
    classes = get_args(LatencyClass)
    for name in spec.router.allowance:
        if name not in classes:
            raise SpecError(
                f"{where}: router.allowance.{printable(name)}: unknown latency class, "
                f"must be one of {', '.join(classes)}"
            )
    for name in classes:
        if name not in spec.router.allowance:
            raise SpecError(f"{where}: router.allowance.{name}: missing")


def _check_racks(spec: DeploymentSpec, where: str) -> None:
    """Sides that the spec gives a rack of their own, though they share the prefill side's."""
    sides = {"decode": spec.decode if isinstance(spec.decode, GpuSide) else None, "spill": spec.spill}
    for side, gpus in sides.items():
        if spec.prefill is not None and gpus is not None and gpus.rack != spec.prefill.rack:
            raise SpecError(
                f'{where}: {side}.rack is "{printable(gpus.rack)}", '
                f'must be the prefill rack in mode "{spec.mode}"'
            )


def _check_gpus(deployment: Deployment, where: str) -> None:
    spec = deployment.spec
    takes = {}
    if spec.prefill is not None:
        takes["prefill"] = spec.prefill.gpus_per_instance.whole * spec.prefill.instances.whole
    if isinstance(spec.decode, GpuSide):
        takes["decode"] = spec.decode.chips_per_replica.whole * spec.decode.replicas.whole
    if spec.attention is not None:
        takes["attention"] = spec.attention.gpus_per_replica.whole * spec.decode.replicas.whole
    if spec.spill is not None:
        takes["spill"] = spec.spill.chips_per_replica.whole * spec.spill.replicas.whole
    rack = deployment.decode_rack if isinstance(spec.decode, GpuSide) else deployment.prefill_rack
    if rack is not None and sum(takes.values()) > rack.chips.whole:
        parts = " + ".join(f"{side} {chips:,}" for side, chips in takes.items())
        verb = "take" if len(takes) > 1 else "takes"
        raise SpecError(
            f"{where}: {' and '.join(takes)} {verb} {sum(takes.values()):,} chips ({parts}), "
            f"but {printable(rack.name)} has {rack.chips.whole:,}"
        )


def _check_lpus(deployment: Deployment, where: str) -> None:
    spec = deployment.spec
    if isinstance(spec.decode, LpuSide) and isinstance(deployment.decode_rack, LpuRack):
        _check_lpu_side(spec.decode, deployment.decode_rack, "decode", where)
    if spec.draft is not None and deployment.draft_rack is not None:
        _check_lpu_side(spec.draft.lpus, deployment.draft_rack, "draft.lpus", where)
        drafts, decodes = spec.draft.lpus.replicas.whole, spec.decode.replicas.whole
        if drafts != decodes:
            raise SpecError(
                f"{where}: draft.lpus.replicas is {drafts:,}, must be decode.replicas, {decodes:,}: "
                "each has a drafter of its own"
            )


def _check_lpu_side(side: LpuSide, rack: LpuRack, key: str, where: str) -> None:
    if side.racks.whole > _MOST_RACKS:
        raise SpecError(f"{where}: {key}.racks is {side.racks.whole:,}, must be at most {_MOST_RACKS:,}")
    takes = side.chips_per_replica.whole * side.replicas.whole
    there = rack.chips.whole * side.racks.whole
    if takes > there:
        raise SpecError(
            f"{where}: {key} takes {takes:,} chips ({side.replicas.whole:,} x chips_per_replica of "
            f"{side.chips_per_replica.whole:,}), but {side.racks.whole:,} x {printable(rack.name)} "
            f"{'has' if side.racks.whole == 1 else 'have'} {there:,}: {key}.racks must be "
            f"{-(-takes // rack.chips.whole):,}, or the groups smaller"
        )
    largest = max(rack.reach)
    if side.chips_per_replica.whole > largest:
        raise SpecError(
            f"{where}: {key}.chips_per_replica: {printable(rack.name)} has no reach latency for "
            f"a group of {side.chips_per_replica.whole:,}; its table ends at {largest:,}"
        )


def _check_speculation(deployment: Deployment, where: str) -> None:
    spec, speculation = deployment.spec, deployment.spec.speculation
    if speculation is None:
        return
    lengths = speculation.acceptance_length
    if speculation.content not in lengths:
        classes = ", ".join(printable(content) for content in lengths)
        raise SpecError(
            f'{where}: speculation.content is "{printable(speculation.content)}", '
            f"must be one of {classes or 'the acceptance_length tables (there are none)'}"
        )
    most = speculation.draft_tokens.whole + 1
    for content, length in lengths.items():
        if length.value > most:
            raise SpecError(
                f"{where}: speculation.acceptance_length.{printable(content)}: value is {length.value:g}, "
                f"but a step yields at most draft_tokens + 1 = {most}"
            )
    if spec.mode == "drafter" and not deployment.drafter_kv_bytes_per_token:
        raise SpecError(
            f"{where}: speculation.drafter: {printable(speculation.drafter)} reads the target's KV, but "
            'in mode "drafter" each rack keeps its own model\'s; name a drafter with KV of its own'
        )
