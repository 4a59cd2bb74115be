"""Which points of a plot have room for a label."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 0.04
_HEIGHT = 0.045
"""Room that a label takes, as parts of the plot's width and height."""


def labelled(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points whose labels do not cover each other, in their order.

    points: (x, y) on linear axes from 0 to the largest. Those that come first are labelled first.
    """
    across = max((x for x, _ in points), default=0) or 1
    up = max((y for _, y in points), default=0) or 1
    placed: list[int] = []
    for index, (x, y) in enumerate(points):
        if all(
            abs(x - points[other][0]) >= _WIDTH * across or abs(y - points[other][1]) >= _HEIGHT * up
            for other in placed
        ):
            placed.append(index)
    return placed
