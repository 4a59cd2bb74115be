"""The identity of a prompt for the engine, worked out from what is new in it.

A prompt's tokens are those of its messages in order, and its identity a chain of hashes over blocks
of them: equal keys are equal text up to that point. An agent sends its whole history each turn; here a
history that was seen is recognised by its bytes, and only the messages after it are read and tokenised.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from agentload_simbackend._api import PromptRun
from agentload_simbackend._server_errors import bad_json
from agentload_traces._tokens import encode

BLOCK_TOKENS = 64
"""Tokens in a block of a prompt unless said; a shorter last block has a key of its own."""

MessageTexts = Callable[[msgspec.Raw, int], list[str]]
"""Returns the texts of a serialised message that count as prompt tokens; the index is for errors."""

_PIECE_CHARS = 16_384
_PIECE_BLOCKS = 64
_PIECE_END = re.compile(r"[a-z](?= [a-z])")
_KEY_BYTES = 8

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def split_messages(messages: bytes) -> list[msgspec.Raw]:
    """Return the elements of a serialised JSON array. Raises `ApiError` (400) if they nest too deep.

    How deep is too deep depends on the caller's own depth, so what was parsed before may be refused here.
    """
    try:
        return _split(messages)
    except RecursionError as error:
        raise bad_json(error) from error


class PromptIndex:
    """The tokens and block keys of the latest prompt of a conversation.

    `update` takes the next prompt, `runs` tells its identity in blocks of `block_tokens` tokens.
    """

    def __init__(self, message_texts: MessageTexts, block_tokens: int = BLOCK_TOKENS) -> None:
        self._message_texts = message_texts
        self._block_tokens = block_tokens
        self._messages = b""
        self._message_ends: list[int] = []
        self._token_ends: list[int] = []
        self._ids: array[int] = array("I")
        self._blocks: list[PromptRun] = []

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._ids)

    @property
    def message_count(self) -> int:
        """Messages of the prompt."""
        return len(self._message_ends)

    @property
    def size_bytes(self) -> int:
        """About how much memory this holds."""
        return len(self._messages) + 4 * len(self._ids) + 160 * len(self._blocks) + 1_000

    def runs(self) -> Sequence[PromptRun]:
        """Return the prompt as whole blocks and a rest; their tokens sum to `tokens`."""
        rest = self._ids[len(self._blocks) * self._block_tokens :]
        return [*self._blocks, PromptRun(self._key(rest), len(rest))] if rest else self._blocks.copy()

    def leading(self, count: int) -> list[msgspec.Raw]:
        """Return the first `count` messages, serialised; all if there are fewer."""
        count = min(count, len(self._message_ends))
        return split_messages(self._messages[: self._message_ends[count - 1]] + b"]") if count else []

    def shared_messages(self, messages: bytes) -> int:
        """Return how many leading messages of the serialised array `messages` are those of this prompt."""
        ends = self._message_ends
        if self._messages and messages.startswith(self._messages):
            return len(ends)
        known = 1
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high + 1) // 2
            end = ends[middle - 1]
            if messages[known:end] == self._messages[known:end]:
                low, known = middle, end
            else:
                high = middle - 1
        return low

    def update(self, messages: bytes) -> Iterator[None]:
        """Take the serialised array `messages` as the next prompt, in bounded pieces of work.

        Yields after each piece (about 0.2 ms at most, unless a text has no spaces), so that a server can
        do other things between them. Raises `ApiError` when a message is wrong; the index then holds the
        messages before it. May be abandoned at any piece.
        """
        self._truncate(self.shared_messages(messages))
        position = self._message_ends[-1] if self._message_ends else 0
        rest = messages[position:].lstrip(b" \t\r\n,") if position else messages[1:]
        self._messages = messages
        try:
            for message in split_messages(b"[" + rest):
                texts = self._message_texts(message, len(self._message_ends))
                for text in texts:
                    for piece in _pieces(text):
                        self._ids.extend(encode(piece))
                        yield from self._hash_blocks()
                position = messages.index(b"{", position) + len(bytes(message))
                self._message_ends.append(position)
                self._token_ends.append(len(self._ids))
        finally:
            self._truncate(len(self._message_ends))

    def _truncate(self, messages: int) -> None:
        """Forget all but the first `messages` messages."""
        del self._message_ends[messages:]
        del self._token_ends[messages:]
        del self._ids[self._token_ends[-1] if self._token_ends else 0 :]
        del self._blocks[len(self._ids) // self._block_tokens :]
        end = self._message_ends[-1] if self._message_ends else 0
        if end < len(self._messages):
            self._messages = self._messages[:end]

    def _hash_blocks(self) -> Iterator[None]:
        """Give keys to the blocks that are full."""
        size = self._block_tokens
        while True:
            start = len(self._blocks) * size
            for first in range(start, min(start + _PIECE_BLOCKS * size, len(self._ids)), size):
                block = self._ids[first : first + size]
                if len(block) == size:
                    self._blocks.append(PromptRun(self._key(block), size))
            yield
            if len(self._ids) - len(self._blocks) * size < size:
                return

    def _key(self, ids: array[int]) -> int:
        """Chain the ids that follow the last full block to its key."""
        before = self._blocks[-1].key if self._blocks else 0
        assert isinstance(before, int)
        digest = blake2b(before.to_bytes(_KEY_BYTES, "little"), digest_size=_KEY_BYTES)
        digest.update(ids.tobytes())
        return int.from_bytes(digest.digest(), "little")


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text where tokens cannot join: between a word and the space of the next one."""
    start = 0
    while len(text) - start > _PIECE_CHARS and (cut := _PIECE_END.search(text, start + _PIECE_CHARS)):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]
