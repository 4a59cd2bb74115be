"""What limits a GPU group in one decode step and in one prefill, as times at the full rates of the datasheet.

A step of b streams that each verify m tokens, and a prefill of one chunk of one prompt, take

    step    = max(weights / e_hbm, products / e_flops) + max(KV / e_hbm, attention / e_flops)
              + layers x o + b x s + exchange / e_link
    prefill = max(weights / e_hbm, products / e_flops) + attention / e_flops
              + (exchange + activations) / e_link

where the terms are those of `GpuTerms` and the six efficiencies and overheads (`GpuParameters`) belong to the
type of GPU. A layer counts as its dependent operations over the seven of a dense layer with grouped queries,
so that one overhead holds for all models; in a prefill, which no CUDA graph replays, it counts as its kernel
launches over the eleven of a dense one. Predictions of measured rows and the engine rest on this alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from agentload_simbackend._gpu_layers import dense_layers, dense_prefill_layers
from agentload_simbackend._gpu_precision import Precision
from agentload_simbackend._model import LayerKind, MixerShape, ModelShape
from agentload_simbackend._pieces import Pieces, added, line, rising, value_ns
from agentload_simbackend._specs import GpuChip


class GpuParameters(NamedTuple):
    """What is fitted for a type of GPU.

    hbm_efficiency, flops_efficiency, link_efficiency: of the datasheet's rates.
    layer_overhead_s, prefill_layer_overhead_s: fixed time of a dense layer in a decode step, in a prefill.
    stream_overhead_s: of a step for each stream of a batch.
    """

    hbm_efficiency: float
    layer_overhead_s: float
    stream_overhead_s: float
    flops_efficiency: float
    prefill_layer_overhead_s: float
    link_efficiency: float

    @classmethod
    def of(cls, chip: GpuChip) -> GpuParameters | None:
        """Those of a chip's spec; `None` if it does not state all."""
        stated = (chip.decode.stream_overhead, chip.prefill.layer_overhead, chip.nvlink_efficiency)
        return None if None in stated else cls.stated(chip)

    @classmethod
    def stated(cls, chip: GpuChip) -> GpuParameters:
        """Those of a chip's spec; what it does not state takes no time: the fixed time per layer holds it."""
        streams, prefill = chip.decode.stream_overhead, chip.prefill.layer_overhead
        return cls(
            chip.decode.hbm_efficiency.value,
            chip.decode.layer_overhead.value,
            streams.value if streams is not None else 0.0,
            chip.prefill.flops_efficiency.value,
            prefill.value if prefill is not None else 0.0,
            chip.nvlink_efficiency.value if chip.nvlink_efficiency is not None else math.inf,
        )

    def slower_s(self, reading_s: float, computing_s: float) -> float:
        """Of reading HBM and of computing, which overlap, each at the full rate: what takes longer."""
        return max(reading_s / self.hbm_efficiency, computing_s / self.flops_efficiency)


class GpuGroup(NamedTuple):
    """GPUs that serve one model together, each with its part of every matrix.

    weight_bytes: of a parameter as they store it. kv_bytes: of an element of the KV cache.
    attention_dp: groups into which they are split for attention; each has streams of its own.
    """

    chip: GpuChip
    chips: int
    weight_bytes: float
    kv_bytes: int
    attention_dp: int = 1

    @classmethod
    def of(cls, chip: GpuChip, gpus: int, attention_dp: int, precision: str) -> GpuGroup:
        """With a precision such as `w4a16` or `fp8_block`; the KV is FP8 if weights are no wider.

        Raises `ValueError` if its name is not known.
        """
        found = Precision.of(precision)
        if found is None:
            raise ValueError(f"precision {precision} is not known")
        kv_bytes = 1 if found.weight_bytes <= 1.0 else 2
        return cls(found.on(chip), gpus, found.weight_bytes, kv_bytes, attention_dp)

    @property
    def attention_tp(self) -> int:
        """GPUs that share the attention of one stream."""
        return max(self.chips // self.attention_dp, 1)

    @property
    def attention_flops(self) -> float:
        """Of one GPU, for scores and values."""
        return (self.chip.attention_flops or self.chip.bf16_flops).value

    def ways(self, mixer: MixerShape) -> int:
        """Into how many parts a stream's cache is split; all further GPUs hold copies of them."""
        return min(self.attention_tp, mixer.cache_ways)


def format_flops(chip: GpuChip, weight_bytes: float) -> float:
    """FLOP/s of a chip in the format of weights of so many bytes: 4 bit up to 0.6, 8 bit up to 1.

    A format that the chip lacks is computed in the next wider one.
    """
    if weight_bytes <= 0.6 and chip.fp4_flops is not None:
        return chip.fp4_flops.value
    if weight_bytes <= 1.0 and chip.fp8_flops is not None:
        return chip.fp8_flops.value
    return chip.bf16_flops.value


class GpuTerms(NamedTuple):
    """Seconds at the full rates, for one GPU of the group. Numbers of layers are counts, see the module."""

    layers: float
    prefill_layers: float
    streams: float
    step_weights: float
    step_products: float
    step_kv: float
    step_attention: float
    step_exchange: float
    prefill_weights: float
    prefill_products: float
    prefill_attention: float
    prefill_exchange: float

    def step_s(self, p: GpuParameters) -> float:
        """One decode step."""
        return self.step_fixed_s(p) + p.slower_s(self.step_kv, self.step_attention)

    def step_fixed_s(self, p: GpuParameters) -> float:
        """What of a decode step does not depend on the contexts."""
        products = p.slower_s(self.step_weights, self.step_products)
        fixed = self.layers * p.layer_overhead_s + self.streams * p.stream_overhead_s
        return products + fixed + self.step_exchange / p.link_efficiency

    def prefill_s(self, p: GpuParameters) -> float:
        """What the prefill of one prompt adds to the steps that it is part of."""
        products = p.slower_s(self.prefill_weights, self.prefill_products)
        attention = self.prefill_attention / p.flops_efficiency
        return products + attention + self.prefill_exchange / p.link_efficiency


class GpuModel:
    """A decoder, as a GPU group sees it."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.layers = dense_layers(shape)
        self.prefill_layers = dense_prefill_layers(shape)
        kinds = shape.kinds
        self._attention = sum(kind.count * kind.mixer.parameters for kind in kinds if kind.mixer)
        self._exchanges = sum(
            kind.count * ((kind.mixer is not None) + (kind.ffn is not None)) for kind in kinds
        )
        self._passes = sum(
            kind.count * (4 + (3 * kind.ffn.active if kind.ffn is not None else 0)) for kind in kinds
        )
        self._state_flops = shape.state_flops_per_token
        mixers = [(kind.count, kind.mixer) for kind in kinds if kind.mixer is not None]
        self._growing_flops = sum(
            count * mixer.prefill_flops_per_key for count, mixer in mixers if mixer.grows
        )
        self._window_flops = [
            (mixer.window, count * mixer.prefill_flops_per_key) for count, mixer in mixers if mixer.window
        ]

    def weights_bytes(self, group: GpuGroup) -> float:
        """Of one GPU: attention is split over its own group only, all else over all GPUs."""
        return self._split(self.shape.parameters, group)

    def stream_bytes(self, group: GpuGroup, tokens: float) -> float:
        """KV cache and states of one stream in one GPU. A GPU holds one KV head at least (latent: all)."""
        held = 0.0
        for kind in self.shape.kinds:
            if kind.mixer is None:
                continue
            seen = min(tokens, kind.mixer.window) if kind.mixer.window else tokens
            kv = seen * kind.mixer.kv_elements * group.kv_bytes
            held += kind.count * (kv + kind.mixer.state_bytes) / group.ways(kind.mixer)
        return held

    def terms(
        self, group: GpuGroup, *, batch: float = 1.0, context: float = 0.0, prompt: int = 1, tokens: int = 1
    ) -> GpuTerms:
        """For steps of `batch` streams (of the whole group) with `context` tokens each; for one prompt.

        tokens: that each stream verifies in a step.
        """
        chip, shape, gpus = group.chip, self.shape, group.chips
        bandwidth, flops = chip.hbm_bandwidth.value, gpus * format_flops(chip, group.weight_bytes)
        own, queries = batch / group.attention_dp, batch * tokens
        active = shape.active_core_parameters + shape.head.parameters
        read_s, computed_s = self.prefill_products(group, prompt)
        exchange = self._exchanges * exchange_s(shape, group)
        activations = self._passes * shape.hidden * 2 / bandwidth
        kv, attention = attention_times(shape.kinds, group, own, tokens)
        return GpuTerms(
            layers=self.layers,
            prefill_layers=self.prefill_layers,
            streams=own,
            step_weights=self._split(shape.parameters_touched(queries), group) / bandwidth,
            step_products=2 * active * queries / flops,
            step_kv=value_ns(kv, own * context) / 1e9,
            step_attention=value_ns(attention, own * context) / 1e9,
            step_exchange=own * tokens * exchange,
            prefill_weights=read_s,
            prefill_products=computed_s,
            prefill_attention=self.attention_flops(0, prompt) / (gpus * group.attention_flops),
            prefill_exchange=prompt / group.attention_dp * (exchange + activations),
        )

    def prefill_products(self, group: GpuGroup, tokens: int) -> tuple[float, float]:
        """Reading the weights that a chunk of a prompt touches, and its products."""
        weights = self.shape.parameters_touched(tokens) * group.weight_bytes
        flops = 2 * self.shape.active_core_parameters * tokens
        rate = format_flops(group.chip, group.weight_bytes)
        return weights / group.chips / group.chip.hbm_bandwidth.value, flops / (group.chips * rate)

    def attention_flops(self, cached_tokens: int, new_tokens: int) -> int:
        """FLOPs of scores, values and state updates in the prefill of new tokens after cached ones.

        Each new token attends to all before it in the layers whose cache grows, to at most a window of them
        in sliding ones.
        """
        end = cached_tokens + new_tokens
        flops = self._state_flops * new_tokens
        flops += self._growing_flops * (new_tokens * (cached_tokens + end + 1) // 2)
        for window, per_key in self._window_flops:
            flops += per_key * (_windowed(end, window) - _windowed(cached_tokens, window))
        return flops

    def _split(self, parameters: float, group: GpuGroup) -> float:
        rest = parameters - self._attention
        return (self._attention / group.attention_tp + rest / group.chips) * group.weight_bytes


def exchange_s(shape: ModelShape, group: GpuGroup) -> float:
    """One exchange of one token among the GPUs, out and back, in BF16. Nothing if NVLink is not stated."""
    if group.chips == 1 or group.chip.nvlink_bandwidth is None:
        return 0.0
    return 2 * shape.hidden * 2 * (group.chips - 1) / group.chips / group.chip.nvlink_bandwidth.value


def attention_times(
    kinds: Iterable[LayerKind], group: GpuGroup, streams: float, tokens: int
) -> tuple[Pieces, Pieces]:
    """Reading KV and states of so many streams of one attention group; scores and values of `tokens` each.

    Both at the full rates, for one GPU, by the sum of the streams' contexts, which are taken as equal. A
    step reads a stream's KV once, however many tokens it verifies; states move twice, for they are written
    back.
    """
    reading, computing = line(0.0), line(0.0)
    bandwidth, flops = group.chip.hbm_bandwidth.value, group.attention_tp * group.attention_flops
    for kind in kinds:
        mixer = kind.mixer
        if mixer is None:
            continue
        per_byte_s, per_key_s = kind.count / group.ways(mixer) / bandwidth, kind.count * tokens / flops
        if mixer.kind == "state_space":
            reading = added(reading, line(streams * 2 * mixer.state_bytes * per_byte_s))
            computing = added(computing, line(streams * mixer.flops_per_key * per_key_s))
            continue
        most_keys = streams * mixer.window if mixer.window else math.inf
        read_s = mixer.kv_elements * group.kv_bytes * per_byte_s
        reading = added(reading, rising(read_s, most_keys))
        computing = added(computing, rising(mixer.flops_per_key * per_key_s, most_keys))
    return reading, computing


def _windowed(tokens: int, window: int) -> int:
    """Keys that the first `tokens` tokens attend to in one sliding layer."""
    if tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window
