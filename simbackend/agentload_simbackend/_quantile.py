"""The quantile that every median and percentile of a comparison is."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float | None:
    """By linear interpolation; `None` of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
