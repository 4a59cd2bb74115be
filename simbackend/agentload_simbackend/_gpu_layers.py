"""Layers of all kinds as so many dense ones, by what a GPU does one after the other.

A decode step is replayed from a CUDA graph: what counts is how many operations depend on each other. A
prefill is launched kernel by kernel.
"""

from __future__ import annotations

from agentload_simbackend._model import FfnShape, MixerShape, ModelShape

DENSE_OPERATIONS = 7
"""QKV, attention, output, exchange; gate and up, down, exchange."""

DENSE_LAUNCHES = 11
"""Norm, QKV, positions and cache, scores, output, exchange; norm, gate and up, activation, down, exchange."""


def dense_layers(shape: ModelShape) -> float:
    """Layers, each by its dependent operations: a dense one with grouped queries has seven and counts 1."""
    operations = 0
    for kind in shape.kinds:
        mixer = _mixer_operations(kind.mixer) if kind.mixer else 0
        operations += kind.count * (mixer + (_ffn_operations(kind.ffn) if kind.ffn else 0))
    return operations / DENSE_OPERATIONS


def _mixer_operations(mixer: MixerShape) -> int:
    """One product before the scores (latent: down, q up, k up), the scores, those after, an exchange."""
    before = 3 if mixer.kind == "latent" else 1
    return before + 1 + len(mixer.after) + 1


def _ffn_operations(ffn: FfnShape) -> int:
    """Gate and up, down, an exchange; experts have a router, maybe a shared network and a latent space."""
    if not ffn.experts:
        return 3
    names = {product.name for product in ffn.dense}
    return 4 + 2 * ("shared up" in names) + 2 * ("latent in" in names)


def dense_prefill_layers(shape: ModelShape) -> float:
    """Layers, each by its kernel launches in a prefill: a dense one with grouped queries counts 1."""
    launches = 0
    for kind in shape.kinds:
        mixer = _mixer_launches(kind.mixer) if kind.mixer else 0
        launches += kind.count * (mixer + (_ffn_launches(kind.ffn) if kind.ffn else 0))
    return launches / DENSE_LAUNCHES


def _mixer_launches(mixer: MixerShape) -> int:
    """Latent attention has 2 products down, 2 norms and 2 products up, and puts keys together; a state-space
    mixer has a convolution and a scan in 3 parts between its products.
    """
    return {"latent": 12, "state_space": 9}.get(mixer.kind, 6)


def _ffn_launches(ffn: FfnShape) -> int:
    """Experts have a router, a choice, 3 to sort tokens, 2 grouped products, and 1 to add their outputs."""
    if not ffn.experts:
        return 5
    names = {product.name for product in ffn.dense}
    return 11 + 4 * ("shared up" in names) + 2 * ("latent in" in names)
