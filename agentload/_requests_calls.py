"""The recorded tool calls of an answer, as they go into a history: as many as it has room for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from agentload._requests_fields import function_name, made_call_id
from agentload_traces import ToolCall, Turn, count_tokens

_OPEN, _CLOSE = '{"input":"', '"}'


class RecordedCall(NamedTuple):
    """A call. overhead_tokens: of its name and of the JSON around its words. words: tokens of text in it."""

    call_id: str
    name: str
    overhead_tokens: int
    words: int

    @property
    def tokens(self) -> int:
        """All that it takes of the answer."""
        return self.overhead_tokens + self.words

    def arguments(self, words: str) -> str:
        """The JSON of its arguments. `words` are ASCII and need no escapes."""
        return f"{_OPEN}{words}{_CLOSE}"


def recorded_calls(turn: Turn, tokens: int) -> Sequence[RecordedCall]:
    """The calls that an answer of `tokens` tokens has room for; half of the rest is their arguments."""
    calls = _fitting(turn.tool_calls, tokens)
    if not calls:
        return ()
    spare = tokens - sum(_overhead(call) for call in calls)
    words_each = spare // 2 // len(calls)
    return [
        RecordedCall(made_call_id(turn.turn_id, number), function_name(call), _overhead(call), words_each)
        for number, call in enumerate(calls)
    ]


def _fitting(calls: tuple[ToolCall, ...], tokens: int) -> tuple[ToolCall, ...]:
    """As many leading calls as an answer can hold, each with at least one word."""
    needed = 0
    for count, call in enumerate(calls):
        needed += _overhead(call) + 2
        if needed > tokens:
            return calls[:count]
    return calls


def _overhead(call: ToolCall) -> int:
    return _tokens(function_name(call)) + _tokens(f"{_OPEN} a{_CLOSE}") - 1


@cache
def _tokens(text: str) -> int:
    return count_tokens(text)
