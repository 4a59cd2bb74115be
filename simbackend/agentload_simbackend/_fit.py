"""Which memory a deployment takes on which of its sides, and how many chips and racks that is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from agentload_simbackend._memory import KvShape
from agentload_simbackend._specs import GpuChip, LpuChip, LpuSide
from agentload_traces import SpecError

if TYPE_CHECKING:
    from agentload_simbackend._deployment import Deployment

_MOST_CHIPS = 1 << 20


class MemoryNeed(NamedTuple):
    """Memory of one group of chips: what it holds once, and what each stream takes besides.

    side: its place in the spec, such as `draft.lpus`. key: of its number of chips.
    usable: share of the chips' memory. rack_chips, racks: how many there are of.
    held: what so many chips hold for each token of a stream, and for each stream. GPUs hold copies of what
        they cannot split.
    """

    side: str
    key: str
    chip: LpuChip | GpuChip
    chips: int
    usable: float
    rack_chips: int
    racks: int
    weights_bytes: int
    drafter_bytes: int
    held: Callable[[int], tuple[int, int]]

    @property
    def bytes_per_token(self) -> int:
        """What a token of a stream takes."""
        return self.held(self.chips)[0]

    @property
    def bytes_per_stream(self) -> int:
        """What a stream takes besides."""
        return self.held(self.chips)[1]

    @property
    def chip_bytes(self) -> float:
        """Usable memory of one chip."""
        return memory_bytes(self.chip) * self.usable

    @property
    def room_bytes(self) -> int:
        """What is left for KV."""
        return int(self.chip_bytes * self.chips) - self.weights_bytes - self.drafter_bytes

    @property
    def holds_weights(self) -> bool:
        """Whether its chips hold the weights and a stream of one token."""
        return self.chips_for(1) <= self.chips

    def stream_bytes(self, tokens: int) -> int:
        """What a stream of so many tokens takes."""
        return self.bytes_per_token * tokens + self.bytes_per_stream

    def streams(self, tokens: int) -> int | None:
        """How many streams of so many tokens fit (`None`: they take nothing here)."""
        stream = self.stream_bytes(tokens)
        return self.room_bytes // stream if stream else None

    def chips_for(self, tokens: int) -> int:
        """Chips that hold the weights and one stream of so many tokens; at most 2^20 + 1, which do not."""

        def fit(chips: int) -> bool:
            token, stream = self.held(chips)
            needed = self.weights_bytes + self.drafter_bytes + token * tokens + stream
            return needed <= self.chip_bytes * chips

        return bisect_left(range(1, _MOST_CHIPS + 1), True, key=fit) + 1


def memory_bytes(chip: LpuChip | GpuChip) -> float:
    """SRAM or HBM of a chip."""
    return chip.sram.value if isinstance(chip, LpuChip) else chip.hbm.value


def memory_needs(deployment: Deployment) -> Iterator[MemoryNeed]:
    """The groups of chips of a deployment, each once however many replicas there are."""
    yield from _prefill_needs(deployment)
    yield _decode_need(deployment)
    yield from _draft_needs(deployment)


def streams_that_fit(deployment: Deployment, tokens: int) -> int:
    """How many streams of so many tokens its decode replicas hold at a time, spill aside."""
    beside = ("decode", "attention", "draft.lpus")
    fits = [need.streams(tokens) for need in memory_needs(deployment) if need.side in beside]
    return min(fit for fit in fits if fit is not None) * deployment.spec.decode.replicas.whole


def check_fit(deployment: Deployment, where: str) -> None:
    """Raise `SpecError` with the arithmetic if a group cannot hold its weights and a stream of one token."""
    for need in memory_needs(deployment):
        if not need.holds_weights:
            raise SpecError(f"{where}: {_refusal(need)}")


def _refusal(need: MemoryNeed) -> str:
    weights = f"weights ({need.weights_bytes / 1e9:,.2f} GB)"
    if need.drafter_bytes:
        weights = (
            f"weights and drafter ({need.weights_bytes / 1e9:,.2f} + {need.drafter_bytes / 1e9:,.2f} GB)"
            if need.weights_bytes
            else f"the drafter ({need.drafter_bytes / 1e9:,.2f} GB)"
        )
    kind = "LPUs" if isinstance(need.chip, LpuChip) else "GPUs"
    wanted = need.chips_for(1)
    said = (
        f"{need.side}.{need.key} is {need.chips:,}, but {weights} and one token of KV need {wanted:,} {kind} "
        f"of {need.chip_bytes / 1e9:,.4g} GB usable ({need.usable:g} x "
        f"{memory_bytes(need.chip) / 1e9:,.4g} GB)"
    )
    if wanted <= need.rack_chips * need.racks:
        return said
    there = f"there {'is' if need.racks == 1 else 'are'} {need.racks}"
    return f"{said}: {wanted / need.rack_chips:,.2f} racks of {need.rack_chips}, and {there}"


def _prefill_needs(deployment: Deployment) -> Iterator[MemoryNeed]:
    """Prefill, and what else a mode puts beside it: attention over the context, the side that spills."""
    prefill, chip, rack = deployment.spec.prefill, deployment.prefill_chip, deployment.prefill_rack
    if prefill is None or chip is None or rack is None:
        return
    whole = MemoryNeed(
        side="prefill",
        key="gpus_per_instance",
        chip=chip,
        chips=prefill.gpus_per_instance.whole,
        usable=prefill.usable_memory.value,
        rack_chips=rack.chips.whole,
        racks=1,
        weights_bytes=deployment.weights_bytes(chip),
        drafter_bytes=0,
        held=lambda gpus: _on_gpus(deployment, gpus),
    )
    yield whole
    attention, spill = deployment.spec.attention, deployment.spec.spill
    if attention is not None:
        yield whole._replace(
            side="attention",
            key="gpus_per_replica",
            chips=attention.gpus_per_replica.whole,
            weights_bytes=int(deployment.shape.growing_mixer_parameters * deployment.stored_bytes(chip)),
            held=lambda gpus: (_on_gpus(deployment, gpus)[0], 0),
        )
    if spill is not None:
        yield whole._replace(
            side="spill",
            key="chips_per_replica",
            chips=spill.chips_per_replica.whole,
            usable=spill.usable_memory.value,
            drafter_bytes=deployment.drafter_bytes(chip),
        )


def _decode_need(deployment: Deployment) -> MemoryNeed:
    decode, chip, rack = deployment.spec.decode, deployment.decode_chip, deployment.decode_rack
    split, kv = deployment.spec.attention is not None, deployment.kv
    weights = deployment.weights_bytes(chip)
    if split:
        weights -= int(deployment.shape.growing_mixer_parameters * deployment.stored_bytes(chip))
    own_drafter = deployment.spec.draft is None
    drafter_token = deployment.drafter_kv_bytes_per_token if own_drafter else 0

    def held(chips: int) -> tuple[int, int]:
        if isinstance(chip, LpuChip):
            return (0 if split else kv.bytes_per_token) + drafter_token, kv.fixed_bytes
        token, stream = _on_gpus(deployment, chips)
        return token + drafter_token, stream

    return MemoryNeed(
        side="decode",
        key="chips_per_replica",
        chip=chip,
        chips=decode.chips_per_replica.whole,
        usable=decode.usable_memory.value,
        rack_chips=rack.chips.whole,
        racks=decode.racks.whole if isinstance(decode, LpuSide) else 1,
        weights_bytes=weights,
        drafter_bytes=deployment.drafter_bytes(chip) if own_drafter else 0,
        held=held,
    )


def _draft_needs(deployment: Deployment) -> Iterator[MemoryNeed]:
    draft, chip, rack = deployment.spec.draft, deployment.draft_chip, deployment.draft_rack
    if draft is None or chip is None or rack is None:
        return
    yield MemoryNeed(
        side="draft.lpus",
        key="chips_per_replica",
        chip=chip,
        chips=draft.lpus.chips_per_replica.whole,
        usable=draft.lpus.usable_memory.value,
        rack_chips=rack.chips.whole,
        racks=draft.lpus.racks.whole,
        weights_bytes=0,
        drafter_bytes=deployment.drafter_bytes(chip),
        held=lambda lpus: (deployment.drafter_kv_bytes_per_token, 0),
    )


def _on_gpus(deployment: Deployment, gpus: int) -> tuple[int, int]:
    kv = KvShape.on_gpus(deployment.shape, deployment.spec.kv_bytes.whole, gpus)
    return kv.bytes_per_token, kv.fixed_bytes
