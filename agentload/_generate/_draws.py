"""Random draws that are the same everywhere: words of a hash of where they are used, in integer arithmetic.

A word is an unsigned 32-bit integer. Quantile tables are interpolated with integers only, so that no
difference between mathematical libraries, Python versions or processors can change a generated trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import accumulate
from struct import Struct
from typing import TypeVar

T = TypeVar("T")

_WORD_RANGE = 2**32
_address = Struct("<QQQ")
_words = Struct("<16I")


def words(purpose: bytes, seed: int, session: int, number: int) -> tuple[int, ...]:
    """The sixteen words at an address; `purpose` (at most 16 bytes) keeps different draws apart."""
    digest = blake2b(_address.pack(seed, session, number), person=purpose).digest()
    return _words.unpack(digest)


def quantile_function(points: Iterable[tuple[float, float]], scale: int = 1) -> Callable[[int], int]:
    """A function from a word to an integer, by (percent, value) points with values to multiply by `scale`."""
    pairs = list(points)
    starts = [round(percent / 100 * _WORD_RANGE) for percent, _ in pairs]
    values = [round(value * scale) for _, value in pairs]
    inner = starts[1:-1]

    def value_at(word: int) -> int:
        i = bisect_right(inner, word)
        low, start = values[i], starts[i]
        return low + (values[i + 1] - low) * (word - start) // (starts[i + 1] - start)

    return value_at


def choice_function(weights: Mapping[T, int]) -> Callable[[int], T]:
    """A function from a word to one of the keys, by weight."""
    keys = list(weights)
    total = sum(weights.values())
    ends = [_WORD_RANGE * end // total for end in accumulate(weights.values())][:-1]

    def key_at(word: int) -> T:
        return keys[bisect_right(ends, word)]

    return key_at


def split(total: int, shares: list[int]) -> list[int]:
    """`total` in integer parts of at least 1 in proportion to `shares`; `total` is at least their number."""
    count = len(shares)
    if count == 1:
        return [total]
    spare, whole = total - count, sum(shares)
    parts = [1 + spare * share // whole for share in shares]
    parts[-1] += total - sum(parts)
    return parts
