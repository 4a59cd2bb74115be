"""Step times that are piecewise linear in the summed context of a batch, and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

_TOLERANCE = 1e-4
"""How far a knot may lie from the line between its neighbours, as a share of its time. Between marks step
times are convex but for rounding to cycles: they stray at most twice as far as in the middle."""


_Knot = tuple[int, float]
"""A context, and the seconds there."""


class Piece(NamedTuple):
    """time = `base_ns` + `growth_ns` x context, from where the piece before ends up to `until_tokens`."""

    base_ns: float
    growth_ns: float
    until_tokens: float


Pieces = tuple[Piece, ...]
"""One function of the summed context, from 0 on; the last piece has no end."""


def line(base_s: float, per_token_s: float = 0.0) -> Pieces:
    """One line, given in seconds."""
    return (Piece(base_s * 1e9, per_token_s * 1e9, math.inf),)


def rising(per_token_s: float, until_tokens: float = math.inf) -> Pieces:
    """From nothing without context, up to a context from which on it stays as it is."""
    (rise,) = line(0.0, per_token_s)
    if until_tokens == math.inf:
        return (rise,)
    top_ns = rise.growth_ns * until_tokens
    return (rise._replace(until_tokens=until_tokens), Piece(top_ns, 0.0, math.inf))


def added(first: Pieces, *others: Pieces) -> Pieces:
    """One thing after the other."""
    for other in others:
        first = tuple(
            Piece(a.base_ns + b.base_ns, a.growth_ns + b.growth_ns, until_tokens)
            for a, b, until_tokens in _aligned(first, other)
        )
    return first


def largest(first: Pieces, *others: Pieces) -> Pieces:
    """Things at the same time: whichever takes longest."""
    for other in others:
        first = tuple(_larger(first, other))
    return first


def scaled(pieces: Pieces, factor: float) -> Pieces:
    """`factor` times as long."""
    return tuple(Piece(factor * base, factor * growth, until) for base, growth, until in pieces)


def for_share(pieces: Pieces, share: float) -> Pieces:
    """For a part of the batch that has `share` of its context, by the context of the whole."""
    return tuple(Piece(base, growth * share, until / share) for base, growth, until in pieces)


def value_ns(pieces: Pieces, context_tokens: float) -> float:
    """The time at one context."""
    piece = next(piece for piece in pieces if context_tokens < piece.until_tokens)
    return piece.base_ns + piece.growth_ns * context_tokens


def progression_ns(pieces: Pieces, first_tokens: float, spacing_tokens: float, count: int) -> float:
    """Sum of the times at `count` contexts that are `spacing_tokens` apart, without a loop over them."""
    total, done = 0.0, 0
    for base_ns, growth_ns, until_tokens in pieces:
        end = count
        if until_tokens < math.inf:
            end = min(count, max(done, math.ceil((until_tokens - first_tokens) / spacing_tokens)))
        here = end - done
        contexts = here * first_tokens + spacing_tokens * (here * (done + end - 1) / 2)
        total += here * base_ns + growth_ns * contexts
        done = end
    return total


def interpolated(time_s: Callable[[int], float], most_tokens: int, marks: Iterable[int] = ()) -> Pieces:
    """Lines between knots of `time_s`, as many as it takes up to `most_tokens`; beyond them the last goes on.

    marks: contexts at which it may bend downwards.
    """
    ends = sorted({0, most_tokens, *(mark for mark in marks if mark < most_tokens)})
    marked = [(context, time_s(context)) for context in ends]
    knots = marked[:1]
    for low, high in pairwise(marked):
        knots += [*_between(time_s, low, high), high]
    knots = _needed(knots)
    pieces: list[Piece] = []
    for (low_tokens, low_s), (high_tokens, high_s) in pairwise(knots):
        growth_ns = (high_s - low_s) * 1e9 / (high_tokens - low_tokens)
        pieces.append(Piece(low_s * 1e9 - growth_ns * low_tokens, growth_ns, high_tokens))
    pieces[-1] = pieces[-1]._replace(until_tokens=math.inf)
    return tuple(pieces)


def _between(time_s: Callable[[int], float], low: _Knot, high: _Knot) -> list[_Knot]:
    """Knots that the line between two others needs."""
    if high[0] - low[0] < 2:
        return []
    middle = (low[0] + high[0]) // 2
    knot = (middle, time_s(middle))
    if _on_line(low, knot, high):
        return [knot]
    return [*_between(time_s, low, knot), knot, *_between(time_s, knot, high)]


def _needed(knots: list[_Knot]) -> list[_Knot]:
    """Without those that lie on the line between others."""
    kept = knots[:1]
    passed: list[_Knot] = []
    for knot, after in pairwise(knots[1:]):
        passed.append(knot)
        if not all(_on_line(kept[-1], each, after) for each in passed):
            kept.append(knot)
            passed = []
    return [*kept, knots[-1]]


def _on_line(low: _Knot, knot: _Knot, high: _Knot) -> bool:
    share = (knot[0] - low[0]) / (high[0] - low[0])
    return abs(low[1] + share * (high[1] - low[1]) - knot[1]) <= _TOLERANCE * knot[1]


def _aligned(first: Pieces, other: Pieces) -> Iterator[tuple[Piece, Piece, float]]:
    """The pieces of two functions that hold together, and up to where."""
    a, b = iter(first), iter(other)
    one, two = next(a), next(b)
    while True:
        until_tokens = min(one.until_tokens, two.until_tokens)
        yield one, two, until_tokens
        if until_tokens == math.inf:
            return
        if one.until_tokens == until_tokens:
            one = next(a)
        if two.until_tokens == until_tokens:
            two = next(b)


def _larger(first: Pieces, other: Pieces) -> Iterator[Piece]:
    start_tokens = 0.0
    for one, two, until_tokens in _aligned(first, other):
        at_start = [(piece.base_ns + piece.growth_ns * start_tokens, piece.growth_ns) for piece in (one, two)]
        now, later = (one, two) if at_start[0] >= at_start[1] else (two, one)
        if later.growth_ns > now.growth_ns:
            crossing_tokens = (now.base_ns - later.base_ns) / (later.growth_ns - now.growth_ns)
            if crossing_tokens < until_tokens:
                if crossing_tokens > start_tokens:  # else they cross where they start, but for rounding
                    yield now._replace(until_tokens=crossing_tokens)
                now = later
        yield now._replace(until_tokens=until_tokens)
        start_tokens = until_tokens
