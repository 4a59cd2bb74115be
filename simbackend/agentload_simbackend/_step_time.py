"""How long one decode step takes, as a function of the batch and its contexts.

For a given batch a step model is the largest of a few lines in the total context (each of them one thing
that may limit attention and matrix products). So between two changes of a batch the step time grows
linearly with the context, but for the points at which another line becomes the largest; a step model tells
the next of them, and any number of steps up to there is one formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Drafter
from agentload_simbackend._specs import GpuChip, LpuChip, LpuRack, LpuSide


class StepLine(NamedTuple):
    """Step time = `base_s` + `per_context_token_s` x (sum of the contexts of the batch), in seconds."""

    base_s: float
    per_context_token_s: float


StepTime = tuple[float, float, float]
"""Time of a step now, its growth per further token of context (both in ns), and the total context from which
another line is the largest (infinite if none ever is)."""


class StepModel:
    """Step times of one decode replica.

    `lines_of` gives, for a batch, the lines of which the largest holds.
    """

    def __init__(self, lines_of: Callable[[int], tuple[StepLine, ...]]) -> None:
        self._lines_of = lines_of
        self._pieces: dict[int, list[StepTime]] = {}

    def step(self, batch: int, context_tokens: float) -> StepTime:
        """Time of a step of `batch` streams whose contexts sum to `context_tokens`."""
        pieces = self._pieces.get(batch)
        if pieces is None:
            pieces = self._pieces[batch] = _largest(self._lines_of(batch))
        for base_ns, growth_ns, until_tokens in pieces:
            if context_tokens < until_tokens:
                return base_ns + growth_ns * context_tokens, growth_ns, until_tokens
        raise AssertionError("the last piece has no end")


def _largest(lines: tuple[StepLine, ...]) -> list[StepTime]:
    """Where which line is the largest: its time at context 0 and growth in ns, and up to which context."""
    left = [(line.per_context_token_s * 1e9, line.base_s * 1e9) for line in lines]
    growth_ns, base_ns = max(left, key=lambda line: (line[1], line[0]))
    pieces: list[StepTime] = []
    while left := [line for line in left if line[0] > growth_ns]:
        crossings = [((base_ns - base) / (growth - growth_ns), growth, base) for growth, base in left]
        until_tokens = min(crossings)[0]
        pieces.append((base_ns, growth_ns, until_tokens))
        _, growth_ns, base_ns = max(each for each in crossings if each[0] == until_tokens)
    return [*pieces, (base_ns, growth_ns, math.inf)]


def step_model(deployment: Deployment) -> StepModel:
    """The step model of the deployment's decode replicas."""
    chip, rack, decode = deployment.decode_chip, deployment.decode_rack, deployment.spec.decode
    if isinstance(chip, LpuChip) and isinstance(rack, LpuRack) and isinstance(decode, LpuSide):
        return StepModel(lambda batch: _lpu_lines(deployment, chip, rack, decode, batch))
    assert isinstance(chip, GpuChip)
    return StepModel(lambda batch: _gpu_lines(deployment, chip, batch))


def _lpu_lines(
    deployment: Deployment, chip: LpuChip, rack: LpuRack, decode: LpuSide, batch: int
) -> tuple[StepLine, ...]:
    """The latency sum of an LPU group (formulas: simbackend/README.md).

    T = L (phases x t_phase + t_chip) + T_gemm + T_attention + t_head
        + K (L_draft (phases x t_phase' + t_chip) + t_head) + t_host
    """
    model, shape, n = deployment.model, deployment.shape, decode.chips_per_replica.value
    operation_s = (decode.operation_time or chip.operation_time).value
    weights_bytes = deployment.weights_bytes(chip)
    drafts = deployment.draft_tokens
    tokens = batch * (drafts + 1)
    reach_s = rack.reach[min(size for size in rack.reach if size >= n)].value
    flops = n * chip.fp8_flops.value
    sram = n * chip.sram_bandwidth.value * chip.sram_efficiency.value

    def layers_s(layers: float, hidden: float, tokens: int) -> float:
        phase_s = reach_s + tokens * hidden * 2 / chip.c2c_bandwidth.value
        return layers * (6 * phase_s + 20 * operation_s)

    gemm_s = max(
        weights_bytes / sram,
        2 * model.parameters.value * tokens / (flops * chip.gemm_efficiency.value),
    )
    fixed_s = layers_s(shape.layers, shape.hidden, tokens) + gemm_s
    fixed_s += rack.head_time.value + rack.host_time.value
    if deployment.drafter is not None:
        draft_s = layers_s(deployment.drafter.layers.value, deployment.drafter.hidden.value, batch)
        fixed_s += drafts * (draft_s + rack.head_time.value)

    window = batch * shape.window_tokens
    exps = n * chip.exp_rate.value / (drafts + 1)
    window_exps = sum(
        kind.count * kind.mixer.exps_per_key for kind in shape.kinds if kind.mixer and kind.mixer.window
    )
    full_exps = sum(
        kind.count * kind.mixer.exps_per_key for kind in shape.kinds if kind.mixer and kind.mixer.grows
    )
    fixed_s += window_exps * window / exps
    exp_slope_s = full_exps / exps
    full, sliding = _attention_flops(shape, drafts + 1)
    attention = flops * chip.attention_efficiency.value
    kv = deployment.kv
    return (
        StepLine(fixed_s + sliding * window / attention, exp_slope_s + full / attention),
        StepLine(fixed_s + batch * kv.window_bytes / sram, exp_slope_s + kv.bytes_per_token / sram),
    )


def _gpu_lines(deployment: Deployment, chip: GpuChip, batch: int) -> tuple[StepLine, ...]:
    """Roofline and a fixed time per layer of a GPU group.

    T = max((weights + KV) / bandwidth, FLOPs / rate) + L x overhead
        + K (L_draft x overhead + drafter weights / bandwidth)
    """
    model, shape, n = deployment.model, deployment.shape, deployment.spec.decode.chips_per_replica.value
    weights_bytes = deployment.weights_bytes(chip)
    drafts, kv = deployment.draft_tokens, deployment.kv
    bandwidth = n * chip.hbm_bandwidth.value * chip.decode.hbm_efficiency.value
    flops = n * (chip.fp8_flops or chip.bf16_flops).value * chip.prefill.flops_efficiency.value
    fixed_s = shape.layers * chip.decode.layer_overhead.value
    fixed_s += drafts * _gpu_draft_s(deployment.drafter, chip, deployment.drafter_bytes(chip) / bandwidth)
    full, sliding = _attention_flops(shape, drafts + 1)
    linear = batch * (drafts + 1) * 2 * model.parameters.value
    return (
        StepLine(
            fixed_s + (weights_bytes + batch * kv.window_bytes) / bandwidth,
            kv.bytes_per_token / bandwidth,
        ),
        StepLine(fixed_s + (linear + batch * sliding * shape.window_tokens) / flops, full / flops),
    )


def _gpu_draft_s(drafter: Drafter | None, chip: GpuChip, weights_s: float) -> float:
    if drafter is None:
        return 0.0
    return drafter.layers.value * chip.decode.layer_overhead.value + weights_s


def _attention_flops(shape: ModelShape, tokens: int) -> tuple[float, float]:
    """FLOPs of scores and values for `tokens` queries: per context token (full layers), per window token."""
    return tokens * shape.flops_per_key, tokens * shape.window_flops_per_key
