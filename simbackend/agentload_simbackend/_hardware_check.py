"""What the numbers of chips and racks must be beside their units: sizes, and the ladder of reach."""

from __future__ import annotations

from itertools import pairwise

from agentload_simbackend._specs import GpuChip, GpuRack, LpuChip, LpuRack
from agentload_traces import SpecError

_MOST_CHIPS = 10_000
"""Of a rack; each may become a replica of its own."""

_MOST_LINKS = 10_000
_MOST_VECTOR_BYTES = 1_000_000

_TOGETHER = (("nvlink_bandwidth", "nvlink_efficiency"), ("host_memory", "host_bandwidth"))
"""Of a GPU: one without the other would be taken for none."""


def check_chip(chip: LpuChip | GpuChip, where: str) -> None:
    """Raise `SpecError` if half of a pair is missing, or vectors and links allow no schedule.

    where: its file.
    """
    if not isinstance(chip, LpuChip):
        for pair in _TOGETHER:
            missing = [key for key in pair if getattr(chip, key) is None]
            if len(missing) == 1:
                (there,) = set(pair) - set(missing)
                raise SpecError(f"{where}: {missing[0]}: missing, needed with {there}")
        return
    vector, links = chip.vector_bytes.value, chip.c2c_links.whole
    if not vector.is_integer() or not 1 <= vector <= _MOST_VECTOR_BYTES:
        raise SpecError(
            f"{where}: vector_bytes: value is {vector:g} B, must be a whole number of at most "
            f"{_MOST_VECTOR_BYTES:,}"
        )
    if links > _MOST_LINKS:
        raise SpecError(f"{where}: c2c_links: value is {links:,}, must be at most {_MOST_LINKS:,}")


def check_rack(rack: LpuRack | GpuRack, where: str) -> None:
    """Raise `SpecError` if a rack is too large or a larger group has a shorter reach; `where` is its file."""
    if rack.chips.whole > _MOST_CHIPS:
        raise SpecError(f"{where}: chips: value is {rack.chips.whole:,}, must be at most {_MOST_CHIPS:,}")
    if isinstance(rack, LpuRack):
        _check_reach(rack, where)


def _check_reach(rack: LpuRack, where: str) -> None:
    ladder = sorted((size, latency.value) for size, latency in rack.reach.items())
    if not ladder:
        raise SpecError(f"{where}: reach: must have the latency of at least one size of group")
    if ladder[0][0] < 1:
        raise SpecError(f"{where}: reach.{ladder[0][0]}: a group has at least 1 chip")
    for (size, latency_s), (larger, longer_s) in pairwise(ladder):
        if longer_s < latency_s:
            raise SpecError(
                f"{where}: reach.{larger}: value is {longer_s:g} s, must be at least the "
                f"{latency_s:g} s of {size} chips"
            )
