"""The shapes of the spec files: chips, racks, links, models, deployments.

Every number is a `Quantity`; names of other files are plain strings. A spec's `sources` gives short names
for the sources of its numbers; the loader puts the whole text into each number.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from agentload_simbackend._quantity import (
    Bytes,
    BytesPerElement,
    BytesPerParameter,
    BytesPerSecond,
    Count,
    CountOrZero,
    DraftTokens,
    Flops,
    Fraction,
    PerSecond,
    Seconds,
    Spread,
    Tokens,
    TokensPerStep,
)

Mode = Literal["pd", "rubin"]
"""Who does what. pd: Rubin prefills, LPX decodes. rubin: an NVL72 alone."""


class LpuChip(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lpu"
):
    """A chip that computes from SRAM. `c2c_bandwidth` is usable and per direction; `exp_rate` is
    exponentials (softmax) a second."""

    name: str
    sram: Bytes
    sram_bandwidth: BytesPerSecond
    fp8_flops: Flops
    c2c_bandwidth: BytesPerSecond
    exp_rate: PerSecond
    sram_efficiency: Fraction
    gemm_efficiency: Fraction
    attention_efficiency: Fraction


class GpuPrefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU's prefill has beside its FLOPs: a constant latency."""

    latency: Seconds


class GpuDecode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU's decode has: the part of HBM bandwidth it reaches, and a fixed time per layer."""

    hbm_efficiency: Fraction
    layer_overhead: Seconds


class GpuChip(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="gpu"
):
    """A chip that computes from HBM. `flops_efficiency` is the MFU of large matrix products."""

    name: str
    hbm: Bytes
    hbm_bandwidth: BytesPerSecond
    fp8_flops: Flops
    flops_efficiency: Fraction
    prefill: GpuPrefill
    decode: GpuDecode


class LpuRack(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lpu"
):
    """A rack of LPUs. `reach` gives the SRAM-to-SRAM latency of a group of at most so many chips."""

    name: str
    chip: str
    chips: Count
    reach: dict[int, Seconds]
    phases_per_layer: Count
    head_time: Seconds
    host_time: Seconds


class GpuRack(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="gpu"
):
    """A rack of GPUs in one NVLink domain."""

    name: str
    chip: str
    chips: Count


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a KV hand-off crosses; a group of n receiving chips has n times `bandwidth_per_chip`."""

    name: str
    bandwidth_per_chip: BytesPerSecond
    efficiency: Fraction
    latency: Seconds


class Decoder(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="decoder"
):
    """A dense decoder whose layers attend to everything (full) or to a window (sliding)."""

    name: str
    layers: Count
    full_attention_layers: CountOrZero
    sliding_layers: CountOrZero
    hidden: Count
    query_heads: Count
    kv_heads_full: Count
    head_dim_full: Count
    kv_heads_sliding: Count
    head_dim_sliding: Count
    window: Tokens
    max_context: Tokens
    parameters: Count
    embedding_parameters: CountOrZero


class Drafter(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="drafter"
):
    """A draft model that reads the target's KV cache and keeps none of its own."""

    name: str
    layers: Count
    hidden: Count
    parameters: Count


class PrefillSide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prefill pool: so many groups of GPUs that share one prefix cache in their HBM."""

    rack: str
    gpus_per_instance: Count
    instances: Count
    usable_memory: Fraction
    cache_block: Tokens


class LpuDecode(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lpu"
):
    """Decode from SRAM: `replicas` copies of the weights, each over a tensor-parallel group."""

    rack: str
    chips_per_replica: Count
    replicas: Count
    usable_memory: Fraction
    chip_time_per_layer: Seconds


class GpuDecodeSide(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="gpu"
):
    """Decode from HBM: `replicas` copies of the weights, each over a tensor-parallel group."""

    rack: str
    chips_per_replica: Count
    replicas: Count
    usable_memory: Fraction


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: K draft tokens a step, and how many tokens a step yields by content class.

    content: the class of `acceptance_length` that prompts are drawn from.
    prompt_cv: standard deviation between prompts over the mean.
    """

    drafter: str
    content: str
    draft_tokens: DraftTokens
    acceptance_length: dict[str, TokensPerStep]
    prompt_cv: Spread


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to serve one model. Without `speculation` a step yields exactly one token."""

    name: str
    mode: Mode
    summary: str
    model: str
    link: str
    weight_bytes: BytesPerParameter
    kv_bytes: BytesPerElement
    prefill: PrefillSide
    decode: LpuDecode | GpuDecodeSide
    speculation: Speculation | None = None
