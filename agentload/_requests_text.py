"""The text of prompts: filler of their runs, rendered in slices."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from agentload._prompts import Prompt
from agentload_traces import filler

SLICE_TOKENS = 4096
"""So much text is made at a time: about 0.2 ms."""


class Segment(NamedTuple):
    """Tokens `first` to `first + tokens` of the text of `key`."""

    key: str | int
    first: int
    tokens: int


def segments(prompt: Prompt, total: int, start: int, end: int) -> list[Segment]:
    """What the tokens [start, end) of a prompt of `total` tokens consist of; never empty.

    Found from the prompt's end, where new text is, so that a turn costs its new text only.
    """
    found = []
    offset = total
    for run in reversed(prompt.runs):
        offset -= run.tokens
        first = max(0, start - offset)
        tokens = min(run.tokens, end - offset) - first
        if tokens > 0:
            found.append(Segment(run.key, first, tokens))
        if offset <= start:
            break
    if not found:
        # No tokens of the prompt, but a word may be asked for nevertheless: it goes on after the last.
        if not prompt.runs:
            return [Segment("", 0, 0)]
        last = prompt.runs[-1]
        return [Segment(last.key, last.tokens, 0)]
    found.reverse()
    return found


def scaled_words(parts: list[Segment], words_per_token: float) -> int:
    """How many words stand for the tokens of `parts`; equal parts are equal words whatever is around them."""
    return sum(_scaled(part, words_per_token) for part in parts)


def _scaled(part: Segment, words_per_token: float) -> int:
    return int((part.first + part.tokens) * words_per_token) - int(part.first * words_per_token)


def render(
    seed: int, parts: list[Segment], words: int, words_per_token: float = 1.0
) -> Generator[None, None, bytes]:
    """Return `words` words for `parts`, each scaled, the last one filling up. Yields after each slice.

    Words and spaces are ASCII and need no escapes in JSON.
    """
    texts = []
    left, since = words, 0
    for number, part in enumerate(parts):
        wanted = left if number == len(parts) - 1 else min(left, _scaled(part, words_per_token))
        left -= wanted
        done = 0
        while done < wanted:
            step = min(wanted - done, SLICE_TOKENS)
            texts.append(filler(seed, part.key, part.first + done, step))
            done += step
            since += step
            if since >= SLICE_TOKENS:
                since = 0
                yield
    return "".join(texts).encode("ascii")
