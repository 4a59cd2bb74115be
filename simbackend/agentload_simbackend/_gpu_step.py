"""One decode step of a group of GPUs, by the terms of `_gpu_terms`, as a function of the summed context."""

from __future__ import annotations

from collections.abc import Iterable

from agentload_simbackend._gpu_terms import (
    GpuGroup,
    GpuModel,
    GpuParameters,
    attention_times,
    exchange_s,
    format_flops,
)
from agentload_simbackend._model import LayerKind, ModelShape
from agentload_simbackend._model_specs import Drafter
from agentload_simbackend._pieces import Pieces, added, largest, line, scaled


def gpu_step(shape: ModelShape, group: GpuGroup, *, batch: int, tokens: int) -> Pieces:
    """A step of `batch` streams that each verify `tokens` tokens: `GpuTerms.step_s` at all contexts."""
    fixed_s = GpuModel(shape).terms(group, batch=batch, tokens=tokens).step_fixed_s(_parameters(group))
    return added(line(fixed_s), _attention(shape.kinds, group, batch / group.attention_dp, tokens))


def gpu_mixers(shape: ModelShape, group: GpuGroup, *, batch: int, tokens: int) -> Pieces:
    """What of such a step is in the mixers whose cache grows, without its fixed times."""
    p, chip = _parameters(group), group.chip
    kinds = [kind for kind in shape.kinds if kind.mixer is not None and kind.mixer.grows]
    own = batch / group.attention_dp
    parameters, queries = shape.growing_mixer_parameters / group.attention_tp, own * tokens
    reading_s = parameters * group.weight_bytes / chip.hbm_bandwidth.value
    products_s = p.slower_s(reading_s, 2 * parameters * queries / format_flops(chip, group.weight_bytes))
    exchanges_s = shape.growing_layers * queries * exchange_s(shape, group) / p.link_efficiency
    return added(line(products_s + exchanges_s), _attention(kinds, group, own, tokens))


def gpu_drafts_s(drafter: Drafter, group: GpuGroup, draft_tokens: int) -> float:
    """Time of K draft tokens one after the other: K (layers x overhead + drafter weights / bandwidth)."""
    p = _parameters(group)
    bytes_per_s = group.chips * group.chip.hbm_bandwidth.value * p.hbm_efficiency
    overhead_s = drafter.layers.value * p.layer_overhead_s
    return draft_tokens * (overhead_s + drafter.parameters.value * group.weight_bytes / bytes_per_s)


def _attention(kinds: Iterable[LayerKind], group: GpuGroup, streams: float, tokens: int) -> Pieces:
    """`GpuParameters.slower_s` of reading KV and computing, at all contexts."""
    p = _parameters(group)
    kv, scores = attention_times(kinds, group, streams, tokens)
    return largest(scaled(kv, 1 / p.hbm_efficiency), scaled(scores, 1 / p.flops_efficiency))


def _parameters(group: GpuGroup) -> GpuParameters:
    return GpuParameters.stated(group.chip)
