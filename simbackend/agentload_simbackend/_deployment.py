"""A deployment: one model on given racks, with everything resolved; what fits, and what it rests on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import cached_property

from agentload_simbackend._memory import KvShape
from agentload_simbackend._quantity import KINDS, Kind, Number, numbers_of, shown_number
from agentload_simbackend._specs import (
    Decoder,
    DeploymentSpec,
    Drafter,
    GpuChip,
    GpuRack,
    Link,
    LpuChip,
    LpuDecode,
    LpuRack,
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
    link: Link
    prefill_rack: GpuRack
    prefill_chip: GpuChip
    decode_rack: LpuRack | GpuRack
    decode_chip: LpuChip | GpuChip
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
    def kv(self) -> KvShape:
        """Bytes of KV cache by tokens."""
        return KvShape.of(self.model, self.spec.kv_bytes.whole)

    @property
    def draft_tokens(self) -> int:
        """K, the draft tokens of a step; 0 without speculation."""
        return self.spec.speculation.draft_tokens.whole if self.spec.speculation else 0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per step for the deployment's content class; 1 without speculation."""
        speculation = self.spec.speculation
        return speculation.acceptance_length[speculation.content].value if speculation else 1.0

    @property
    def weights_bytes(self) -> int:
        """One copy of the model's weights."""
        return int(self.model.parameters.value * self.spec.weight_bytes.value)

    @property
    def drafter_bytes(self) -> int:
        """One copy of the drafter's weights."""
        return int(self.drafter.parameters.value * self.spec.weight_bytes.value) if self.drafter else 0

    @property
    def replica_kv_bytes(self) -> int:
        """Bytes that one decode replica has left for KV."""
        memory = self.decode_chip.sram if isinstance(self.decode_chip, LpuChip) else self.decode_chip.hbm
        decode = self.spec.decode
        usable = memory.value * decode.chips_per_replica.value * decode.usable_memory.value
        return int(usable) - self.weights_bytes - self.drafter_bytes

    @property
    def prefix_cache_bytes(self) -> int:
        """HBM that the prefill pool has left for its prefix cache."""
        prefill = self.spec.prefill
        usable = self.prefill_chip.hbm.value * prefill.gpus_per_instance.value * prefill.usable_memory.value
        return (int(usable) - self.weights_bytes) * prefill.instances.whole

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of the hand-off into one decode replica."""
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
        yield from numbers_of(self.link, "link")
        yield from numbers_of(self.prefill_rack, "prefill.rack")
        for number in numbers_of(self.prefill_chip, "prefill.chip"):
            if not number.path.startswith("prefill.chip.decode."):
                yield number
        yield from numbers_of(self.decode_rack, "decode.rack")
        for number in numbers_of(self.decode_chip, "decode.chip"):
            if not number.path.startswith("decode.chip.prefill."):
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
    expected = "lpu" if spec.mode == "pd" else "gpu"
    found = "lpu" if isinstance(spec.decode, LpuDecode) else "gpu"
    if found != expected:
        raise SpecError(f'{where}: decode.type is "{found}", must be "{expected}" in mode "{spec.mode}"')
    if spec.mode == "rubin" and spec.decode.rack != spec.prefill.rack:
        raise SpecError(
            f'{where}: decode.rack is "{spec.decode.rack}", must be the prefill rack in mode "rubin"'
        )
    _check_chips(deployment, where)
    _check_speculation(spec, where)
    layers = deployment.model.full_attention_layers.value + deployment.model.sliding_layers.value
    if layers != deployment.model.layers.value:
        raise SpecError(
            f"{where}: model {spec.model}: full and sliding layers are {layers:g}, not its layers"
        )
    for side, room in (("decode", deployment.replica_kv_bytes), ("prefill", deployment.prefix_cache_bytes)):
        if room <= 0:
            raise SpecError(
                f"{where}: {side}: weights and drafter "
                f"({(deployment.weights_bytes + deployment.drafter_bytes) / 1e9:.2f} GB) do not fit: "
                f"{-room / 1e9:.2f} GB too few; give it more chips"
            )


def _check_chips(deployment: Deployment, where: str) -> None:
    spec = deployment.spec
    prefill = spec.prefill.gpus_per_instance.whole * spec.prefill.instances.whole
    decode = spec.decode.chips_per_replica.whole * spec.decode.replicas.whole
    needs: list[tuple[str, int, GpuRack | LpuRack]]
    if spec.mode == "rubin":
        needs = [("prefill and decode", prefill + decode, deployment.prefill_rack)]
    else:
        needs = [("prefill", prefill, deployment.prefill_rack), ("decode", decode, deployment.decode_rack)]
    for side, chips, rack in needs:
        if chips > rack.chips.whole:
            raise SpecError(f"{where}: {side} takes {chips} chips, but {rack.name} has {rack.chips.whole}")
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
