"""Rubin and Blackwell alone: decode, prefill and hand-off, as published or worked out on paper."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agentload_simbackend._fidelity_row import PAPER, VLLM_PR, FidelityRow, fidelity_row
from agentload_simbackend._gpu_rows import gpu_chip
from agentload_simbackend._gpu_step import gpu_drafts_s, gpu_step
from agentload_simbackend._gpu_terms import GpuGroup
from agentload_simbackend._load import load_deployment
from agentload_simbackend._pieces import value_ns
from agentload_simbackend._prefill_time import PrefillModel
from agentload_simbackend._quantity import Quantity
from agentload_simbackend._specs import GpuChip
from agentload_simbackend._step_time import link_bytes_per_s

_RUBIN_ONLY = (
    (19.2e12, 65e-6, 1, ((168, 161), (478, 465)), (0.03, 0.03)),
    (19.2e12, 65e-6, 8, ((240, 239), (615, 613)), (0.05, 0.06)),
    (22e12, 12e-6, 1, ((398, 368), (1242, 1164)), (0.03, 0.04)),
    (22e12, 12e-6, 8, ((1059, 1031), (2509, 2467)), (0.08, 0.16)),
)
"""Bandwidth, overhead, GPUs; tokens/s without and with MTP (K = 7) at 10K and 100K; the largest errors.

The paper has neither exchanges nor copies of KV heads, and 40 us more for each draft token. That weighs most
where the rest is fast.
"""

_AL_ON_PAPER = 3.86
_B300 = (("BF16", 2.0, 5.37, 305), ("NVFP4", 0.5625, 5.19, 350))
_PREFILL_MS = {10_000: (104, 52, 26, 13), 100_000: (1520, 760, 380, 190)}
_GPUS = (1, 2, 4, 8)
_PREFILL_TOLERANCE = 0.01
_HANDOFF_TOLERANCE = 0.1
"""Published with one digit."""

_HANDOFF_MS = ((10_000, 0, 0.3), (100_000, 0, 1.8), (2_000, 100_000, 0.03))


def rubin_rows() -> Iterator[FidelityRow]:
    """Decode, prefill and hand-off."""
    yield from _rubin_only()
    yield from _b300()
    yield from _prefill()
    yield from _handoff()


def _rubin_only() -> Iterator[FidelityRow]:
    chip = load_deployment("gemma4-31b/rubin").decode_chip
    assert isinstance(chip, GpuChip)
    for bandwidth, overhead_s, gpus, published, tolerances in _RUBIN_ONLY:
        changed = _changed(chip, bandwidth, overhead_s)
        for drafts, pair, tolerance in zip((0, 7), published, tolerances, strict=True):
            for context, speed in zip((10_000, 100_000), pair, strict=True):
                tokens = _AL_ON_PAPER if drafts else 1.0
                step_s = _gemma_step_s(GpuGroup(changed, gpus, 1.0, 1), drafts, context)
                yield fidelity_row(
                    f"Rubin alone, TP{gpus}, {context // 1000}K, {'MTP' if drafts else 'no speculation'}, "
                    f"o = {overhead_s * 1e6:.0f} us",
                    speed,
                    tokens / step_s,
                    "tokens/s",
                    "paper",
                    f"one stream, {bandwidth / 1e12:g} TB/s; overhead {overhead_s * 1e6:.0f} us a layer",
                    PAPER,
                    tolerance=tolerance,
                )


def _b300() -> Iterator[FidelityRow]:
    chip = gpu_chip("b300_sxm")
    assert chip is not None
    for name, weight_bytes, tokens, speed in _B300:
        step_s = _gemma_step_s(GpuGroup(chip, 1, weight_bytes, 1), 7, 251 + 262)
        yield fidelity_row(
            f"Gemma 4 31B with MTP on one B300, {name}",
            speed,
            tokens / step_s,
            "tokens/s",
            "predicted",
            f"concurrency 1, SPEED-Bench coding, K = 7, acceptance length {tokens} as measured; "
            "parameters of the B200",
            VLLM_PR,
        )


def _gemma_step_s(group: GpuGroup, drafts: int, context: int) -> float:
    deployment = load_deployment("gemma4-31b/rubin")
    drafter = deployment.drafter
    assert drafter is not None
    step_s = value_ns(gpu_step(deployment.shape, group, batch=1, tokens=drafts + 1), context) / 1e9
    return step_s + (gpu_drafts_s(drafter, group, drafts) if drafts else 0.0)


def _changed(chip: GpuChip, bandwidth: float, overhead_s: float) -> GpuChip:
    def given(quantity: Quantity, value: float) -> Quantity:
        return msgspec.structs.replace(quantity, value=value)

    decode = msgspec.structs.replace(
        chip.decode, layer_overhead=given(chip.decode.layer_overhead, overhead_s)
    )
    return msgspec.structs.replace(chip, hbm_bandwidth=given(chip.hbm_bandwidth, bandwidth), decode=decode)


def _prefill() -> Iterator[FidelityRow]:
    deployment = load_deployment("gemma4-31b/rubin")
    chip = deployment.prefill_chip
    assert chip is not None
    for tokens, times in _PREFILL_MS.items():
        for gpus, published in zip(_GPUS, times, strict=True):
            model = PrefillModel(deployment.shape, GpuGroup(chip, gpus, 1.0, 1))
            yield fidelity_row(
                f"prefill of {tokens // 1000}K on {gpus} Rubin",
                published,
                model.compute_s(0, tokens) * 1e3,
                "ms",
                "paper",
                "Gemma 4 31B, FP8, without the constant of 30 ms",
                PAPER,
                tolerance=_PREFILL_TOLERANCE,
            )


def _handoff() -> Iterator[FidelityRow]:
    deployment = load_deployment("gemma4-31b/pd-1replica")
    assert deployment.link is not None
    rate, kv = (
        link_bytes_per_s(deployment.link, deployment.spec.decode.chips_per_replica.whole),
        deployment.kv,
    )
    for tokens, cached, published in _HANDOFF_MS:
        sent = kv.transfer_bytes(tokens, kv.window_tokens if not cached else 0)
        yield fidelity_row(
            f"hand-off of {tokens // 1000}K tokens" + (f" after {cached // 1000}K" if cached else ""),
            published,
            sent / rate * 1e3,
            "ms",
            "paper",
            f"Gemma 4 31B, FP8 KV, {rate / 1e12:.3g} TB/s" + (", without the window" if cached else ""),
            PAPER,
            tolerance=_HANDOFF_TOLERANCE,
        )
