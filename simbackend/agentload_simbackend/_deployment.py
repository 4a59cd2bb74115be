"""A deployment: one model on given racks, with everything resolved; what fits, and what it rests on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import cached_property

from agentload_simbackend._memory import KvShape
from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Decoder, Drafter
from agentload_simbackend._quantity import KINDS, Kind, Number, numbers_of, shown_number
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
from agentload_traces import SpecError

_HEADLINE = re.compile(r"(decode|speculation|link)\.(?!chip\.|rack\.)")
"""Paths of the numbers that a deployment's headline hangs on, as against those of racks and chips."""

_KIND_WORDS: dict[Kind, str] = {
    "fact": "are facts",
    "vendor_claim": "are the maker's claims",
    "estimate": "are estimates",
    "fitted": "are fitted to published figures",
}


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
    def replica_kv_bytes(self) -> int:
        """Bytes that one decode replica has left for KV."""
        chip, decode = self.decode_chip, self.spec.decode
        memory = chip.sram if isinstance(chip, LpuChip) else chip.hbm
        usable = memory.value * decode.chips_per_replica.value * decode.usable_memory.value
        return int(usable) - self.weights_bytes(chip) - self.drafter_bytes(chip)

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

    def numbers(self) -> list[Number]:
        """Every number that the deployment's behaviour rests on."""
        return list(self._numbers())

    def _numbers(self) -> Iterator[Number]:
        unused_lengths = {
            f"speculation.acceptance_length.{content}"
            for content in (self.spec.speculation.acceptance_length if self.spec.speculation else ())
            if self.spec.speculation and content != self.spec.speculation.content
        }
        for number in numbers_of(self.spec, ""):
            if number.path not in unused_lengths:
                yield number
        yield from numbers_of(self.model, "model")
        if self.drafter is not None:
            yield from numbers_of(self.drafter, "drafter")
        for link, name in ((self.link, "link"), (self.split_link, "split_link")):
            if link is not None:
                yield from numbers_of(link, name)
        yield from self._numbers_of_side("prefill", self.prefill_rack, self.prefill_chip, ".decode.")
        yield from self._numbers_of_side("decode", self.decode_rack, self.decode_chip, ".prefill.")
        yield from self._numbers_of_side("draft", self.draft_rack, self.draft_chip, ".prefill.")

    def _numbers_of_side(
        self, side: str, rack: LpuRack | GpuRack | None, chip: LpuChip | GpuChip | None, unused: str
    ) -> Iterator[Number]:
        """Of a side's rack and chip all but what the other side would use."""
        if rack is None or chip is None:
            return
        yield from numbers_of(rack, f"{side}.rack")
        for number in numbers_of(chip, f"{side}.chip"):
            if not number.path.startswith(f"{side}.chip{unused}"):
                yield number

    def about(self) -> SimulatedModel:
        """What a server of it tells its clients, so that their reports can say it too."""
        return SimulatedModel(self.mode, self.spec_sha256, tuple(self.conditions()))

    def conditions(self) -> list[str]:
        """What any number that this deployment gives holds for: one sentence each.

        The first says what the simulation is. Then each fitted number, each estimate that a headline hangs
        on (replicas, speculation, link), and last the other estimates together.
        """
        sentences = [self._standing()]
        estimates, others = [], []
        for path, quantity in self.numbers():
            words = path.replace(".", " ").replace("_", " ")
            value = shown_number(quantity.value, quantity.unit)
            note = f": {quantity.note}" if quantity.note else ""
            if quantity.kind == "fitted":
                sentences.append(f"{words.capitalize()} = {value} is fitted{note}.")
            elif quantity.kind == "estimate" and note and _HEADLINE.match(path):
                estimates.append(f"{words.capitalize()} = {value} is an estimate{note}.")
            elif quantity.kind == "estimate":
                others.append(f"{words} {value}")
        sentences += estimates
        if others:
            sentences.append(f"Also estimates: {', '.join(others)}.")
        return sentences

    def _standing(self) -> str:
        """What the simulation is, by the weakest kind of number that it rests on."""
        kinds = [quantity.kind for _, quantity in self.numbers()]
        counts = [(kinds.count(kind), _KIND_WORDS[kind]) for kind in reversed(KINDS)]
        parts = ", ".join(f"{count} {words}" for count, words in counts if count)
        verdict = "a calibration, no validation" if "fitted" in kinds else "no run of it was validated"
        return f"Simulated on {self.name}: of its {len(kinds)} numbers {parts}; {verdict}."


def check_deployment(deployment: Deployment, where: str) -> None:
    """Raise `SpecError` if the parts do not fit together; `where` is the deployment's file."""
    spec = deployment.spec
    expected = "gpu" if spec.mode in ("rubin", "drafter") else "lpu"
    found = "lpu" if isinstance(spec.decode, LpuSide) else "gpu"
    if found != expected:
        raise SpecError(f'{where}: decode.type is "{found}", must be "{expected}" in mode "{spec.mode}"')
    if spec.mode == "rubin" and spec.prefill is not None and spec.decode.rack != spec.prefill.rack:
        raise SpecError(
            f'{where}: decode.rack is "{spec.decode.rack}", must be the prefill rack in mode "rubin"'
        )
    _check_chips(deployment, where)
    _check_speculation(spec, where)
    rooms = [("decode", deployment.replica_kv_bytes, deployment.decode_chip)]
    if deployment.prefill_chip is not None:
        rooms.append(("prefill", deployment.prefix_cache_bytes, deployment.prefill_chip))
    for side, room, chip in rooms:
        if room <= 0:
            weights = deployment.weights_bytes(chip) + deployment.drafter_bytes(chip)
            raise SpecError(
                f"{where}: {side}: weights and drafter ({weights / 1e9:.2f} GB) do not fit: "
                f"{-room / 1e9:.2f} GB too few; give it more chips"
            )


def _check_chips(deployment: Deployment, where: str) -> None:
    spec = deployment.spec
    prefill = spec.prefill.gpus_per_instance.whole * spec.prefill.instances.whole if spec.prefill else 0
    decode = spec.decode.chips_per_replica.whole * spec.decode.replicas.whole
    needs: list[tuple[str, int, GpuRack | LpuRack, int]]
    racks = spec.decode.racks.whole if isinstance(spec.decode, LpuSide) else 1
    if spec.mode == "rubin":
        needs = [("prefill and decode", prefill + decode, deployment.decode_rack, 1)]
    else:
        needs = [("decode", decode, deployment.decode_rack, racks)]
        if deployment.prefill_rack is not None:
            needs.insert(0, ("prefill", prefill, deployment.prefill_rack, 1))
    for side, chips, rack, count in needs:
        if chips > rack.chips.whole * count:
            raise SpecError(
                f"{where}: {side} takes {chips} chips, but {rack.name} has {rack.chips.whole * count}"
            )
    if isinstance(deployment.decode_rack, LpuRack):
        largest = max(deployment.decode_rack.reach, default=0)
        if spec.decode.chips_per_replica.whole > largest:
            raise SpecError(
                f"{where}: decode.chips_per_replica: {deployment.decode_rack.name} has no reach latency for "
                f"a group of {spec.decode.chips_per_replica.whole}; its table ends at {largest}"
            )


def _check_speculation(spec: DeploymentSpec, where: str) -> None:
    if spec.speculation is None:
        return
    lengths = spec.speculation.acceptance_length
    if spec.speculation.content not in lengths:
        raise SpecError(
            f'{where}: speculation.content is "{spec.speculation.content}", '
            f"must be one of {', '.join(lengths) or 'the acceptance_length tables (there are none)'}"
        )
    most = spec.speculation.draft_tokens.whole + 1
    for content, length in lengths.items():
        if length.value > most:
            raise SpecError(
                f"{where}: speculation.acceptance_length.{content}: value is {length.value:g}, "
                f"but a step yields at most draft_tokens + 1 = {most}"
            )
