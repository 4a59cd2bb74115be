"""The serialised messages of one agent, which grow by appending, and where each stands in its prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from agentload._requests_wire import Call, Role, Wire, Written
from agentload._token_fit import TokenFit
from agentload_simbackend import PromptRun
from agentload_traces import Turn, count_tokens


def escaped(text: str) -> bytes:
    """Text as it stands between the quotes of JSON, in UTF-8; `UnicodeEncodeError` for lone surrogates."""
    return msgspec.json.encode(text)[1:-1]


class Piece(NamedTuple):
    """A message in the history.

    token_start, text_end, token_end: the tokens of the trace's prompt at which it starts, at which its text
    ends and those of its tool calls begin, and at which it ends. Usually as many are sent, but a message that
    really came, or one fitted to a server's tokenizer, stands for a stretch of another length.
    sent_end: o200k tokens sent from the start of the prompt to its end. text_tokens: those of its text.
    text_at, text_stop: where its text stands in the bytes. byte_end: where it ends in them.
    calls: ids of the tool calls that it makes. answers: the call that it is the result of.
    live: whether its text really came, and is not filler.
    """

    role: Role
    token_start: int
    text_end: int
    token_end: int
    sent_end: int
    text_tokens: int
    text_at: int
    text_stop: int
    byte_end: int
    calls: tuple[str, ...] = ()
    answers: str | None = None
    live: bool = False


class Reported(NamedTuple):
    """What a server counted for the first `sent_tokens` tokens and `messages` messages of a history."""

    sent_tokens: int
    messages: int
    tokens: int


class History:
    """The messages of one agent.

    runs: what the agent's latest prompt consists of. previous: its latest turn; skipped: that was not sent.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.data = bytearray()
        self.pieces: list[Piece] = []
        self.runs: tuple[PromptRun, ...] = ()
        self.previous: Turn | None = None
        self.skipped = False
        self.reported: Reported | None = None

    def copy(self) -> History:
        """The same messages, to be gone on with apart."""
        other = History(self._wire)
        other.data, other.pieces, other.runs = self.data.copy(), self.pieces.copy(), self.runs
        return other

    @property
    def tokens(self) -> int:
        """Tokens of the trace's prompt that it stands for."""
        return self.pieces[-1].token_end if self.pieces else 0

    @property
    def sent_tokens(self) -> int:
        """o200k tokens that it really has."""
        return self.pieces[-1].sent_end if self.pieces else 0

    @property
    def role(self) -> Role | None:
        """Whose the last message is."""
        return self.pieces[-1].role if self.pieces else None

    def closing(self) -> bytes:
        """What ends the messages of a body."""
        return self._wire.closing(self.role)

    def expected_tokens(self, fit: TokenFit) -> float:
        """What the server will count for it: what it reported, and what was added since."""
        known = self.reported
        if known is None:
            return fit.expected(self.sent_tokens, len(self.pieces))
        more = self.sent_tokens - known.sent_tokens
        return known.tokens + fit.per_token * more + fit.per_message * (len(self.pieces) - known.messages)

    def declare(self, tools: bytes, sent_tokens: int, token_end: int) -> None:
        """Begin with the declaration of tools; `tools` is empty where it stands elsewhere in the body."""
        self._wire.declare(self.data, tools)
        end = len(self.data)
        self.pieces.append(Piece("tools", 0, token_end, token_end, sent_tokens, 0, end, end, end))

    def add(
        self,
        role: Role,
        text: bytes,
        text_tokens: int,
        token_end: int,
        *,
        calls: Sequence[Call] = (),
        call_tokens: int = 0,
        text_end: int | None = None,
        answers: str | None = None,
        live: bool = False,
    ) -> None:
        """Append a message, its text escaped for JSON. text_end, token_end: see `Piece`.

        An API that knows no empty messages gets none.
        """
        place = self._wire.add(self.data, self.role, Written(role, text, calls, answers))
        if place is None:
            return
        piece = Piece(
            role,
            token_start=self.tokens,
            text_end=token_end if text_end is None else text_end,
            token_end=token_end,
            sent_end=self.sent_tokens + text_tokens + call_tokens,
            text_tokens=text_tokens,
            text_at=place[0],
            text_stop=place[1],
            byte_end=len(self.data),
            calls=tuple(call.call_id for call in calls),
            answers=answers,
            live=live,
        )
        self.pieces.append(piece)

    def stretch(self, end: int) -> None:
        """Let the last message stand for all up to token `end` of the trace's prompt."""
        if self.pieces and self.tokens < end:
            self.pieces[-1] = self.pieces[-1]._replace(text_end=end, token_end=end)

    def go_back(self, tokens: int) -> None:
        """Cut it back to the first `tokens` tokens of the trace's prompt.

        A message that is cut keeps the same part of its text as of its stretch of the prompt; its tool calls
        go. Of those that stay, calls whose results went get empty ones.
        """
        self.reported = None
        beyond, text = None, b""
        while self.pieces and self.pieces[-1].token_end > tokens:
            beyond = self.pieces.pop()
        if beyond is not None:
            text = bytes(self.data[beyond.text_at : beyond.text_stop])
        del self.data[self.pieces[-1].byte_end if self.pieces else 0 :]
        if beyond is not None and self.tokens < min(tokens, beyond.text_end):
            self._add_part(beyond, text, min(tokens, beyond.text_end))
        for call_id in self.unanswered():
            self.add("tool", b"", 0, self.tokens, answers=call_id)

    def _add_part(self, piece: Piece, text: bytes, end: int) -> None:
        kept, whole = end - piece.token_start, piece.text_end - piece.token_start
        if piece.live:
            characters: str = json.loads(b'"%s"' % text)
            part = characters[: len(characters) * kept // whole]
            text, tokens = escaped(part), self.count(part)
        else:
            tokens = piece.text_tokens * kept // whole
            # Filler is words, each with its space before it.
            text = b" ".join(text.split(b" ", tokens + 1)[: tokens + 1])
        if text:
            self.add(piece.role, text, tokens, end, answers=piece.answers, live=piece.live)

    def count(self, text: str) -> int:
        """How many tokens `text` adds to the prompt when it comes next.

        In one text for all it may merge with the word before it. Filler never merges with what stands before.
        """
        if self._wire.has_calls or not self.pieces or self.pieces[-1].live:
            return count_tokens(text)
        word = self.data[self.data.rfind(b" ") :].decode("ascii")
        return count_tokens(word + text) - 1

    def unanswered(self) -> list[str]:
        """Ids of the last message's tool calls that have no result yet."""
        answered = set()
        for piece in reversed(self.pieces):
            if piece.answers is None:
                return [call for call in piece.calls if call not in answered]
            answered.add(piece.answers)
        return []
