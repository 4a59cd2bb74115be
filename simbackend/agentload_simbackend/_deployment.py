"""A deployment: one model on given racks, with everything resolved."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cached_property

from agentload_simbackend._conditions import conditions_of, headline_of
from agentload_simbackend._memory import KvShape
from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Decoder, Drafter
from agentload_simbackend._quantity import Number
from agentload_simbackend._specs import (
    DeploymentSpec,
    GpuChip,
    GpuRack,
    Link,
    LpuChip,
    LpuRack,
    LpuSide,
    Mode,
)
from agentload_simbackend._used_numbers import used_numbers
from agentload_simbackend._wire import SimulatedModel


@dataclasses.dataclass(frozen=True, repr=False)
class Deployment:
    """What `load_deployment` returns; `spec_sha256` is over the contents of all files it rests on."""

    spec: DeploymentSpec
    model: Decoder
    drafter: Drafter | None
    link: Link | None
    split_link: Link | None
    prefill_rack: GpuRack | None
    prefill_chip: GpuChip | None
    decode_rack: LpuRack | GpuRack
    decode_chip: LpuChip | GpuChip
    draft_rack: LpuRack | None
    draft_chip: LpuChip | None
    spec_sha256: str

    def __repr__(self) -> str:
        return f"<Deployment {self.name} {self.spec_sha256[:12]}>"

    @property
    def name(self) -> str:
        """Its name, such as `gemma4-31b/pd`."""
        return self.spec.name

    @property
    def mode(self) -> Mode:
        """Its co-execution mode."""
        return self.spec.mode

    @property
    def summary(self) -> str:
        """What it is, in one line."""
        return self.spec.summary

    @cached_property
    def shape(self) -> ModelShape:
        """What the model's layers hold and compute."""
        return ModelShape(self.model)

    @cached_property
    def kv(self) -> KvShape:
        """Bytes of KV cache by tokens."""
        return KvShape.of(self.shape, self.spec.kv_bytes.whole)

    @property
    def max_context_tokens(self) -> int:
        """Prompt and answer together can be no longer."""
        return self.model.max_context.whole

    @property
    def cache_block_tokens(self) -> int:
        """Prefix cache hits are whole blocks of so many tokens."""
        return self.spec.prefill.cache_block.whole if self.spec.prefill else 1

    @property
    def draft_tokens(self) -> int:
        """K, the draft tokens of a step; 0 without speculation."""
        return self.spec.speculation.draft_tokens.whole if self.spec.speculation else 0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per step for the deployment's content class; 1 without speculation."""
        speculation = self.spec.speculation
        return speculation.acceptance_length[speculation.content].value if speculation else 1.0

    def stored_bytes(self, chip: LpuChip | GpuChip) -> float:
        """Bytes of a parameter as `chip` stores it: what it has no format for grows to its narrowest.

        LPUs have only that one, so what is published wider is converted, unless the spec says otherwise.
        """
        least = chip.least_weight_bytes.value
        if self.spec.weight_bytes is not None:
            return max(self.spec.weight_bytes.value, least)
        return least if isinstance(chip, LpuChip) else max(self.model.weight_bytes.value, least)

    def weights_bytes(self, chip: LpuChip | GpuChip) -> int:
        """One copy of the model's weights on chips of a kind."""
        return int(self.model.parameters.value * self.stored_bytes(chip))

    def drafter_bytes(self, chip: LpuChip | GpuChip) -> int:
        """One copy of the drafter's weights on chips of a kind."""
        return int(self.drafter.parameters.value * self.stored_bytes(chip)) if self.drafter else 0

    @property
    def drafter_kv_bytes_per_token(self) -> int:
        """What the drafter's own KV cache takes; 0 if it reads the target's."""
        return self.drafter.kv_elements_per_token.whole * self.spec.kv_bytes.whole if self.drafter else 0

    @property
    def drafter_reads_target(self) -> bool:
        """Whether there is a drafter that reads the target's KV cache and keeps none of its own."""
        return self.drafter is not None and not self.drafter_kv_bytes_per_token

    @property
    def max_stream_tokens(self) -> int:
        """Tokens that a stream, prompt and answer, has room for in the largest replica that has no other."""
        from agentload_simbackend._plan import build_plan  # It builds on this module.

        return max(replica.max_stream_tokens for replica in build_plan(self).replicas)

    @property
    def tool_slots(self) -> int | None:
        """Tools that run at a time; `None` is without limit."""
        stated, rack = self.spec.tool_slots, self.cpu_rack
        if stated is not None:
            return stated.whole or None
        if rack is None or rack.cpu_pool is None:
            return None
        return rack.cpu_pool.cpus.whole * rack.cpu_pool.cores_per_cpu.whole

    @property
    def cpu_rack(self) -> GpuRack | None:
        """The rack whose CPUs run tools."""
        return self.decode_rack if isinstance(self.decode_rack, GpuRack) else self.prefill_rack

    @property
    def racks(self) -> list[tuple[str, int]]:
        """How many racks of which name it takes; every rack of which it uses a chip counts whole."""
        used: Counter[str] = Counter()
        if self.cpu_rack is not None:
            used[self.cpu_rack.name] = 1
        for rack, side in (
            (self.decode_rack, self.spec.decode),
            (self.draft_rack, self.spec.draft.lpus if self.spec.draft is not None else None),
        ):
            if rack is not None and isinstance(side, LpuSide):
                used[rack.name] += side.racks.whole
        return list(used.items())

    def numbers(self) -> list[Number]:
        """Every number that the deployment's behaviour rests on; not those that others take the place of."""
        return list(used_numbers(self))

    def about(self) -> SimulatedModel:
        """What a server of it tells its clients, so that their reports can say it too."""
        return SimulatedModel(self.mode, self.spec_sha256, tuple(self.conditions()))

    def headline(self) -> str:
        """What its speeds hang on, in a short line for tables and plots.

        Such as `o = 65 us a layer (fitted); K = 7, 3.85 tokens a step (fitted)`.
        """
        return headline_of(self)

    def conditions(self) -> list[str]:
        """What any number that this deployment gives holds for: one sentence each.

        The first says what the simulation is, the second what its speeds hang on. Then the limits of the
        model that it meets, each fitted number, the fixed time of GPUs per layer, each estimate that a
        headline hangs on (sizes, speculation, links, splits), and last the other estimates together.
        """
        return conditions_of(self)
