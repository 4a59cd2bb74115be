"""The schedule of a deployment's decode group, of any size: its step, its drafts, and what ablations cost."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from agentload_simbackend._afd_step import afd_step
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._fit import MemoryNeed, memory_needs
from agentload_simbackend._load import list_deployments, list_models, load_deployment
from agentload_simbackend._lpu_step import LpuWork
from agentload_simbackend._pieces import Pieces, line, value_ns
from agentload_simbackend._quantity import Number
from agentload_simbackend._schedule import StepSchedule
from agentload_simbackend._schedule_fitted import OperationTime, operation_time
from agentload_simbackend._schedule_group import Group, group_of
from agentload_simbackend._schedule_input import AS_IT_IS, FIRST_BIT_S, ScheduleOptions
from agentload_simbackend._spec_files import is_decoder_file
from agentload_simbackend._specs import LpuChip, LpuRack, LpuSide
from agentload_simbackend._step_time import crossing_of, lpu_work
from agentload_traces import SpecError

ABLATION_LPUS = (8, 16, 32, 64, 128, 256)
"""Sizes of groups that ablations are shown for."""


class ElsewhereTime(NamedTuple):
    """What of a step is not on the LPUs: so many times (crossings, layers), that take `seconds` in all."""

    name: str
    times: int
    seconds: float


class AblationRow(NamedTuple):
    """Tokens/s of one stream on so many LPUs, by ablation.

    holds_weights: with one token of KV. streams: of the context that fit (`None`: they take no room).
    """

    lpus: int
    operation_time: OperationTime
    holds_weights: bool
    streams: int | None
    speeds: dict[ScheduleOptions, float]


def deployment_to_schedule(name: str) -> Deployment:
    """The deployment of that name or path; a model's name or path means its deployment in mode pd.

    Raises `SpecError`, also where no LPUs decode.
    """
    written = f"{name}/pd" in list_deployments()
    if written or name in list_models() or (name.endswith(".toml") and is_decoder_file(Path(name))):
        name = f"{name}/pd"
    deployment = load_deployment(name)
    if not isinstance(deployment.spec.decode, LpuSide):
        raise SpecError(
            f"{deployment.name}: decode runs on {deployment.decode_rack.name}, but only LPUs have a static "
            "schedule; name a model, or a deployment in mode lpx, pd or afd"
        )
    return deployment


class ScheduledDeployment:
    """Schedules of `lpus` chips that decode `batch` streams of `context_tokens` each, K drafts a step.

    Another size of group than the deployment's has the operation time that `operation_time` says.
    `draft_tokens` without a drafter: verified, but nobody drafts them. Raises `SpecError` for a group without
    a reach latency, and for a context that the model does not have.
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
        side = deployment.spec.decode
        assert isinstance(side, LpuSide)
        assert isinstance(deployment.decode_rack, LpuRack)
        self.deployment = deployment
        self._side, self._rack = side, deployment.decode_rack
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
        self._work = self._work_on(side.chips_per_replica.whole if lpus is None else lpus)

    @property
    def group(self) -> Group:
        """The LPUs that decode."""
        return self._work.group

    @property
    def rack_lpus(self) -> int:
        """LPUs of a rack."""
        return self._rack.chips.whole

    @cached_property
    def step(self) -> StepSchedule:
        """The step that verifies K + 1 tokens of each stream: what of it is on the LPUs."""
        tokens = self.draft_tokens + 1
        return self._work.step(self.batch, tokens, self.batch * self.context_tokens, self.options)

    @cached_property
    def draft(self) -> StepSchedule | None:
        """One draft token of each stream; `None` without a drafter or drafts."""
        if self.deployment.drafter is None or not self.draft_tokens:
            return None
        context_tokens = self.batch * self.context_tokens
        return self._work.draft(self.deployment.drafter, self.batch, context_tokens, self.options)

    @cached_property
    def seconds(self) -> float:
        """A step with its drafts, and with what of it is on the GPUs and on the way to them."""
        return self._seconds(self._work, self.options, self.draft_tokens)

    @cached_property
    def lpus_seconds(self) -> float:
        """A step with its drafts, as far as it is on the LPUs."""
        return self.step.seconds + (self.draft_tokens * self.draft.seconds if self.draft else 0.0)

    @property
    def elsewhere(self) -> list[ElsewhereTime]:
        """What of a step is not on the LPUs (mode afd).

        Micro-batches hide some of it: that they do so without ever waiting for one another is a bound.
        """
        crossing = crossing_of(self.deployment, self.group.chips)
        if crossing is None:
            return []
        shape, tokens = self.deployment.shape, self.draft_tokens + 1
        context_tokens = self.batch * self.context_tokens
        link, attention = (
            value_ns(part(shape, self.batch, tokens), context_tokens) / 1e9
            for part in (crossing.link, crossing.attention)
        )
        count = crossing.crossings(shape, tokens)
        rows = [
            ElsewhereTime("crossings, out and back", count, link),
            ElsewhereTime(f"attention on {crossing.gpus.chip.name}", shape.growing_layers, attention),
        ]
        if min(crossing.micro_batches, self.batch) > 1:
            hidden = self.seconds - self.lpus_seconds - link - attention
            rows.append(ElsewhereTime("hidden by micro-batches (a bound)", crossing.micro_batches, hidden))
        return rows

    @property
    def operation_time(self) -> OperationTime:
        """The operation time of the group, and what it was fitted to."""
        return operation_time(self.deployment, self.group.chips)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that a step yields; `None` where the deployment says nothing for so many drafts."""
        if self.draft_tokens in (0, self.deployment.draft_tokens):
            return self.deployment.acceptance_length if self.draft_tokens else 1.0
        return None

    @property
    def plain_tokens_per_s(self) -> float:
        """Of one stream without speculation: one token a step."""
        return 1.0 / self._seconds(self._work, self.options, 0)

    @property
    def tokens_per_s(self) -> float | None:
        """Of one stream, at the acceptance length."""
        return self.acceptance_length / self.seconds if self.acceptance_length else None

    def memory(self, lpus: int | None = None) -> list[MemoryNeed]:
        """Where weights and KV are, if the group has so many LPUs; in mode afd on the GPUs too."""
        chips = self.group.chips if lpus is None else lpus
        needs = {need.side: need for need in memory_needs(self.deployment)}
        attention = [needs["attention"]] if "attention" in needs else []
        return [needs["decode"]._replace(chips=chips), *attention]

    def streams_that_fit(self, lpus: int | None = None) -> int | None:
        """How many streams of the context fit; `None` where they take no room at all."""
        found = [need.streams(self.context_tokens) for need in self.memory(lpus)]
        return min((max(0, streams) for streams in found if streams is not None), default=None)

    @property
    def holds_batch(self) -> bool:
        """Whether the weights and the whole batch fit."""
        streams = self.streams_that_fit()
        return self._holds_weights(self.group.chips) and (streams is None or streams >= self.batch)

    @cached_property
    def ablation(self) -> list[AblationRow]:
        """For the usual sizes that have a reach, and this one: with and without overlap and arbitration.

        At the acceptance length if it is known, else at one token a step.
        """
        sizes = {*(size for size in ABLATION_LPUS if size <= max(self._rack.reach)), self.group.chips}
        return [self._ablation_row(lpus) for lpus in sorted(sizes)]

    def _ablation_row(self, lpus: int) -> AblationRow:
        work, length = self._work_on(lpus), self.acceptance_length
        speeds = {}
        for overlap in (True, False):
            for first_bit_s in (0.0, self.options.first_bit_s or FIRST_BIT_S):
                options = ScheduleOptions(overlap, first_bit_s)
                seconds = self._seconds(work, options, self.draft_tokens if length else 0)
                speeds[options] = (length or 1.0) / seconds
        return AblationRow(
            lpus,
            operation_time(self.deployment, lpus),
            self._holds_weights(lpus),
            self.streams_that_fit(lpus),
            speeds,
        )

    def fastest(self, options: ScheduleOptions) -> AblationRow | None:
        """The fastest size of the ablation, of those that hold the weights."""
        rows = [row for row in self.ablation if row.holds_weights]
        return max(rows, key=lambda row: row.speeds[options], default=None)

    def numbers(self) -> list[Number]:
        """What the schedule rests on, beside the model and the operation time."""
        prefixes = ("decode.chip.", "decode.rack.", "speculation.", "kv_bytes", "attention.", "split_link.")
        unused = {
            "decode.rack.chips",
            "decode.chip.sram",
            "decode.chip.operation_time",
            "speculation.prompt_cv",
            "attention.gpus_per_replica",
        }
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

    def _holds_weights(self, lpus: int) -> bool:
        return all(need.holds_weights for need in self.memory(lpus))

    def _work_on(self, lpus: int) -> LpuWork:
        """A group of so many LPUs that was built so, not one that has lost some."""
        chip = self.deployment.decode_chip
        assert isinstance(chip, LpuChip)
        seconds = operation_time(self.deployment, lpus).quantity.value
        group = group_of(chip, self._rack, self._side, lpus)._replace(operation_time_s=seconds)
        return lpu_work(self.deployment, self._side.chips_per_replica.whole)._replace(group=group)

    def _seconds(self, work: LpuWork, options: ScheduleOptions, draft_tokens: int) -> float:
        """A whole step, as `step_model` has it but for its lines between knots."""
        drafter, tokens = self.deployment.drafter, draft_tokens + 1

        def on_lpus(batch: int) -> Pieces:
            context_tokens = batch * self.context_tokens
            seconds = work.step(batch, tokens, context_tokens, options).seconds
            if drafter is not None and draft_tokens:
                seconds += draft_tokens * work.draft(drafter, batch, context_tokens, options).seconds
            return line(seconds)

        crossing = crossing_of(self.deployment, work.group.chips)
        whole = on_lpus(self.batch)
        if crossing is not None:
            whole = afd_step(self.deployment.shape, crossing, on_lpus, batch=self.batch, tokens=tokens)
        return value_ns(whole, self.batch * self.context_tokens) / 1e9
