"""A decode step with attention on GPUs and the rest of each layer on LPUs.

The sliding-window and state-space layers stay on the LPUs. Once per layer whose cache grows, the activations
of all tokens of the step cross to the GPUs, which hold that layer's mixer and KV, and back.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from agentload_simbackend._gpu_step import gpu_mixers
from agentload_simbackend._gpu_terms import GpuGroup
from agentload_simbackend._lpu_step import LpuWork, lpu_drafted_step
from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Drafter
from agentload_simbackend._pieces import Pieces, added, for_share, largest, line


class Crossing(NamedTuple):
    """The way to the attention side and back.

    bytes_per_s: per direction. overhead_s: fixed time of the GPUs for each crossing.
    """

    gpus: GpuGroup
    bytes_per_s: float
    latency_s: float
    overhead_s: float
    activation_bytes: int
    micro_batches: int


def afd_step(
    shape: ModelShape,
    work: LpuWork,
    crossing: Crossing,
    drafter: Drafter | None,
    *,
    batch: int,
    draft_tokens: int,
) -> Pieces:
    """A step of `batch` streams.

    T = LPX + growing layers x (2 latencies + 2 hidden x tokens x bytes / bandwidth + overhead + attention)

    With micro-batches the two sides and the link take turns, and
    T = max(LPX, GPUs, link one way, the sum above for one micro-batch of ceil(batch / m) streams),
    the first three for the whole batch. That is a bound: it takes each side's work for the parts to be no
    more than for the whole, and the parts never to wait for one another. So it is never slower than one
    whole batch.
    """
    whole = _chain(shape, work, crossing, drafter, batch, draft_tokens)
    part = ceil(batch / crossing.micro_batches)
    if part == batch:
        return whole
    one_way = line(shape.growing_layers * _one_way_s(shape, crossing, batch * (draft_tokens + 1)))
    chain = _chain(shape, work, crossing, drafter, part, draft_tokens)
    return largest(
        lpu_drafted_step(work, drafter, batch, draft_tokens),
        _attention(shape, crossing, batch, draft_tokens + 1),
        one_way,
        for_share(chain, part / batch),
    )


def _chain(
    shape: ModelShape,
    work: LpuWork,
    crossing: Crossing,
    drafter: Drafter | None,
    batch: int,
    draft_tokens: int,
) -> Pieces:
    """Everything one after the other."""
    tokens = draft_tokens + 1
    one_way_s = crossing.latency_s + _one_way_s(shape, crossing, batch * tokens)
    return added(
        lpu_drafted_step(work, drafter, batch, draft_tokens),
        line(shape.growing_layers * 2 * one_way_s),
        _attention(shape, crossing, batch, tokens),
    )


def _one_way_s(shape: ModelShape, crossing: Crossing, queries: int) -> float:
    """How long the activations of one layer hold the link in one direction."""
    return shape.hidden * crossing.activation_bytes * queries / crossing.bytes_per_s


def _attention(shape: ModelShape, crossing: Crossing, batch: int, tokens: int) -> Pieces:
    """What the GPUs take for all layers that cross."""
    overhead = line(shape.growing_layers * crossing.overhead_s)
    return added(overhead, gpu_mixers(shape, crossing.gpus, batch=batch, tokens=tokens))
