"""Gaps between the arrivals of sessions, drawn: the same on every machine, and whoever asks.

A gap is a pure function of the seed and the number of the launch that it precedes. Its mean is 1, for it is
in units of the mean gap, which `_stages` turns into times where the rate changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from struct import Struct

from agentload._options import ArrivalLaw
from agentload._portable_math import ln
from agentload._random_laws import Draw, gamma, uniforms

_address = Struct("<QQ")


def drawn_positions(arrival: ArrivalLaw, burstiness: float, seed: int) -> Iterator[float]:
    """How many mean gaps after the start each launch comes, from launch 0 on without end.

    Constant: 0, 1, 2... Poisson and gamma: each gap is drawn, the one before the first launch too.
    """
    if arrival == "constant":
        yield from map(float, count())
    gap = _gap(arrival, burstiness)
    at = 0.0
    for number in count():
        at += gap(uniforms(_address.pack(seed, number), b"arrival gap"))
        yield at


def _gap(arrival: ArrivalLaw, burstiness: float) -> Draw:
    if arrival == "poisson":
        return lambda numbers: -ln(next(numbers))
    return lambda numbers: gamma(burstiness, numbers) / burstiness
