"""The largest concurrency at which a deployment holds an SLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentload._sweep import SweptDeployment, look_up
from agentload._sweep_points import SweepPoint, Workload
from agentload._sweep_racks import HOW_COUNTED
from agentload._sweep_results import Row
from agentload._sweep_slo import Slo
from agentload_traces import AgentloadError

ASSUMPTION = (
    "Assumed: what breaks at one concurrency breaks at every higher one; what lies between two probes is not"
    " looked at."
)


class SizeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to size. context_tokens: `None` with a trace. most: the highest concurrency to try."""

    target: str
    slo: Slo
    workload: Workload
    context_tokens: int | None
    most: int = 1024
    seed: int = 0


class Probe(msgspec.Struct):
    """One concurrency that was tried; `broken` says how the SLO is broken, empty if it holds."""

    concurrency: int
    broken: list[str]
    row: Row

    @property
    def holds(self) -> bool:
        """Whether the SLO holds."""
        return not self.broken


class Sizing(msgspec.Struct):
    """What was found.

    largest: the largest concurrency that holds; 0 if 1 does not. at_limit: `most` holds, so more might.
    broken: how the SLO is broken at largest + 1; empty at the limit. probes: in the order of their making.
    """

    target: str
    slo: str
    largest: int
    at_limit: bool
    broken: list[str]
    assumption: str
    workload: str
    racks_counted: str
    deployment: SweptDeployment
    probes: list[Probe]


def largest_that_holds(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` for which `holds`; 0 if it does not for 1.

    Doubles until it does not hold, then halves what lies between: about 2 log2(result) calls, none twice.
    Assumes that `holds` goes from true to false once.
    """
    low, high = 0, 1
    while holds(high):
        low = high
        if high == most:
            return most
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def size(options: SizeOptions, show: Callable[[Probe], Any] = lambda probe: None) -> Sizing:
    """Find the largest concurrency at which `options.slo` holds; `show` is told of each probe as it is made.

    Raises `AgentloadError` for a deployment that cannot be loaded or run.
    """
    from agentload._sweep_measure import measure

    deployment = look_up(options.target)
    if deployment.error is not None:
        raise AgentloadError(deployment.error)
    probes: dict[int, Probe] = {}

    def holds(concurrency: int) -> bool:
        row = measure(
            SweepPoint(
                target=options.target,
                concurrency=concurrency,
                context_tokens=options.context_tokens,
                workload=options.workload,
                seed=options.seed,
            )
        )
        if row["error"] is not None:
            raise AgentloadError(row["error"])
        probe = Probe(concurrency, options.slo.broken_by(row), row)
        row["holds"], row["broken"] = probe.holds, "; ".join(probe.broken) or None
        probes[concurrency] = probe
        show(probe)
        return probe.holds

    largest = largest_that_holds(holds, options.most)
    above = probes.get(largest + 1)
    return Sizing(
        target=options.target,
        slo=str(options.slo),
        largest=largest,
        at_limit=above is None,
        broken=above.broken if above is not None else [],
        assumption=ASSUMPTION,
        workload=options.workload.sentence(),
        racks_counted=HOW_COUNTED,
        deployment=deployment,
        probes=list(probes.values()),
    )
