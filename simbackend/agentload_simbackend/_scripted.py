"""The scripted model: what the answers say. How long they take is the engine's business.

A `ScriptedModel` maps a call to an `Answer`. `FillerModel` is the one that answers any call with as many
tokens as it asks for; others (from a trace, from a scenario that calls tools) have the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec

from agentload_traces._filler import BLOCK_TOKENS, filler_block

DEFAULT_OUTPUT_TOKENS = 256
"""Length of an answer when the request does not say."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a scripted model may look at: who asks, and how many tokens at most (`None`: not said)."""

    session_id: str
    turn_id: str
    max_output_tokens: int | None


class AnswerText(Protocol):
    """The text of an answer, cut at token boundaries."""

    def json_pieces(self, first: int, ends: Sequence[int]) -> list[bytes]:
        """Return the tokens from `first` to the first of `ends`, from there to the second, and so on.

        A piece is UTF-8, escaped to stand inside a JSON string.
        """
        ...


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer before it is spoken: its text, its length in tokens (at least 1) and why it ends."""

    text: AnswerText
    output_tokens: int
    finish_reason: str


class ScriptedModel(Protocol):
    """Decides what the answer to a call is: a pure function of the call."""

    def answer(self, call: ModelCall) -> Answer:
        """Return the answer to `call`."""
        ...


class FillerText:
    """Filler words of the key, drawn as they are needed."""

    def __init__(self, seed: int, key: str) -> None:
        self._seed = seed
        self._key = key
        self._words: list[bytes] = []

    def json_pieces(self, first: int, ends: Sequence[int]) -> list[bytes]:
        """Return pieces of words of lower-case letters, which JSON need not escape."""
        words = self._words
        while len(words) < ends[-1]:
            block = filler_block(self._seed, self._key, len(words) // BLOCK_TOKENS)
            words.extend(map(str.encode, block))
        if ends[-1] - first == len(ends):  # one token a piece
            return words[first : ends[-1]]
        return [b"".join(words[start:end]) for start, end in pairwise([first, *ends])]


class FillerModel:
    """Answers with exactly as many tokens as may be, 256 if not said: finish reason "length"."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def answer(self, call: ModelCall) -> Answer:
        """Return filler text that depends on (seed, session, turn) alone."""
        text = FillerText(self._seed, f"{call.session_id}/{call.turn_id}")
        tokens = DEFAULT_OUTPUT_TOKENS if call.max_output_tokens is None else call.max_output_tokens
        return Answer(text=text, output_tokens=tokens, finish_reason="length")
