"""How long one decode step takes, as a function of the batch and its contexts.

For a given batch a step model is the largest of a few lines in the total context (each of them one thing
that may limit attention and matrix products), so between two changes of a batch the step time grows
linearly with the context, and any number of steps is one formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._specs import Decoder, Drafter, GpuChip, LpuChip, LpuDecode, LpuRack


class StepLine(NamedTuple):
    """Step time = `base_s` + `per_context_token_s` x (sum of the contexts of the batch), in seconds."""

    base_s: float
    per_context_token_s: float


class StepModel:
    """Step times of one decode replica.

    `lines_of` gives, for a batch, the lines of which the largest holds.
    """

    def __init__(self, lines_of: Callable[[int], tuple[StepLine, ...]]) -> None:
        self._lines_of = lines_of
        self._lines: dict[int, list[tuple[float, float]]] = {}

    def step(self, batch: int, context_tokens: float) -> tuple[float, float]:
        """Time of a step, and its growth per further context token, in nanoseconds.

        For `batch` streams whose contexts sum to `context_tokens`.
        """
        lines = self._lines.get(batch)
        if lines is None:
            lines = [(line.base_s * 1e9, line.per_context_token_s * 1e9) for line in self._lines_of(batch)]
            self._lines[batch] = lines
        step_ns, growth_ns = 0.0, 0.0
        for base_ns, slope_ns in lines:
            line_ns = base_ns + slope_ns * context_tokens
            if line_ns > step_ns:
                step_ns, growth_ns = line_ns, slope_ns
        return step_ns, growth_ns


def step_model(deployment: Deployment) -> StepModel:
    """The step model of the deployment's decode replicas."""
    chip, rack, decode = deployment.decode_chip, deployment.decode_rack, deployment.spec.decode
    if isinstance(chip, LpuChip) and isinstance(rack, LpuRack) and isinstance(decode, LpuDecode):
        return StepModel(lambda batch: _lpu_lines(deployment, chip, rack, decode, batch))
    assert isinstance(chip, GpuChip)
    return StepModel(lambda batch: _gpu_lines(deployment, chip, batch))


def _lpu_lines(
    deployment: Deployment, chip: LpuChip, rack: LpuRack, decode: LpuDecode, batch: int
) -> tuple[StepLine, ...]:
    """The latency sum of an LPU group (formulas: simbackend/README.md).

    T = L (phases x t_phase + t_chip) + T_gemm + T_attention + t_head
        + K (L_draft (phases x t_phase' + t_chip) + t_head) + t_host
    """
    model, n = deployment.model, decode.chips_per_replica.value
    drafts = deployment.draft_tokens
    tokens = batch * (drafts + 1)
    reach_s = rack.reach[min(size for size in rack.reach if size >= n)].value
    flops = n * chip.fp8_flops.value
    sram = n * chip.sram_bandwidth.value * chip.sram_efficiency.value

    def layers_s(layers: float, hidden: float, tokens: int) -> float:
        phase_s = reach_s + tokens * hidden * 2 / chip.c2c_bandwidth.value
        return layers * (rack.phases_per_layer.value * phase_s + decode.chip_time_per_layer.value)

    gemm_s = max(
        deployment.weights_bytes / sram,
        2 * model.parameters.value * tokens / (flops * chip.gemm_efficiency.value),
    )
    fixed_s = layers_s(model.layers.value, model.hidden.value, tokens) + gemm_s
    fixed_s += rack.head_time.value + rack.host_time.value
    if deployment.drafter is not None:
        draft_s = layers_s(deployment.drafter.layers.value, deployment.drafter.hidden.value, batch)
        fixed_s += drafts * (draft_s + rack.head_time.value)

    window = batch * model.window.value
    exps = n * chip.exp_rate.value / ((drafts + 1) * model.query_heads.value)
    fixed_s += model.sliding_layers.value * window / exps
    exp_slope_s = model.full_attention_layers.value / exps
    full, sliding = _attention_flops(model, drafts + 1)
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
    model, n = deployment.model, deployment.spec.decode.chips_per_replica.value
    drafts, kv = deployment.draft_tokens, deployment.kv
    bandwidth = n * chip.hbm_bandwidth.value * chip.decode.hbm_efficiency.value
    flops = n * chip.fp8_flops.value * chip.flops_efficiency.value
    fixed_s = model.layers.value * chip.decode.layer_overhead.value
    fixed_s += drafts * _gpu_draft_s(deployment.drafter, chip, deployment.drafter_bytes / bandwidth)
    full, sliding = _attention_flops(model, drafts + 1)
    linear = batch * (drafts + 1) * 2 * model.parameters.value
    return (
        StepLine(
            fixed_s + (deployment.weights_bytes + batch * kv.window_bytes) / bandwidth,
            kv.bytes_per_token / bandwidth,
        ),
        StepLine(fixed_s + (linear + batch * sliding * model.window.value) / flops, full / flops),
    )


def _gpu_draft_s(drafter: Drafter | None, chip: GpuChip, weights_s: float) -> float:
    if drafter is None:
        return 0.0
    return drafter.layers.value * chip.decode.layer_overhead.value + weights_s


def _attention_flops(model: Decoder, tokens: int) -> tuple[float, float]:
    """FLOPs of scores and values for `tokens` queries: per context token (full layers), per window token."""
    heads = 4 * tokens * model.query_heads.value
    full = heads * model.full_attention_layers.value * model.head_dim_full.value
    return full, heads * model.sliding_layers.value * model.head_dim_sliding.value
