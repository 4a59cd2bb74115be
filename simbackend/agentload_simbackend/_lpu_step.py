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
from agentload_simbackend._schedule import StepSchedule, draft_schedule, step_schedule
from agentload_simbackend._schedule_group import Group
from agentload_simbackend._schedule_input import AS_IT_IS, ScheduleOptions, StepInput


class LpuWork(NamedTuple):
    """What a group of LPUs computes; `split_attention`: all but the mixers whose cache grows."""

    model: Decoder
    group: Group
    weight_bytes: float
    kv_bytes: int
    split_attention: bool = False

    @property
    def shape(self) -> ModelShape:
        """The model's layers."""
        return _shape(self.model)

    def step(
        self, batch: int, tokens: int, context_tokens: int, options: ScheduleOptions = AS_IT_IS
    ) -> StepSchedule:
        """The schedule of a step of `batch` streams that each verify `tokens` tokens."""
        return step_schedule(self.shape, self.group, self._asked(batch, tokens, context_tokens, options))

    def draft(
        self, drafter: Drafter, batch: int, context_tokens: int, options: ScheduleOptions = AS_IT_IS
    ) -> StepSchedule:
        """The schedule of one draft token for each of `batch` streams."""
        return draft_schedule(drafter, self.group, self._asked(batch, 1, context_tokens, options))

    def _asked(self, batch: int, tokens: int, context_tokens: int, options: ScheduleOptions) -> StepInput:
        return StepInput(
            batch, tokens, context_tokens, self.weight_bytes, self.kv_bytes, self.split_attention, options
        )


@lru_cache(maxsize=4096)
def lpu_step(work: LpuWork, batch: int, tokens: int) -> Pieces:
    """A step of `batch` streams that each verify `tokens` tokens."""

    def time_s(context_tokens: int) -> float:
        return work.step(batch, tokens, context_tokens).seconds

    windows = [batch * window for window in _windows(work.shape)]
    return interpolated(time_s, batch * work.shape.max_context_tokens, windows)


@lru_cache(maxsize=4096)
def lpu_chunk(work: LpuWork, tokens: int) -> Pieces:
    """A pass over `tokens` tokens of a prompt, by their context, without output head and host."""

    def time_s(context_tokens: int) -> float:
        schedule = work.step(1, tokens, context_tokens)
        return schedule.seconds - schedule.budget.head - schedule.budget.host

    return interpolated(time_s, work.shape.max_context_tokens, _windows(work.shape))


@lru_cache(maxsize=4096)
def lpu_drafts(
    drafter: Drafter, work: LpuWork, batch: int, draft_tokens: int, most_context_tokens: int
) -> Pieces:
    """K draft tokens for each of `batch` streams, one after the other."""

    def time_s(context_tokens: int) -> float:
        return work.draft(drafter, batch, context_tokens).seconds

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
