"""Deployments of every mode and family of models, and the same with other numbers."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from agentload_simbackend import Deployment, load_deployment
from agentload_simbackend._specs import MODES, GpuSide, LpuSide

FAMILIES = {
    "dense": "llama-3.1-8b",
    "sliding window": "gemma-4-31b",
    "mixture of experts": "gpt-oss-120b",
    "latent attention": "deepseek-r1",
    "hybrid": "nemotron-3-super-120b-a12b",
}
NAMES = [f"{model}/{mode}" for model in FAMILIES.values() for mode in MODES]

names = st.sampled_from(NAMES)
batches = st.integers(1, 64)
contexts = st.integers(1, 131_072)


@cache
def deployment(name: str) -> Deployment:
    return load_deployment(name)


def with_values(struct: Any, **values: float) -> Any:
    """A spec of which some numbers are others; keys are paths with `__` for the dots."""
    for path, value in values.items():
        key, _, rest = path.partition("__")
        inner = getattr(struct, key)
        changed = with_values(inner, **{rest: value}) if rest else msgspec.structs.replace(inner, value=value)
        struct = msgspec.structs.replace(struct, **{key: changed})
    return struct


def with_spec(base: Deployment, **values: float) -> Deployment:
    return dataclasses.replace(base, spec=with_values(base.spec, **values))


def with_part(base: Deployment, part: str, **values: float) -> Deployment:
    """Another chip or link, such as `decode_chip`."""
    return dataclasses.replace(base, **{part: with_values(getattr(base, part), **values)})


def without_speculation(base: Deployment) -> Deployment:
    spec = msgspec.structs.replace(base.spec, speculation=None)
    return dataclasses.replace(base, spec=spec, drafter=None)


def chips_of(base: Deployment) -> int:
    side: LpuSide | GpuSide = base.spec.decode
    return side.chips_per_replica.whole
