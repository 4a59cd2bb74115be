"""The Pareto frontier of a sweep."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other point beats, in order of the first coordinate, then the second.

    More is better in both. A point is beaten by one that is at least as good in both and better in one; of
    equal points all stay.
    """
    best = float("-inf")
    kept: list[int] = []
    order = sorted(range(len(points)), key=lambda index: points[index], reverse=True)
    for index in order:
        value = points[index][1]
        if value > best or (kept and points[index] == points[kept[-1]]):
            best = value
            kept.append(index)
    return sorted(kept, key=lambda index: (*points[index], index))
