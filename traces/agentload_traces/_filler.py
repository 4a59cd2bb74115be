"""Text of exactly n o200k_base tokens, a pure function of (seed, key).

The text is made of 4,096 English words, each with its leading space one token. Such words do not merge
with each other, so n of them are n tokens wherever the text is cut. Token i of a key's text does not
depend on how much is asked for: two prompts that use the same key share their beginning, token by token.

The words (`_filler_words.txt`) are those tokens of o200k_base, in the order of the vocabulary, that are a
space and at least four lower-case letters, stand in the word list `web2` (Webster's Second International,
in the public domain; from the package `english-words` 2.0.2, MIT), and are not offensive by the list of
`better-profanity` 0.7.0 (MIT) and by eye.
"""

from __future__ import annotations

from functools import cache
from hashlib import shake_128
from importlib.resources import files
from operator import itemgetter
from struct import Struct

BLOCK_TOKENS = 64
"""Text is drawn in blocks of this many tokens, one digest a block."""

WORD_COUNT = 4096

_DRAWS = Struct(f"<{BLOCK_TOKENS}H")


@cache
def _table() -> tuple[str, ...]:
    """The words, repeated so that any 16-bit draw is an index: evenly, for 65,536 = 16 x 4,096."""
    words = files("agentload_traces").joinpath("_filler_words.txt").read_text("ascii").split()
    if len(words) != WORD_COUNT:
        raise RuntimeError(f"_filler_words.txt has {len(words)} words, expected {WORD_COUNT}")
    return tuple(f" {word}" for word in words) * (2**16 // WORD_COUNT)


def filler_block(seed: int, key: str | int, block: int) -> tuple[str, ...]:
    """Return the 64 tokens of block `block` (from 0) of the text of `key`, each a word with its space."""
    kind = "i" if isinstance(key, int) else "s"
    name = f"{seed}\0{kind}{key}\0{block}".encode("utf-8", "surrogatepass")
    words: tuple[str, ...] = itemgetter(*_DRAWS.unpack(shake_128(name).digest(_DRAWS.size)))(_table())
    return words


def filler(seed: int, key: str | int, start: int, tokens: int) -> str:
    """Return tokens `start` to `start + tokens` of the text of `key`: exactly `tokens` o200k_base tokens.

    Every token is a lower-case ASCII word with a leading space, so the text starts with a space. Raises
    `ValueError` if `start` or `tokens` is negative.
    """
    if start < 0 or tokens < 0:
        raise ValueError(f"start={start} and tokens={tokens} must not be negative")
    first, skipped = divmod(start, BLOCK_TOKENS)
    last = -(-(start + tokens) // BLOCK_TOKENS)
    words = [word for block in range(first, last) for word in filler_block(seed, key, block)]
    return "".join(words[skipped : skipped + tokens])


def block_text(seed: int, key: str | int, tokens: int) -> str:
    """Return the first `tokens` tokens of the text of `key`; see `filler`."""
    return filler(seed, key, 0, tokens)
