"""Token counts by o200k_base, the one vocabulary that agentload measures text with.

The vocabulary comes with the `splintr` wheel, so nothing is downloaded. It is loaded at the first use
(about 0.2 s), not at import.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

VOCABULARY = "o200k_base"


@cache
def _encoder() -> Callable[[str], list[int]]:
    import splintr

    encode: Callable[[str], list[int]] = splintr.Tokenizer.from_pretrained(VOCABULARY).encode_ordinary
    return encode


def encode(text: str) -> list[int]:
    """Return the o200k_base token ids of `text`.

    A special token spelled out in the text (`<|endoftext|>`) is ordinary text, as agents read and write
    such files. Raises `UnicodeEncodeError` for a text with lone surrogates, which is not text.
    """
    return _encoder()(text)


def count_tokens(text: str) -> int:
    """Return how many o200k_base tokens `text` has; see `encode`."""
    return len(_encoder()(text))
