"""Gaps between the arrivals of sessions, drawn: the same on every machine, and whoever asks.

A gap is a pure function of the seed and the number of the launch that it precedes. Its mean is 1, for it is
in units of the mean gap, which `_stages` turns into times where the rate changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import count
from math import sqrt
from struct import Struct

from agentload._options import Arrival
from agentload._portable_math import exp, ln

_address = Struct("<QQQ")
_words = Struct("<8Q")
_RANGE = 2.0**-52


def drawn_positions(arrival: Arrival, burstiness: float, seed: int) -> Iterator[float]:
    """How many mean gaps after the start each launch comes, from launch 0 on without end.

    Constant: 0, 1, 2... Poisson and gamma: each gap is drawn, the one before the first launch too.
    """
    if arrival == "constant":
        yield from map(float, count())
    gap = _gap(arrival, burstiness)
    at = 0.0
    for number in count():
        at += gap(_uniforms(seed, number))
        yield at


def _gap(arrival: Arrival, burstiness: float) -> Callable[[Iterator[float]], float]:
    if arrival == "poisson":
        return lambda uniforms: -ln(next(uniforms))
    return lambda uniforms: gamma(burstiness, uniforms) / burstiness


def _uniforms(seed: int, number: int) -> Iterator[float]:
    """Numbers between 0 and 1, neither of them included; as many as a draw needs."""
    for block in count():
        digest = blake2b(_address.pack(seed, number, block), person=b"arrival gap").digest()
        for word in _words.unpack(digest):
            yield ((word >> 12) + 0.5) * _RANGE


def normal(uniforms: Iterator[float]) -> float:
    """A draw of the standard normal law (Marsaglia's polar method)."""
    while True:
        x, y = 2 * next(uniforms) - 1, 2 * next(uniforms) - 1
        square = x * x + y * y
        if 0 < square < 1:
            return x * sqrt(-2 * ln(square) / square)


def gamma(shape: float, uniforms: Iterator[float]) -> float:
    """A draw of the gamma law of scale 1 (Marsaglia and Tsang, ACM TOMS 26(3), 2000)."""
    if shape < 1:
        # The same paper, section 6: a draw of shape + 1 times U to the power of 1 / shape.
        whole = gamma(shape + 1, uniforms)
        return whole * exp(ln(next(uniforms)) / shape)
    d = shape - 1 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = normal(uniforms)
        v = 1 + c * x
        if v <= 0:
            continue
        v = v * v * v
        if ln(next(uniforms)) < x * x / 2 + d - d * v + d * ln(v):
            return d * v
