"""A deployment: one model on given racks, with everything resolved."""

from __future__ import annotations

import dataclasses
from functools import cached_property

from agentload_simbackend._conditions import conditions_of, used_numbers
from agentload_simbackend._fit import memory_needs
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
        """Bytes of a parameter as `chip` stores it: what it has no format for grows to its narrowest."""
        published = self.spec.weight_bytes or self.model.weight_bytes
        return max(published.value, chip.least_weight_bytes.value)

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
    def replica_kv_bytes(self) -> int:
        """Bytes that the chips of one decode replica have left for KV."""
        return next(need.room_bytes for need in memory_needs(self) if need.side == "decode")

    @property
    def prefix_cache_bytes(self) -> int:
        """HBM that the prefill pool has left for its prefix cache."""
        prefill, chip = self.spec.prefill, self.prefill_chip
        if prefill is None or chip is None:
            return 0
        usable = chip.hbm.value * prefill.gpus_per_instance.value * prefill.usable_memory.value
        return (int(usable) - self.weights_bytes(chip)) * prefill.instances.whole

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of the hand-off into one decode replica; 0 without a link."""
        if self.link is None:
            return 0.0
        per_chip = self.link.bandwidth_per_chip.value * self.link.efficiency.value
        return per_chip * self.spec.decode.chips_per_replica.value

    @property
    def racks(self) -> list[tuple[str, int]]:
        """How many racks of which name it takes."""
        used: dict[str, int] = {}
        if self.prefill_rack is not None:
            used[self.prefill_rack.name] = 1
        decode = self.spec.decode
        used[self.decode_rack.name] = decode.racks.whole if isinstance(decode, LpuSide) else 1
        if self.spec.draft is not None and self.draft_rack is not None:
            used[self.draft_rack.name] = self.spec.draft.lpus.racks.whole
        return list(used.items())

    def numbers(self) -> list[Number]:
        """Every number that the deployment's behaviour rests on."""
        return list(used_numbers(self))

    def about(self) -> SimulatedModel:
        """What a server of it tells its clients, so that their reports can say it too."""
        return SimulatedModel(self.mode, self.spec_sha256, tuple(self.conditions()))

    def conditions(self) -> list[str]:
        """What any number that this deployment gives holds for: one sentence each.

        The first says what the simulation is, the next what of the model grows on a chip. Then each fitted
        number, the fixed time of GPUs per layer, each estimate that a headline hangs on (sizes, speculation,
        links, splits), and last the other estimates together.
        """
        return conditions_of(self)
