"""How many tokens the steps of one answer yield: drawn once per prompt, in O(1), and per step on demand.

Acceptance is a truncated geometric: of K draft tokens the first j are accepted with probability
p^j (1 - p), all K with p^K, and a step yields one token more than it accepts. All draws are bytes of
BLAKE2b and SHAKE-128 of (seed, session, turn), put through integer and + - * / sqrt arithmetic only, so
they are the same on every machine.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b, shake_128
from itertools import accumulate
from math import sqrt
from typing import NamedTuple

from agentload_simbackend._specs import Speculation

_GRID = 128
"""Acceptance lengths are rounded to 1/128, so that their distributions can be kept."""

_EXACT_TOKENS = 64
"""Up to so many tokens, steps are drawn one by one; above, their number is drawn as a whole."""

_MIDDLE = 12 * 127.5
_DEVIATION = 256.0
"""The sum of twelve uniform bytes (Irwin-Hall, near normal) has this mean and, nearly, this deviation."""


class Distribution(NamedTuple):
    """Tokens per step of one acceptance length.

    overshoot: mean tokens by which a run of steps passes a far target.
    spread: deviation of the steps to a far target, over its square root and `_DEVIATION`.
    table: yields by byte; a uniform byte put through it is a draw.
    """

    mean: float
    overshoot: float
    spread: float
    most: int
    table: bytes


Draw = tuple[int, Distribution | None, bytes]
"""How one answer is decoded: steps, tokens per step (`None`: always one), key of the draws of its steps."""


def yields(draw: Draw, tokens: int) -> list[int]:
    """Tokens of each step of an answer of `tokens` tokens; they sum to it. O(steps)."""
    steps, distribution, key = draw
    if distribution is None:
        return [1] * steps
    drawn = list(shake_128(key).digest(steps).translate(distribution.table))
    return _fit(drawn, tokens, distribution.most)


class Acceptance:
    """Draws of one deployment: `mean` tokens per step with K draft tokens, spread by `cv` between prompts."""

    def __init__(self, seed: int, draft_tokens: int, mean: float, cv: float) -> None:
        self._prefix = f"{seed}|"
        self._draft_tokens = draft_tokens
        self._middle = mean * _GRID
        self._spread = mean * _GRID * cv / _DEVIATION
        self._most = (draft_tokens + 1) * _GRID
        self._distributions: dict[int, Distribution] = {}

    def draw(self, session_id: str, turn_id: str, tokens: int) -> Draw:
        """Draw the number of steps of one answer; the same arguments give the same draw."""
        if self._draft_tokens == 0:
            return tokens, None, b""
        name = f"{self._prefix}{len(session_id)}|{session_id}|{turn_id}"
        digest = blake2b(name.encode(), digest_size=40).digest()
        index = int(self._middle + self._spread * (sum(digest[:12]) - _MIDDLE) + 0.5)
        if index < _GRID:
            index = _GRID
        elif index > self._most:
            index = self._most
        distribution = self._distributions.get(index)
        if distribution is None:
            distribution = self._distributions[index] = _distribution(self._draft_tokens, index)
        key = digest[24:]
        if tokens <= _EXACT_TOKENS:
            drawn = shake_128(key).digest(tokens).translate(distribution.table)
            return bisect_left(list(accumulate(drawn)), tokens) + 1, distribution, key
        spread = sqrt(tokens) * distribution.spread
        middle = (tokens + distribution.overshoot) / distribution.mean
        steps = int(middle + spread * (sum(digest[12:24]) - _MIDDLE) + 0.5)
        fewest = -(-tokens // distribution.most)
        return (fewest if steps < fewest else min(steps, tokens)), distribution, key


class ContentAcceptance:
    """Draws of a deployment, by the content class of the request.

    Without speculation each step yields exactly one token, whatever the class.
    """

    def __init__(self, seed: int, speculation: Speculation | None) -> None:
        self._plain = Acceptance(seed, 0, 1.0, 0.0)
        self._classes: dict[str | None, Acceptance] = {}
        if speculation is not None:
            drafts, cv = speculation.draft_tokens.whole, speculation.prompt_cv.value
            for name, length in speculation.acceptance_length.items():
                self._classes[name] = Acceptance(seed, drafts, length.value, cv)
            self._classes[None] = self._classes[speculation.content]

    def of(self, content: str | None) -> Acceptance:
        """The draws of a class (`None`: the deployment's default). Raises `ValueError` for an unknown one."""
        if not self._classes:
            return self._plain
        found = self._classes.get(content)
        if found is None:
            names = ", ".join(name for name in self._classes if name is not None)
            raise ValueError(f'content class "{content}", must be one of {names}')
        return found


def _distribution(draft_tokens: int, index: int) -> Distribution:
    mean = index / _GRID
    most = draft_tokens + 1
    p = _solve(draft_tokens, mean)
    below, reach = 0.0, 1.0  # P(yield < j) and P(yield >= j)
    second_moment, table = 0.0, b""
    for j in range(1, most + 1):
        probability = reach if j == most else reach * (1.0 - p)
        second_moment += j * j * probability
        below += probability
        table += bytes([j]) * ((256 if j == most else int(below * 256 + 0.5)) - len(table))
        reach *= p
    overshoot = (second_moment - mean) / (2.0 * mean)
    variance = max(second_moment - mean * mean, 0.0)
    return Distribution(mean, overshoot, sqrt(variance / (mean * mean * mean)) / _DEVIATION, most, table)


def _solve(draft_tokens: int, mean: float) -> float:
    """The acceptance probability p for which 1 + p + ... + p^K is `mean`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        total = 1.0
        for _ in range(draft_tokens):
            total = 1.0 + middle * total
        if total < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _fit(drawn: list[int], tokens: int, most: int) -> list[int]:
    """Change draws as little as it takes to sum to `tokens`, each staying in 1..`most`.

    The last step gives way first, as the end of an answer does; what is left is spread evenly.
    """
    off = tokens - sum(drawn)
    if off < 0:
        cut = min(-off, drawn[-1] - 1)
        drawn[-1] -= cut
        off += cut
    sign, limit = (1, most) if off > 0 else (-1, 1)
    left = abs(off)
    while left:
        free = [index for index, count in enumerate(drawn) if count != limit]
        now = min(left, len(free))
        for turn in range(now):
            drawn[free[turn * len(free) // now]] += sign
        left -= now
    return drawn
