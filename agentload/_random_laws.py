"""Draws that are the same on every machine, and whoever asks: pure functions of an address, some bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import count
from math import sqrt
from struct import Struct

from agentload._portable_math import exp, ln

Uniforms = Iterator[float]
"""Numbers between 0 and 1, neither of them included; without end."""

Draw = Callable[[Uniforms], float]
"""A draw of a law, from as many numbers as it needs."""

_block = Struct("<Q")
_words = Struct("<8Q")
_RANGE = 2.0**-52


def uniforms(address: bytes, person: bytes) -> Uniforms:
    """The numbers of an address, of any length. person: what they are for, at most 16 bytes."""
    for block in count():
        for word in _words.unpack(blake2b(address + _block.pack(block), person=person).digest()):
            yield ((word >> 12) + 0.5) * _RANGE


def normal(numbers: Uniforms) -> float:
    """A draw of the standard normal law (Marsaglia's polar method)."""
    while True:
        x, y = 2 * next(numbers) - 1, 2 * next(numbers) - 1
        square = x * x + y * y
        if 0 < square < 1:
            return x * sqrt(-2 * ln(square) / square)


def gamma(shape: float, numbers: Uniforms) -> float:
    """A draw of the gamma law of scale 1 (Marsaglia and Tsang, ACM TOMS 26(3), 2000)."""
    if shape < 1:
        # The same paper, section 6: a draw of shape + 1 times U to the power of 1 / shape.
        whole = gamma(shape + 1, numbers)
        return whole * exp(ln(next(numbers)) / shape)
    d = shape - 1 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = normal(numbers)
        v = 1 + c * x
        if v <= 0:
            continue
        v = v * v * v
        if ln(next(numbers)) < x * x / 2 + d - d * v + d * ln(v):
            return d * v
