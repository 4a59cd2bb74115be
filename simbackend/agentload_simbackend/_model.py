"""What a model's layers hold and compute, worked out from its spec once.

All counts are of the whole model; who shares them (a tensor-parallel group, an expert-parallel one, the
attention side of a split) divides them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import msgspec

from agentload_simbackend._model_specs import (
    Decoder,
    DenseFfn,
    ExpertFfn,
    Ffn,
    FullAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    SlidingAttention,
    StateSpace,
)


class Product(NamedTuple):
    """A matrix product of one layer: every token's vector of `inputs` elements becomes one of `outputs`."""

    name: str
    inputs: int
    outputs: int

    @property
    def parameters(self) -> int:
        """Elements of the matrix."""
        return self.inputs * self.outputs


class MixerShape(NamedTuple):
    """One layer's attention or state space.

    kind: "full", "sliding", "latent" or "state_space".
    before, after: its matrix products before and after the scores (or the state update), in order.
    flops_per_key: of scores and values in decode, for a query and a key (or for a token of a state space).
    prefill_flops_per_key: the same in prefill, where latent attention unpacks its keys and values first.
    exps_per_key: exponentials of the softmax for one query and one key.
    cache_ways: parts into which a group can split its cache or states, by heads; more chips hold copies.
    kv_elements: that the layer caches per token. window: tokens it attends to at most, 0 without limit.
    state_bytes: that the layer holds per stream, whatever the context.
    """

    kind: str
    before: tuple[Product, ...]
    after: tuple[Product, ...]
    flops_per_key: int
    prefill_flops_per_key: int
    exps_per_key: int
    cache_ways: int
    kv_elements: int
    window: int
    state_bytes: int

    @property
    def products(self) -> tuple[Product, ...]:
        """All its matrix products."""
        return self.before + self.after

    @property
    def parameters(self) -> int:
        """Elements of its matrices."""
        return sum(product.parameters for product in self.products)

    @property
    def grows(self) -> bool:
        """Whether its cache grows with the context (full and latent attention)."""
        return self.kind in ("full", "latent")


class FfnShape(NamedTuple):
    """One layer's feed-forward network.

    dense: products that every token goes through, in order: the router and the way into the experts' latent
        space, then the shared network's, then the way out (a dense network: all of it).
    expert: products of one expert. experts, active: how many there are, how many a token takes (0: dense).
    """

    dense: tuple[Product, ...]
    expert: tuple[Product, ...]
    experts: int
    active: int

    @property
    def parameters(self) -> int:
        """Elements of all its matrices."""
        return _parameters(self.dense) + self.experts * _parameters(self.expert)

    @property
    def active_parameters(self) -> int:
        """Elements of the matrices that one token goes through."""
        return _parameters(self.dense) + self.active * _parameters(self.expert)

    def experts_touched(self, tokens: float) -> float:
        """Expected number of different experts that a step of so many tokens reads, each routed evenly."""
        if not self.experts:
            return 0.0
        return self.experts * (1.0 - _missed(1.0 - self.active / self.experts, tokens))

    def parameters_touched(self, tokens: float) -> float:
        """Expected elements that a step of so many tokens reads."""
        return _parameters(self.dense) + self.experts_touched(tokens) * _parameters(self.expert)


class LayerKind(msgspec.Struct, frozen=True):
    """`count` equal layers."""

    count: int
    mixer: MixerShape | None
    ffn: FfnShape | None

    @property
    def parameters(self) -> int:
        """Elements of one such layer's matrices."""
        mixer = self.mixer.parameters if self.mixer else 0
        return mixer + (self.ffn.parameters if self.ffn else 0)

    @property
    def active_parameters(self) -> int:
        """Elements of one such layer's matrices that one token goes through."""
        mixer = self.mixer.parameters if self.mixer else 0
        return mixer + (self.ffn.active_parameters if self.ffn else 0)


class ModelShape:
    """The layers of a decoder, with what they add up to."""

    def __init__(self, model: Decoder) -> None:
        self.hidden = model.hidden.whole
        self.max_context_tokens = model.max_context.whole
        self.head = Product("head", self.hidden, model.vocabulary.whole)
        self.embedding_parameters = 0 if model.tied_embeddings else self.head.parameters
        self.kinds = tuple(_kind(group, self.hidden) for group in model.layers)

    @cached_property
    def layers(self) -> int:
        """How many layers there are."""
        return sum(kind.count for kind in self.kinds)

    @cached_property
    def growing_layers(self) -> int:
        """Layers whose cache grows with the context: those that a split of attention hands over."""
        return sum(kind.count for kind in self.kinds if kind.mixer is not None and kind.mixer.grows)

    @cached_property
    def parameters(self) -> int:
        """Elements of all matrices: layers, embedding and output head (no norms, no biases)."""
        return self.core_parameters + self.head.parameters + self.embedding_parameters

    @cached_property
    def core_parameters(self) -> int:
        """Elements of all layers' matrices."""
        return sum(kind.count * kind.parameters for kind in self.kinds)

    @cached_property
    def active_core_parameters(self) -> int:
        """Elements of the layers' matrices that one token goes through: 2 FLOPs each."""
        return sum(kind.count * kind.active_parameters for kind in self.kinds)

    @cached_property
    def growing_mixer_parameters(self) -> int:
        """Elements of the mixers whose cache grows: what leaves an LPX when attention is split off."""
        return sum(
            kind.count * kind.mixer.parameters
            for kind in self.kinds
            if kind.mixer is not None and kind.mixer.grows
        )

    @cached_property
    def kv_elements_per_token(self) -> int:
        """Elements that each further token of context adds to the cache."""
        return sum(
            kind.count * kind.mixer.kv_elements for kind in self.kinds if kind.mixer and kind.mixer.grows
        )

    @cached_property
    def window_elements_per_token(self) -> int:
        """Elements that a token has in the caches of the sliding-window layers, while it is in the window."""
        return sum(
            kind.count * kind.mixer.kv_elements for kind in self.kinds if kind.mixer and kind.mixer.window
        )

    @cached_property
    def window_tokens(self) -> int:
        """The sliding window; 0 if no layer has one."""
        return max((kind.mixer.window for kind in self.kinds if kind.mixer), default=0)

    @cached_property
    def state_bytes(self) -> int:
        """State-space state of one stream."""
        return sum(kind.count * kind.mixer.state_bytes for kind in self.kinds if kind.mixer)

    @cached_property
    def state_flops_per_token(self) -> int:
        """FLOPs that one token costs in the state-space layers beside their products."""
        kinds = [kind for kind in self.kinds if kind.mixer and kind.mixer.kind == "state_space"]
        return sum(kind.count * kind.mixer.flops_per_key for kind in kinds if kind.mixer)

    def parameters_touched(self, tokens: float) -> float:
        """Expected elements that a step of so many tokens reads: layers and output head."""
        touched = float(self.head.parameters)
        for kind in self.kinds:
            one = float(kind.mixer.parameters) if kind.mixer else 0.0
            one += kind.ffn.parameters_touched(tokens) if kind.ffn else 0.0
            touched += kind.count * one
        return touched


def _missed(one: float, tokens: float) -> float:
    """`one` to the power `tokens`, by multiplication: the same on every machine, unlike a power function."""
    whole = int(tokens)
    result = 1.0 - (tokens - whole) * (1.0 - one)
    while whole:
        if whole & 1:
            result *= one
        one *= one
        whole >>= 1
    return result


def _parameters(products: Iterable[Product]) -> int:
    return sum(product.parameters for product in products)


def _kind(group: LayerGroup, hidden: int) -> LayerKind:
    mixer = None if group.mixer is None else _mixer(group.mixer, hidden)
    return LayerKind(group.count.whole, mixer, None if group.ffn is None else _ffn(group.ffn, hidden))


def _mixer(spec: Mixer, hidden: int) -> MixerShape:
    if isinstance(spec, LatentAttention):
        return _latent(spec, hidden)
    if isinstance(spec, StateSpace):
        return _state_space(spec, hidden)
    heads, dim = spec.query_heads.whole, spec.head_dim.whole
    kv = spec.kv_heads.whole * dim
    once = isinstance(spec, FullAttention) and spec.shared_kv_projection
    projected = (Product("kv", hidden, kv),) if once else (Product("k", hidden, kv), Product("v", hidden, kv))
    return MixerShape(
        kind="sliding" if isinstance(spec, SlidingAttention) else "full",
        before=(Product("q", hidden, heads * dim), *projected),
        after=(Product("o", heads * dim, hidden),),
        flops_per_key=4 * heads * dim,
        prefill_flops_per_key=4 * heads * dim,
        exps_per_key=heads,
        cache_ways=spec.kv_heads.whole,
        kv_elements=2 * kv,
        window=spec.window.whole if isinstance(spec, SlidingAttention) else 0,
        state_bytes=0,
    )


def _latent(spec: LatentAttention, hidden: int) -> MixerShape:
    """MLA in its absorbed form: scores and values are against the latent vector itself."""
    heads, rank, rope = spec.query_heads.whole, spec.kv_rank.whole, spec.rope_dim.whole
    nope, value = spec.nope_dim.whole, spec.value_dim.whole
    return MixerShape(
        kind="latent",
        before=(
            Product("q down", hidden, spec.query_rank.whole),
            Product("kv down", hidden, rank + rope),
            Product("q up", spec.query_rank.whole, heads * (nope + rope)),
            Product("k up", heads * nope, rank),
        ),
        after=(Product("v up", rank, heads * value), Product("o", heads * value, hidden)),
        flops_per_key=2 * heads * (rank + rope) + 2 * heads * rank,
        prefill_flops_per_key=2 * heads * (nope + rope) + 2 * heads * value,
        exps_per_key=heads,
        cache_ways=1,
        kv_elements=rank + rope,
        window=0,
        state_bytes=0,
    )


def _state_space(spec: StateSpace, hidden: int) -> MixerShape:
    heads, groups, state = spec.heads.whole, spec.groups.whole, spec.state.whole
    inner = heads * spec.head_dim.whole
    return MixerShape(
        kind="state_space",
        before=(Product("in", hidden, 2 * inner + 2 * groups * state + heads),),
        after=(Product("out", inner, hidden),),
        flops_per_key=6 * inner * state,
        prefill_flops_per_key=6 * inner * state,
        exps_per_key=0,
        cache_ways=heads,
        kv_elements=0,
        window=0,
        state_bytes=inner * state * spec.state_bytes.whole,
    )


def _ffn(spec: Ffn, hidden: int) -> FfnShape:
    if isinstance(spec, DenseFfn):
        return FfnShape(_network("", hidden, spec.inner.whole, spec.matrices.whole), (), 0, 0)
    assert isinstance(spec, ExpertFfn)
    width = spec.latent.whole or hidden
    dense: tuple[Product, ...] = (Product("router", hidden, spec.experts.whole),)
    if spec.latent.whole:
        dense += (Product("latent in", hidden, width),)
    if spec.shared_inner.whole:
        dense += _network("shared ", hidden, spec.shared_inner.whole, spec.matrices.whole)
    if spec.latent.whole:
        dense += (Product("latent out", width, hidden),)
    expert = _network("expert ", width, spec.inner.whole, spec.matrices.whole)
    return FfnShape(dense, expert, spec.experts.whole, spec.active_experts.whole)


def _network(prefix: str, width: int, inner: int, matrices: int) -> tuple[Product, ...]:
    gate = (Product(f"{prefix}gate", width, inner),) if matrices == 3 else ()
    return (*gate, Product(f"{prefix}up", width, inner), Product(f"{prefix}down", inner, width))
