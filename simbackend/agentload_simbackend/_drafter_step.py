"""A decode step in which LPUs draft and GPUs verify; only tokens cross between them."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._gpu_step import gpu_step
from agentload_simbackend._gpu_terms import GpuGroup
from agentload_simbackend._lpu_step import LpuWork, lpu_drafts
from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Drafter
from agentload_simbackend._pieces import Pieces, added, line


class DraftLink(NamedTuple):
    """What a draft token is on the link, each way; `bytes_per_s` per direction."""

    token_bytes: float
    bytes_per_s: float
    latency_s: float


def drafter_step(
    shape: ModelShape,
    gpus: GpuGroup,
    drafter: Drafter,
    work: LpuWork,
    link: DraftLink,
    *,
    batch: int,
    draft_tokens: int,
) -> Pieces:
    """A step of `batch` streams: K draft tokens, their way to the GPUs, the check of K + 1, and the way back.

    T = K x draft + 2 latencies + 2 K x batch x token bytes / bandwidth + GPU step without drafting
    """
    crossing_s = 2 * (link.latency_s + draft_tokens * batch * link.token_bytes / link.bytes_per_s)
    drafts = lpu_drafts(drafter, work, batch, draft_tokens, shape.max_context_tokens)
    verify = gpu_step(shape, gpus, batch=batch, tokens=draft_tokens + 1)
    return added(drafts, line(crossing_s), verify)
