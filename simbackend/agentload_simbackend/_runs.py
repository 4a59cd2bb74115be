"""Comparing prompts that are given as runs; both one long run and thousands of short ones are common."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from agentload_simbackend._api import PromptRun

run_tokens: Callable[[PromptRun], int] = itemgetter(1)
"""Tokens of a run: what `map` sums at C speed."""


def equal_runs(a: list[PromptRun], b: list[PromptRun], start_a: int = 0, start_b: int = 0) -> int:
    """How many runs are equal from the given starts on, compared by slices (at C speed)."""
    size = min(len(a) - start_a, len(b) - start_b)
    if size <= 0 or a[start_a] != b[start_b]:
        return 0
    if a[start_a : start_a + size] == b[start_b : start_b + size]:
        return size
    equal, unequal = 1, size  # the first `equal` are equal, the first `unequal` are not
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        if a[start_a + equal : start_a + middle] == b[start_b + equal : start_b + middle]:
            equal = middle
        else:
            unequal = middle
    return equal


def tokens_before(runs: list[PromptRun], index: int, total: int) -> int:
    """Tokens of the first `index` runs of `runs`, which have `total`; sums the shorter side."""
    if 2 * index <= len(runs):
        return sum(map(run_tokens, runs[:index]))
    return total - sum(map(run_tokens, runs[index:]))


def shared_tokens(a: list[PromptRun], a_total: int, b: list[PromptRun]) -> int:
    """Leading tokens that two prompts share; `a_total` is the token count of `a`."""
    if len(a) == 1:
        return min(a_total, b[0][1]) if a[0][0] == b[0][0] else 0
    equal = equal_runs(a, b)
    shared = tokens_before(a, equal, a_total)
    if equal < len(a) and equal < len(b) and a[equal][0] == b[equal][0]:
        shared += min(a[equal][1], b[equal][1])
    return shared
