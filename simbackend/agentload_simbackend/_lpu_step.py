"""One decode step of a group of LPUs, as its static schedule says.

The schedule is built at a few contexts for each batch; between them the step time is a line. What follows
from it is kept by value, so that many engines over the same group pay once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Decoder, Drafter
from agentload_simbackend._pieces import Pieces, added, interpolated, scaled
from agentload_simbackend._schedule import Group, draft_schedule, step_schedule


class LpuWork(NamedTuple):
    """What a group of LPUs computes; `split_attention`: all but the mixers whose cache grows."""

    model: Decoder
    group: Group
    weight_bytes: float
    kv_bytes: int
    split_attention: bool = False


@lru_cache(maxsize=4096)
def lpu_step(work: LpuWork, batch: int, tokens: int) -> Pieces:
    """A step of `batch` streams that each verify `tokens` tokens."""
    shape = _shape(work.model)

    def time_s(context_tokens: int) -> float:
        return step_schedule(
            shape,
            work.group,
            batch=batch,
            tokens=tokens,
            context_tokens=context_tokens,
            weight_bytes=work.weight_bytes,
            kv_bytes=work.kv_bytes,
            split_attention=work.split_attention,
        ).seconds

    return interpolated(
        time_s, batch * shape.max_context_tokens, [batch * window for window in _windows(shape)]
    )


@lru_cache(maxsize=4096)
def lpu_chunk(work: LpuWork, tokens: int) -> Pieces:
    """A pass over `tokens` tokens of a prompt, by their context, without output head and host."""
    shape = _shape(work.model)

    def time_s(context_tokens: int) -> float:
        schedule = step_schedule(
            shape,
            work.group,
            batch=1,
            tokens=tokens,
            context_tokens=context_tokens,
            weight_bytes=work.weight_bytes,
            kv_bytes=work.kv_bytes,
        )
        return schedule.seconds - schedule.budget.head - schedule.budget.host

    return interpolated(time_s, shape.max_context_tokens, _windows(shape))


@lru_cache(maxsize=4096)
def lpu_drafts(
    drafter: Drafter, work: LpuWork, batch: int, draft_tokens: int, most_context_tokens: int
) -> Pieces:
    """K draft tokens for each of `batch` streams, one after the other."""

    def time_s(context_tokens: int) -> float:
        return draft_schedule(
            drafter,
            work.group,
            batch=batch,
            context_tokens=context_tokens,
            weight_bytes=work.weight_bytes,
            kv_bytes=work.kv_bytes,
        ).seconds

    return scaled(interpolated(time_s, batch * most_context_tokens), draft_tokens)


def lpu_drafted_step(work: LpuWork, drafter: Drafter | None, batch: int, draft_tokens: int) -> Pieces:
    """A step with K draft tokens on the same group; without a drafter there is none."""
    if drafter is None or not draft_tokens:
        return lpu_step(work, batch, 1)
    drafts = lpu_drafts(drafter, work, batch, draft_tokens, work.model.max_context.whole)
    return added(lpu_step(work, batch, draft_tokens + 1), drafts)


def _windows(shape: ModelShape) -> set[int]:
    """Contexts from which on a sliding window is full."""
    return {kind.mixer.window for kind in shape.kinds if kind.mixer is not None and kind.mixer.window}


@lru_cache(maxsize=64)
def _shape(model: Decoder) -> ModelShape:
    return ModelShape(model)
