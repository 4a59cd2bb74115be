"""The largest concurrency at which a deployment holds an SLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentload._sweep import SweptDeployment, look_up
from agentload._sweep_points import LEAST_SESSIONS, SweepPoint, Workload
from agentload._sweep_results import HOW_COUNTED, Row
from agentload._sweep_slo import Slo
from agentload_traces import AgentloadError, decodable

ASSUMPTION = (
    "Assumed: what breaks at one concurrency breaks at every higher one; what lies between two probes is not"
    " looked at."
)


_MORE = 2
"""How many times more sessions are played when all concurrencies hold that the sessions so far allow."""


class SizeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to size. context_tokens: `None` with a trace. most: the highest concurrency to try."""

    target: str
    slo: Slo
    workload: Workload
    context_tokens: int | None
    most: int = 1024
    seed: int = 0


class Probe(msgspec.Struct):
    """One concurrency that was tried.

    places: see `SweepPoint`. broken: how the SLO is broken, empty if it holds. values: what it is judged by,
    with the standard errors. close: a limit is within two of them.
    """

    concurrency: int
    places: int
    broken: list[str]
    values: list[str]
    close: bool
    row: Row

    @property
    def holds(self) -> bool:
        """Whether the SLO holds."""
        return not self.broken


class Sizing(msgspec.Struct):
    """What was found.

    largest: the largest concurrency that holds; 0 if 1 does not. at_limit: `most` holds, so more might.
    at, above: what was found at `largest` and at largest + 1, with the same sessions; `None` if that is 0 or
    beyond the limit. probes: in the order of their making.
    """

    target: str
    slo: str
    largest: int
    at_limit: bool
    at: Probe | None
    above: Probe | None
    assumption: str
    workload: str
    racks_counted: str
    deployment: SweptDeployment
    probes: list[Probe]


def largest_that_holds(holds: Callable[[int], bool], most: int, first: int = 1) -> int:
    """The largest number from 1 to `most` for which `holds`; 0 if it does not for 1.

    Tries `first` and doubles it until it does not hold, then halves what lies between: about 2 log2(result)
    calls, none twice. Assumes that `holds` goes from true to false once.
    """
    low, high = 0, first
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

    All probes that the answer rests on play the same sessions. Where all concurrencies hold that these allow,
    more of them are played, from the last that held on. Raises `AgentloadError` for a deployment that cannot
    be loaded or run.
    """
    deployment = look_up(options.target)
    if deployment.error is not None:
        raise AgentloadError(deployment.error)
    probes: list[Probe] = []

    def holds(concurrency: int) -> bool:
        probes.append(_probe(options, concurrency, places))
        show(probes[-1])
        return probes[-1].holds

    places = min(LEAST_SESSIONS, options.most)
    largest = largest_that_holds(holds, places)
    while largest == places < options.most:
        places = min(_MORE * places, options.most)
        largest = largest_that_holds(holds, places, largest)
    found = {probe.concurrency: probe for probe in probes if probe.places == places}
    return Sizing(
        target=decodable(options.target),
        slo=str(options.slo),
        largest=largest,
        at_limit=largest == options.most,
        at=found.get(largest),
        above=found.get(largest + 1),
        assumption=ASSUMPTION,
        workload=options.workload.sentence(places),
        racks_counted=HOW_COUNTED,
        deployment=deployment,
        probes=probes,
    )


def _probe(options: SizeOptions, concurrency: int, places: int) -> Probe:
    from agentload._sweep_measure import measure

    slo = options.slo
    row = measure(
        SweepPoint(
            target=options.target,
            concurrency=concurrency,
            places=places,
            context_tokens=options.context_tokens,
            workload=options.workload,
            seed=options.seed,
        )
    )
    if row["error"] is not None:
        raise AgentloadError(row["error"])
    return Probe(concurrency, places, slo.judge(row), slo.values_in(row), slo.is_close(row), row)
