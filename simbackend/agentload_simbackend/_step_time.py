"""How long one decode step takes, as a function of the batch and its contexts.

For a given batch a step time is piecewise linear in the total context. So between two changes of a batch the
step time grows linearly with the context, but for the points at which another piece begins; a step model
tells the next of them, and any number of steps up to there is one formula.
"""

from __future__ import annotations

from collections.abc import Callable

from agentload_simbackend._afd_step import Crossing, afd_step
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._drafter_step import DraftLink, drafter_step
from agentload_simbackend._gpu_step import gpu_drafts_s, gpu_step
from agentload_simbackend._gpu_terms import GpuGroup
from agentload_simbackend._lpu_step import LpuWork, lpu_drafted_step
from agentload_simbackend._pieces import Pieces, added, line, scaled
from agentload_simbackend._schedule_group import group_of
from agentload_simbackend._specs import GpuChip, GpuSide, Link, LpuChip, LpuRack, LpuSide

StepTime = tuple[float, float, float]
"""Time of a step now, its growth per further token of context (both in ns), and the total context at which
another piece begins (infinite if none does)."""


class StepModel:
    """Step times of one decode replica; `pieces_of` gives them for a batch."""

    def __init__(self, pieces_of: Callable[[int], Pieces]) -> None:
        self._pieces_of = pieces_of
        self._pieces: dict[int, Pieces] = {}

    def step(self, batch: int, context_tokens: float) -> StepTime:
        """Time of a step of `batch` streams whose contexts sum to `context_tokens`."""
        pieces = self._pieces.get(batch)
        if pieces is None:
            pieces = self._pieces[batch] = self._pieces_of(batch)
        for base_ns, growth_ns, until_tokens in pieces:
            if context_tokens < until_tokens:
                return base_ns + growth_ns * context_tokens, growth_ns, until_tokens
        raise AssertionError("the last piece has no end")

    def slowed(self, factor: float) -> StepModel:
        """The same replica when every step takes `factor` times as long (a throttled clock)."""
        return StepModel(lambda batch: scaled(self.pieces(batch), factor))

    def pieces(self, batch: int) -> Pieces:
        """The step time of a batch at all contexts."""
        self.step(batch, 0.0)
        return self._pieces[batch]


def step_model(deployment: Deployment, chips: int | None = None, *, spill: bool = False) -> StepModel:
    """The step model of a decode replica, or of one to spill to.

    chips: that are left of it (LPUs in mode afd, GPUs in mode drafter), if not all that the deployment says.
    """
    spec = deployment.spec
    side: LpuSide | GpuSide = spec.decode
    if spill:
        assert spec.spill is not None
        side = spec.spill
    chips = side.chips_per_replica.whole if chips is None else chips
    if isinstance(side, LpuSide):
        return _on_lpus(deployment, lpu_work(deployment, chips))
    return _on_gpus(deployment, gpu_group(deployment, chips))


def _on_lpus(deployment: Deployment, work: LpuWork) -> StepModel:
    drafter, drafts = deployment.drafter, deployment.draft_tokens
    crossing = crossing_of(deployment, work.group.chips)

    def lpx(batch: int) -> Pieces:
        return lpu_drafted_step(work, drafter, batch, drafts)

    if crossing is None:
        return StepModel(lpx)
    shape, tokens = deployment.shape, drafts + 1
    return StepModel(lambda batch: afd_step(shape, crossing, lpx, batch=batch, tokens=tokens))


def crossing_of(deployment: Deployment, lpus: int) -> Crossing | None:
    """The way from so many LPUs to the attention side, in mode afd."""
    attention, link, drafter = deployment.spec.attention, deployment.split_link, deployment.drafter
    if attention is None:
        return None
    assert link is not None
    per_draft = attention.draft_crossings
    return Crossing(
        gpu_group(deployment, attention.gpus_per_replica.whole),
        link_bytes_per_s(link, lpus),
        link.latency.value,
        attention.crossing_overhead.value,
        attention.activation_bytes.whole,
        attention.micro_batches.whole,
        per_draft.whole if per_draft is not None and drafter is not None else 0,
        drafter.hidden.whole if drafter is not None else 0,
    )


def _on_gpus(deployment: Deployment, gpus: GpuGroup) -> StepModel:
    shape = deployment.shape
    drafter, drafts, draft = deployment.drafter, deployment.draft_tokens, deployment.spec.draft
    if drafter is None or not drafts:
        return StepModel(lambda batch: gpu_step(shape, gpus, batch=batch, tokens=1))
    if draft is None:
        drafts_s = gpu_drafts_s(drafter, gpus, drafts)
        return StepModel(
            lambda batch: added(gpu_step(shape, gpus, batch=batch, tokens=drafts + 1), line(drafts_s))
        )
    split, chip, rack = deployment.split_link, deployment.draft_chip, deployment.draft_rack
    assert split is not None
    assert chip is not None
    assert rack is not None
    lpus = draft.lpus.chips_per_replica.whole
    work = LpuWork(
        deployment.model,
        group_of(chip, rack, draft.lpus, lpus),
        deployment.stored_bytes(chip),
        deployment.spec.kv_bytes.whole,
    )
    link = DraftLink(draft.token_bytes.value, link_bytes_per_s(split, lpus), split.latency.value)
    return StepModel(
        lambda batch: drafter_step(shape, gpus, drafter, work, link, batch=batch, draft_tokens=drafts)
    )


def lpu_work(deployment: Deployment, chips: int) -> LpuWork:
    """What the LPUs of a decode replica compute, if so many are left of those it was built of.

    They are spread over the same racks as before, and keep the operation time that was fitted to all.
    """
    spec, rack, chip = deployment.spec, deployment.decode_rack, deployment.decode_chip
    assert isinstance(chip, LpuChip)
    assert isinstance(rack, LpuRack)
    assert isinstance(spec.decode, LpuSide)
    return LpuWork(
        deployment.model,
        group_of(chip, rack, spec.decode, chips, built=spec.decode.chips_per_replica.whole),
        deployment.stored_bytes(chip),
        spec.kv_bytes.whole,
        split_attention=spec.attention is not None,
    )


def gpu_group(deployment: Deployment, chips: int) -> GpuGroup:
    """GPUs that decode, or verify; else those of the prefill rack, which attention and spill use too."""
    chip = deployment.decode_chip if isinstance(deployment.decode_chip, GpuChip) else deployment.prefill_chip
    assert chip is not None
    return GpuGroup(chip, chips, deployment.stored_bytes(chip), deployment.spec.kv_bytes.whole)


def link_bytes_per_s(link: Link, chips: int) -> float:
    """Bandwidth per direction that a link gives a group of so many chips."""
    return link.bandwidth_per_chip.value * link.efficiency.value * chips
