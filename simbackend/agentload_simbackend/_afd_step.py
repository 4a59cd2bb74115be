"""A decode step with attention on GPUs and the rest of each layer on LPUs.

The sliding-window and state-space layers stay on the LPUs. Once per layer whose cache grows, the activations
of all tokens of the step cross to the GPUs, which hold that layer's mixer and KV, and back. A drafter on the
LPUs that reads this KV has its own activations cross for each draft token.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from agentload_simbackend._gpu_step import gpu_mixers
from agentload_simbackend._gpu_terms import GpuGroup
from agentload_simbackend._model import ModelShape
from agentload_simbackend._pieces import Pieces, added, for_share, largest, line


class Crossing(NamedTuple):
    """The way to the attention side and back.

    bytes_per_s: per direction. overhead_s: fixed time of the GPUs for each crossing.
    draft_crossings: of each draft token, with `draft_hidden` elements a stream.
    """

    gpus: GpuGroup
    bytes_per_s: float
    latency_s: float
    overhead_s: float
    activation_bytes: int
    micro_batches: int
    draft_crossings: int = 0
    draft_hidden: int = 0

    def crossings(self, shape: ModelShape, tokens: int) -> int:
        """Crossings of a step that verifies `tokens` tokens, one of them no draft; each goes out and back."""
        return shape.growing_layers + (tokens - 1) * self.draft_crossings

    def link(self, shape: ModelShape, batch: int, tokens: int) -> Pieces:
        """What a step's crossings take on their way, both ways."""
        bytes_s = self._bytes_s(shape, batch, tokens)
        return line(2 * (self.crossings(shape, tokens) * self.latency_s + bytes_s))

    def one_way(self, shape: ModelShape, batch: int, tokens: int) -> Pieces:
        """For how long they hold the link in one direction."""
        return line(self._bytes_s(shape, batch, tokens))

    def attention(self, shape: ModelShape, batch: int, tokens: int) -> Pieces:
        """What the GPUs take for all of them."""
        overhead = line(self.crossings(shape, tokens) * self.overhead_s)
        return added(overhead, gpu_mixers(shape, self.gpus, batch=batch, tokens=tokens))

    def _bytes_s(self, shape: ModelShape, batch: int, tokens: int) -> float:
        elements = shape.growing_layers * shape.hidden * tokens
        elements += (tokens - 1) * self.draft_crossings * self.draft_hidden
        return elements * batch * self.activation_bytes / self.bytes_per_s


def afd_step(
    shape: ModelShape, crossing: Crossing, lpx: Callable[[int], Pieces], *, batch: int, tokens: int
) -> Pieces:
    """A step of `batch` streams that each verify `tokens` tokens; `lpx`: what a batch takes on the LPUs.

    T = LPX + crossings x (2 latencies + 2 hidden x tokens x bytes / bandwidth + overhead) + attention

    A crossing is that of a growing layer, or of a draft token (with the drafter's hidden and one token).

    With micro-batches the two sides and the link take turns, and
    T = max(LPX, GPUs, link one way, the sum above for one micro-batch of ceil(batch / m) streams),
    the first three for the whole batch. That is a bound: it takes each side's work for the parts to be no
    more than for the whole, and the parts never to wait for one another. So it is never slower than one
    whole batch.
    """

    def chain(streams: int) -> Pieces:
        link, attention = (part(shape, streams, tokens) for part in (crossing.link, crossing.attention))
        return added(lpx(streams), link, attention)

    part = ceil(batch / crossing.micro_batches)
    if part == batch:
        return chain(batch)
    return largest(
        lpx(batch),
        crossing.attention(shape, batch, tokens),
        crossing.one_way(shape, batch, tokens),
        for_share(chain(part), part / batch),
    )
