"""The tensor-parallel group of LPUs that a schedule is for."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._specs import LpuChip, LpuRack, LpuSide
from agentload_traces import SpecError


class Group(NamedTuple):
    """`chips` LPUs that compute every layer together.

    built: how many it was built of. Those that have failed leave gaps: who is left is as far apart as before
        and goes on exchanging as much.
    links: C2C links that each of them uses, each at the chip's bandwidth over the links that it was built
        with.
    reach_s: from SRAM to SRAM, for the size as built. operation_time_s: see `LpuChip`. head_s, host_s: fixed
        times of the output head and of the host, once a step.
    """

    chip: LpuChip
    chips: int
    built: int
    links: int
    reach_s: float
    operation_time_s: float
    head_s: float
    host_s: float

    @property
    def clock_hz(self) -> float:
        """Cycles a second."""
        return self.chip.clock.value

    def cycles(self, seconds: float) -> int:
        """A fixed latency in whole cycles, the nearest."""
        return round(seconds * self.clock_hz)


def group_of(
    chip: LpuChip, rack: LpuRack, side: LpuSide | None, chips: int, *, built: int | None = None
) -> Group:
    """`chips` LPUs of such racks; `side` may state an operation time that was fitted to its group.

    built: of how many the group was built, if some have failed. Raises `SpecError` where the rack's table of
    reach latencies ends before.
    """
    built = chips if built is None else max(built, chips)
    sizes = [size for size in rack.reach if size >= built]
    if not sizes:
        raise SpecError(
            f"{rack.name}: reach: there is no latency for a group of {built} chips; "
            f"its table ends at {max(rack.reach, default=0)}"
        )
    fitted = side.operation_time if side is not None else None
    return Group(
        chip=chip,
        chips=chips,
        built=built,
        links=chip.c2c_links.whole,
        reach_s=rack.reach[min(sizes)].value,
        operation_time_s=(fitted or chip.operation_time).value,
        head_s=rack.head_time.value,
        host_s=rack.host_time.value,
    )
