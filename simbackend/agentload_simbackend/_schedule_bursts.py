"""Bursts of vectors that the LPUs of a group send each other: in closed form, and vector by vector.

All LPUs run the same program in the same cycle. Vector i of a burst leaves on link `i mod links`, for the LPU
that stands `to` places further round the group; as every LPU does so, every one receives on a link just what
it sends on it, in the same order. A link sends its vectors one after the other, each as soon as it is
computed.

Vector i of V is computed ceil((i + 1) A / V) cycles after the first result could be, where A is the
arithmetic of the operation (0 where the whole result is awaited first). Counted from the last, with e vectors
after it on L links, it has floor(e / L) more on its own link, so that all have left c cycles a vector later
at

    max over e of  ceil(A (V - e) / V) + c (floor(e / L) + 1)

which is linear in q = floor(e / L) at the least e of each q, thus largest at q = 0 or at the last q.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Transfer(NamedTuple):
    """One vector on one link; cycles count from the start of the layer.

    ready: its results are computed. start, end: it holds the link from `start` up to before `end`.
    arrival: it is in the receiver's SRAM. The receiver of LPU i of n is LPU (i + to) mod n.
    """

    vector: int
    link: int
    to: int
    ready: int
    start: int
    end: int
    arrival: int


class Burst(NamedTuple):
    """The vectors that one LPU sends in one exchange.

    task: number of the operation whose results they are; the next one (or the next layer) awaits them all.
    links: over which they go. vector_cycles: that a vector holds its link. results_from, results_over: the
    results come evenly over so many cycles from then on. latency: from a link to the receiver's SRAM, with
    what arbitration adds.
    """

    name: str
    task: int
    vectors: int
    links: int
    vector_cycles: int
    results_from: int
    results_over: int
    latency: int

    @property
    def sent(self) -> int:
        """Cycle at which the last vector has left."""
        rounds = (self.vectors - 1) // self.links
        first = self.vectors - rounds * self.links
        last = _ceil(self.results_over * first, self.vectors) + self.vector_cycles * (rounds + 1)
        return self.results_from + max(self.results_over + self.vector_cycles, last)

    @property
    def arrived(self) -> int:
        """Cycle at which the last vector is there."""
        return self.sent + self.latency

    def expand(self, chips: int) -> Iterator[Transfer]:
        """Every transfer of one LPU of a group of `chips`, in the order of vectors."""
        free = [0] * self.links
        for vector in range(self.vectors):
            link = vector % self.links
            ready = self.results_from + _ceil(self.results_over * (vector + 1), self.vectors)
            start = max(ready, free[link])
            end = free[link] = start + self.vector_cycles
            yield Transfer(vector, link, 1 + vector % (chips - 1), ready, start, end, end + self.latency)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
