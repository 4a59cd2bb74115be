"""Which numbers a deployment rests on: those of all its files but what others take the place of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentload_simbackend._gpu_terms import format_flops
from agentload_simbackend._quantity import Number, numbers_of
from agentload_simbackend._specs import GpuChip, LpuRack, LpuSide

if TYPE_CHECKING:
    from agentload_simbackend._deployment import Deployment


def used_numbers(deployment: Deployment) -> Iterator[Number]:
    """Every number that the deployment's behaviour rests on."""
    unused = tuple(_unused(deployment))
    exact = {path for path in unused if not path.endswith(".")}
    prefixes = tuple(path for path in unused if path.endswith("."))
    for number in _all_numbers(deployment):
        if number.path not in exact and not number.path.startswith(prefixes):
            yield number


def _all_numbers(deployment: Deployment) -> Iterator[Number]:
    yield from numbers_of(deployment.spec, "")
    for path, spec in (
        ("model", deployment.model),
        ("drafter", deployment.drafter),
        ("link", deployment.link),
        ("split_link", deployment.split_link),
        ("prefill.rack", deployment.prefill_rack),
        ("prefill.chip", deployment.prefill_chip),
        ("decode.rack", deployment.decode_rack),
        ("decode.chip", deployment.decode_chip),
        ("draft.rack", deployment.draft_rack),
        ("draft.chip", deployment.draft_chip),
    ):
        if spec is not None:
            yield from numbers_of(spec, path)


def _unused(deployment: Deployment) -> Iterator[str]:
    """Paths of numbers that nothing rests on; those of a whole table end in a dot."""
    spec, speculation = deployment.spec, deployment.spec.speculation
    if speculation is not None:
        yield from (
            f"speculation.acceptance_length.{content}"
            for content in speculation.acceptance_length
            if content != speculation.content
        )
    if not deployment.drafter_reads_target:
        yield "attention.draft_crossings"
    if spec.router.kv_policy != "keep":
        yield "router.keep_time"
    if spec.spill is None:
        yield "router.spill_after"
    if spec.weight_bytes is not None:
        yield "model.weight_bytes"
    decode, draft = spec.decode, spec.draft.lpus if spec.draft is not None else None
    for name, side, rack in (
        ("decode", decode, deployment.decode_rack),
        ("draft", draft, deployment.draft_rack),
    ):
        if isinstance(side, LpuSide) and isinstance(rack, LpuRack):
            yield from _unused_of_lpus(name, side, rack)
    yield from _unused_of_cpus(deployment)
    yield from _unused_of_prefill(deployment)
    if isinstance(deployment.decode_chip, GpuChip):
        yield from _unused_formats(deployment, "decode", deployment.decode_chip)
        # Only a prefill pool has a host cache; without one the decode side prefills too.
        yield from ("decode.chip.host_memory", "decode.chip.host_bandwidth")
        if spec.prefill is not None:
            yield "decode.chip.prefill."


def _unused_of_lpus(name: str, side: LpuSide, rack: LpuRack) -> Iterator[str]:
    if side.operation_time is not None:
        yield f"{name}.chip.operation_time"
    used = min((size for size in rack.reach if size >= side.chips_per_replica.whole), default=0)
    yield from (f"{name}.rack.reach.{size}" for size in rack.reach if size != used)


def _unused_of_cpus(deployment: Deployment) -> Iterator[str]:
    """Tools run on one rack's CPUs, in `tool_slots` if those are stated."""
    if deployment.spec.tool_slots is not None:
        yield "prefill.rack.cpu_pool."
    if deployment.spec.tool_slots is not None or deployment.prefill_rack is not None:
        yield "decode.rack.cpu_pool."


def _unused_of_prefill(deployment: Deployment) -> Iterator[str]:
    """Of the chip that prefills: what only attention, spilling or a decode side would use."""
    spec, chip = deployment.spec, deployment.prefill_chip
    if chip is None:
        return
    yield from _unused_formats(deployment, "prefill", chip)
    decodes = spec.attention is not None or spec.spill is not None
    if not decodes and chip.prefill.layer_overhead is None:
        # Then `prefill.flops_efficiency` holds the exchanges of a prefill.
        yield from ("prefill.chip.nvlink_bandwidth", "prefill.chip.nvlink_efficiency")
    if chip.prefill.layer_overhead is not None:
        yield "prefill.chip.prefill.latency"
    if spec.spill is None:
        # Not the efficiency: a chunk of a prompt, and attention, read HBM at the rate that decode reaches.
        yield from ("prefill.chip.decode.layer_overhead", "prefill.chip.decode.stream_overhead")


def _unused_formats(deployment: Deployment, side: str, chip: GpuChip) -> Iterator[str]:
    """Rates of the formats that neither the weights nor scores and values are computed in."""
    products = format_flops(chip, deployment.stored_bytes(chip))
    for key in ("fp4_flops", "fp8_flops", "bf16_flops"):
        rate = getattr(chip, key)
        scores = key == "bf16_flops" and chip.attention_flops is None
        if rate is not None and rate.value != products and not scores:
            yield f"{side}.chip.{key}"
