"""The static schedule of one decode step on a tensor-parallel group of LPUs.

A compiler knows before anything runs in which cycle each operation starts and each vector is on each link; so
does this. All LPUs run the same program, so one of them stands for all, and one layer for all of its kind:

    step = sum over kinds (layers of the kind x cycles of one) + head + host

A layer is a chain of dependent operations (`_schedule_ops`). Each takes its arithmetic and, until its results
are out, the fixed operation time. Results leave for the other LPUs in vectors as they come
(`_schedule_bursts`); the next operation starts when the last vector has arrived, for a matrix product
contracts over all of them.

What an LPU sends in an exchange is (n - 1) / n of the exchange's elements per token, in BF16, up to whole
vectors: what a reduce-scatter or all-gather sends in any case. The gather of q, k, v and the combination of
the softmax count as much as the model's width, though where the KV lies decides it; of latent attention too,
whose absorbed queries are wider (heads x (rank + rope), 128 x 576 in DeepSeek R1). That the parts for two
receivers do not share a vector is left out: it would cost at most a vector per receiver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from agentload_simbackend._model import LayerKind, ModelShape
from agentload_simbackend._model_specs import Drafter
from agentload_simbackend._schedule_bursts import Burst, Transfer
from agentload_simbackend._schedule_group import Group
from agentload_simbackend._schedule_input import ScheduleOptions, StepInput
from agentload_simbackend._schedule_ops import (
    Exchange,
    FunctionalUnit,
    Share,
    Task,
    Work,
    draft_tasks,
    layer_tasks,
)

ACTIVATION_BYTES = 2
"""BF16, whatever the weights are stored in."""


class Budget(NamedTuple):
    """Where a step's time goes, without remainder; in seconds or in cycles.

    c2c: exchanges, beyond the operation that computes what they send. on_chip: the fixed time of operations,
    and vector arithmetic. weights: matrix products. attention: scores, softmax, values, state updates.
    """

    c2c: float = 0
    on_chip: float = 0
    weights: float = 0
    attention: float = 0
    head: float = 0
    host: float = 0


class Operation(NamedTuple):
    """One product or vector operation on one LPU; cycles count from the start of the layer.

    It holds its unit from `start` up to before `issued`; its last result is there at `end`. task: number of
    the dependent operation that it is part of.
    """

    task: int
    name: str
    unit: FunctionalUnit
    share: Share
    start: int
    issued: int
    end: int
    tiles: int

    def expand(self) -> Iterator[Operation]:
        """Its tiles, one after the other; none is shorter than a cycle."""
        cycles = self.issued - self.start
        tiles = max(1, min(self.tiles, cycles))
        for tile in range(tiles):
            start = self.start + cycles * tile // tiles
            issued = self.start + cycles * (tile + 1) // tiles
            yield self._replace(start=start, issued=issued, end=issued + self.end - self.issued, tiles=1)


@dataclasses.dataclass(frozen=True, slots=True)
class LayerSchedule:
    """One of `count` equal layers; it takes `cycles`, which `budget` divides."""

    name: str
    count: int
    chips: int
    cycles: int
    operations: tuple[Operation, ...]
    bursts: tuple[Burst, ...]
    budget: Budget

    @property
    def dependent_operations(self) -> int:
        """Length of the chain."""
        return self.operations[-1].task + 1 if self.operations else 0

    @property
    def transfers(self) -> tuple[tuple[Transfer, ...], ...]:
        """Every vector that one LPU sends, by burst."""
        return tuple(tuple(burst.expand(self.chips)) for burst in self.bursts)


class StepSchedule(NamedTuple):
    """A decode step (or one draft token): its layers, and cycles of the head and the host."""

    clock_hz: float
    layers: tuple[LayerSchedule, ...]
    budget_cycles: Budget

    @property
    def cycles(self) -> int:
        """What the step takes."""
        return int(sum(self.budget_cycles))

    @property
    def seconds(self) -> float:
        """What the step takes."""
        return self.cycles / self.clock_hz

    @property
    def budget(self) -> Budget:
        """Where its seconds go."""
        return Budget(*(cycles / self.clock_hz for cycles in self.budget_cycles))


def step_schedule(shape: ModelShape, group: Group, asked: StepInput) -> StepSchedule:
    """Schedule a step of a model."""
    work, builder = Work(group, asked), _Builder(group, asked.rows, asked.options)
    layers = []
    for kind in shape.kinds:
        if tasks := layer_tasks(kind, shape.hidden, work, split_attention=asked.split_attention):
            layers.append(builder.layer(_name(kind, asked.split_attention), kind.count, tasks))
    head = ceil(work.matrix("head", shape.head.parameters).cycles) + group.cycles(group.head_s)
    return _step(group, layers, head, group.cycles(group.host_s))


def draft_schedule(drafter: Drafter, group: Group, asked: StepInput) -> StepSchedule:
    """Schedule one draft token for each stream: the drafter's layers and the head, no host."""
    one = asked._replace(tokens=1)
    tasks = draft_tasks(drafter, Work(group, one))
    layer = _Builder(group, one.rows, one.options).layer("draft layer", drafter.layers.whole, tasks)
    return _step(group, [layer], group.cycles(group.head_s), 0)


def _step(group: Group, layers: list[LayerSchedule], head: int, host: int) -> StepSchedule:
    totals = [
        sum(layer.count * layer.budget[line] for layer in layers) for line in range(len(Budget._fields) - 2)
    ]
    return StepSchedule(group.clock_hz, tuple(layers), Budget._make([*totals, head, host]))


class _Builder:
    """Puts the operations of layers one after the other, for a group and `rows` tokens."""

    def __init__(self, group: Group, rows: int, options: ScheduleOptions) -> None:
        chip = group.chip
        self._group, self._rows, self._overlap = group, rows, options.overlap
        self._vector_bytes = chip.vector_bytes.whole
        self._fixed = group.cycles(group.operation_time_s)
        per_link = chip.c2c_bandwidth.value / chip.c2c_links.whole
        self._vector_cycles = max(1, ceil(self._vector_bytes / per_link * group.clock_hz))
        self._latency = group.cycles(group.reach_s) + group.cycles(options.first_bit_s)

    def layer(self, name: str, count: int, tasks: list[Task]) -> LayerSchedule:
        spent = {"c2c": 0, "on_chip": 0, "weights": 0, "attention": 0}
        operations: list[Operation] = []
        bursts: list[Burst] = []
        now = 0
        for number, task in enumerate(tasks):
            issued, done = now, 0.0
            for part in task.parts:
                done += part.cycles
                start, issued = issued, now + ceil(done)
                end = issued + self._fixed
                operations.append(
                    Operation(number, part.name, task.unit, task.share, start, issued, end, part.tiles)
                )
            spent["on_chip"] += self._fixed
            spent[task.share] += issued - now
            end = issued + self._fixed
            if task.exchange is not None and self._group.chips > 1:
                burst = self._burst(number, task.exchange, now + self._fixed, issued - now)
                bursts.append(burst)
                arrived = burst.arrived
                spent["c2c"] += arrived - end
                end = arrived
            now = end
        return LayerSchedule(
            name, count, self._group.chips, now, tuple(operations), tuple(bursts), Budget(**spent)
        )

    def _burst(self, task: int, exchange: Exchange, results_from: int, results_over: int) -> Burst:
        if not self._overlap:
            results_from, results_over = results_from + results_over, 0
        chips = self._group.built
        sent_bytes = exchange.elements * self._rows * ACTIVATION_BYTES * (chips - 1)
        return Burst(
            name=exchange.name,
            task=task,
            vectors=-(-sent_bytes // (chips * self._vector_bytes)),
            links=self._group.links,
            vector_cycles=self._vector_cycles,
            results_from=results_from,
            results_over=results_over,
            latency=self._latency,
        )


def _name(kind: LayerKind, split_attention: bool) -> str:
    parts = []
    if kind.mixer is not None and not (split_attention and kind.mixer.grows):
        words = kind.mixer.kind.replace("_", " ")
        parts.append(words if kind.mixer.kind == "state_space" else f"{words} attention")
    if kind.ffn is not None:
        parts.append(f"{kind.ffn.experts} experts" if kind.ffn.experts else "dense FFN")
    return ", ".join(parts)
