"""The schedule of a deployment's decode group, of any size: its step, its drafts, and what ablations cost."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._load import list_models, load_deployment
from agentload_simbackend._quantity import Number
from agentload_simbackend._schedule import (
    AS_IT_IS,
    FIRST_BIT_S,
    Group,
    ScheduleOptions,
    StepSchedule,
    draft_schedule,
    group_of,
    step_schedule,
)
from agentload_simbackend._spec_files import parse
from agentload_simbackend._specs import LpuChip, LpuRack, LpuSide
from agentload_traces import SpecError

ABLATION_LPUS = (8, 16, 32, 64, 128, 256)
"""Sizes of groups that ablations are shown for."""


def deployment_to_schedule(name: str) -> Deployment:
    """The deployment of that name or path; a model's name or path means its deployment in mode pd.

    Raises `SpecError`, also where no LPUs decode.
    """
    if name in list_models() or (name.endswith(".toml") and _is_model(Path(name))):
        name = f"{name}/pd"
    deployment = load_deployment(name)
    if not isinstance(deployment.spec.decode, LpuSide):
        raise SpecError(
            f"{deployment.name}: decode runs on {deployment.decode_rack.name}, but only LPUs have a static "
            "schedule; name a model, or a deployment in mode lpx, pd or afd"
        )
    return deployment


def _is_model(path: Path) -> bool:
    return path.is_file() and parse(path).get("type") == "decoder"


class ScheduledDeployment:
    """Schedules of `lpus` chips that decode `batch` streams of `context_tokens` each, K drafts a step.

    Groups of another size than the deployment's keep its operation time. `draft_tokens` without a drafter:
    verified, but nobody drafts them. Raises `SpecError` for a group without a reach latency, and for a
    context that the model does not have.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        lpus: int | None = None,
        batch: int = 1,
        context_tokens: int | None = None,
        draft_tokens: int | None = None,
        options: ScheduleOptions = AS_IT_IS,
    ) -> None:
        side, chip, rack = deployment.spec.decode, deployment.decode_chip, deployment.decode_rack
        assert isinstance(side, LpuSide)
        assert isinstance(chip, LpuChip)
        assert isinstance(rack, LpuRack)
        self.deployment = deployment
        self._side, self._chip, self._rack = side, chip, rack
        self.batch = batch
        self.context_tokens = (
            min(10_000, deployment.max_context_tokens) if context_tokens is None else context_tokens
        )
        if self.context_tokens > deployment.max_context_tokens:
            raise SpecError(
                f"{self.context_tokens:,} tokens of context, but {deployment.model.name} has at most "
                f"{deployment.max_context_tokens:,}"
            )
        self.draft_tokens = deployment.draft_tokens if draft_tokens is None else draft_tokens
        self.options = options
        self.group = self._group(side.chips_per_replica.whole if lpus is None else lpus)

    @cached_property
    def step(self) -> StepSchedule:
        """The step that verifies K + 1 tokens of each stream."""
        return self._step(self.group, self.options, self.draft_tokens + 1)

    @cached_property
    def draft(self) -> StepSchedule | None:
        """One draft token of each stream; `None` without a drafter or drafts."""
        return self._draft(self.group, self.options)

    @property
    def seconds(self) -> float:
        """A step with its drafts."""
        return self.step.seconds + (self.draft_tokens * self.draft.seconds if self.draft else 0.0)

    @property
    def fitted_lpus(self) -> int | None:
        """Size of the group whose own operation time is used; `None` where it is the chip's."""
        return self._side.chips_per_replica.whole if self._side.operation_time is not None else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that a step yields; `None` where the deployment says nothing for so many drafts."""
        if self.draft_tokens in (0, self.deployment.draft_tokens):
            return self.deployment.acceptance_length if self.draft_tokens else 1.0
        return None

    @property
    def plain_tokens_per_s(self) -> float:
        """Of one stream without speculation: one token a step."""
        return 1.0 / self._step(self.group, self.options, 1).seconds

    @property
    def tokens_per_s(self) -> float | None:
        """Of one stream, at the acceptance length."""
        return self.acceptance_length / self.seconds if self.acceptance_length else None

    def fits(self, lpus: int, held_bytes: int | None = None) -> bool:
        """Whether the SRAM of so many LPUs holds the weights, or so many bytes."""
        held = self.weights_bytes if held_bytes is None else held_bytes
        return held <= lpus * self._chip.sram.value * self._side.usable_memory.value

    @property
    def kv_cache_bytes(self) -> int:
        """Of the batch; with attention split off, of what is left."""
        kv, tokens = self.deployment.kv, self.context_tokens
        one = kv.fixed_bytes if self.deployment.mode == "afd" else kv.stream_bytes(tokens)
        return self.batch * int(one)

    @property
    def weights_bytes(self) -> int:
        """Of the model and, where one drafts, its drafter; with attention split off, of what is left."""
        stored = self.deployment.stored_bytes(self._chip)
        held = self.deployment.model.parameters.value
        if self.deployment.mode == "afd":
            held -= self.deployment.shape.growing_mixer_parameters
        return int(held * stored) + (self.deployment.drafter_bytes(self._chip) if self.draft else 0)

    def ablation(self, lpus: int) -> dict[ScheduleOptions, float]:
        """Tokens/s of one stream on so many LPUs, by overlap and arbitration; at the acceptance length if
        known."""
        group = self._group(lpus)
        length = self.acceptance_length
        first_bit_s = self.options.first_bit_s or FIRST_BIT_S
        speeds = {}
        for overlap in (True, False):
            for extra_s in (0.0, first_bit_s):
                options = ScheduleOptions(overlap, extra_s)
                seconds = self._step(group, options, self.draft_tokens + 1 if length else 1).seconds
                draft = self._draft(group, options)
                if draft is not None and length:
                    seconds += self.draft_tokens * draft.seconds
                speeds[options] = (length or 1.0) / seconds
        return speeds

    def ablation_lpus(self) -> list[int]:
        """Sizes worth showing: the usual ones that have a reach, and this one."""
        sizes = {*ABLATION_LPUS, self.group.chips}
        return sorted(size for size in sizes if size <= max(self._rack.reach))

    def numbers(self) -> list[Number]:
        """What the schedule rests on, beside the model."""
        prefixes = ("decode.chip.", "decode.rack.", "decode.operation_time", "speculation.", "kv_bytes")
        unused = {"decode.rack.chips", "decode.chip.sram", "speculation.prompt_cv"}
        if self._side.operation_time is not None:
            unused.add("decode.chip.operation_time")
        sizes = [size for size in self._rack.reach if size >= self.group.chips]
        reach = f"decode.rack.reach.{min(sizes)}"
        return [
            number
            for number in self.deployment.numbers()
            if number.path.startswith(prefixes)
            and number.path not in unused
            and (self.draft_tokens or not number.path.startswith("speculation."))
            and (number.path == reach or not number.path.startswith("decode.rack.reach."))
        ]

    def _group(self, lpus: int) -> Group:
        return group_of(self._chip, self._rack, self._side, lpus)

    def _step(self, group: Group, options: ScheduleOptions, tokens: int) -> StepSchedule:
        return step_schedule(
            self.deployment.shape,
            group,
            batch=self.batch,
            tokens=tokens,
            context_tokens=self.batch * self.context_tokens,
            weight_bytes=self.deployment.stored_bytes(self._chip),
            kv_bytes=self.deployment.spec.kv_bytes.value,
            split_attention=self.deployment.mode == "afd",
            options=options,
        )

    def _draft(self, group: Group, options: ScheduleOptions) -> StepSchedule | None:
        if self.deployment.drafter is None or not self.draft_tokens:
            return None
        return draft_schedule(
            self.deployment.drafter,
            group,
            batch=self.batch,
            context_tokens=self.batch * self.context_tokens,
            weight_bytes=self.deployment.stored_bytes(self._chip),
            kv_bytes=self.deployment.spec.kv_bytes.value,
            options=options,
        )
