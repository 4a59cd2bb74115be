"""The shapes of model files: decoders by groups of equal layers, and draft models."""

from __future__ import annotations

from typing import Literal

import msgspec

from agentload_simbackend._quantity import (
    BytesPerElement,
    BytesPerParameter,
    Count,
    CountOrZero,
    Tokens,
)


class FullAttention(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="full"
):
    """Every token attends to all before it. `shared_kv_projection`: one matrix product gives K and V."""

    query_heads: Count
    kv_heads: Count
    head_dim: Count
    shared_kv_projection: bool = False


class SlidingAttention(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="sliding"
):
    """Every token attends to the last `window` tokens."""

    query_heads: Count
    kv_heads: Count
    head_dim: Count
    window: Tokens


class LatentAttention(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="latent"
):
    """Multi-head latent attention (MLA): a layer caches `kv_rank + rope_dim` elements per token."""

    query_heads: Count
    query_rank: Count
    kv_rank: Count
    rope_dim: Count
    nope_dim: Count
    value_dim: Count


class StateSpace(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="state_space"
):
    """A Mamba-2 mixer: a state of `heads x head_dim x state` elements per stream, whatever the context."""

    heads: Count
    head_dim: Count
    state: Count
    groups: Count
    state_bytes: BytesPerElement


class DenseFfn(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="dense"
):
    """A feed-forward network; `matrices` is 3 when it is gated, else 2."""

    inner: Count
    matrices: Count


class ExpertFfn(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="experts"
):
    """A mixture of experts; each token goes through `active_experts` of them and the shared network.

    latent: width of the experts' input and output where it is not the model's (0: it is).
    shared_inner: inner width of the network that every token goes through (0: there is none).
    """

    experts: Count
    active_experts: Count
    inner: Count
    shared_inner: CountOrZero
    latent: CountOrZero
    matrices: Count


Mixer = FullAttention | SlidingAttention | LatentAttention | StateSpace
Ffn = DenseFfn | ExpertFfn


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` equal layers: a mixer (attention or state space), a feed-forward network, or both."""

    count: Count
    mixer: Mixer | None = None
    ffn: Ffn | None = None


class Decoder(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="decoder"
):
    """A decoder-only model.

    weight_bytes: what it is published in; a chip without that format stores more.
    four_bits: the format of weights published in less than a byte; INT4 is only stored, products are in BF16.
    parameters, active_parameters: published totals (active: those that one token goes through).
    checkpoints: its names on Hugging Face, such as `meta-llama/Llama-3.1-70B`.
    """

    name: str
    checkpoints: tuple[str, ...] = ()
    hidden: Count
    vocabulary: Count
    tied_embeddings: bool
    max_context: Tokens
    parameters: Count
    active_parameters: Count
    weight_bytes: BytesPerParameter
    four_bits: Literal["fp4", "int4"] = "fp4"
    layers: tuple[LayerGroup, ...]


class Drafter(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="drafter"
):
    """A draft model. `kv_elements_per_token` is 0 when it reads the target's KV cache and keeps none."""

    name: str
    layers: Count
    hidden: Count
    parameters: Count
    kv_elements_per_token: CountOrZero
