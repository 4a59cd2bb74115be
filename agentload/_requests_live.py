"""What really came, made ready for the history of later requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agentload._requests_fields import made_call_id
from agentload._requests_history import History, escaped
from agentload._requests_wire import Call
from agentload_traces import Turn, count_tokens

if TYPE_CHECKING:
    from agentload._answers_types import LiveMessage


class ToolResult(NamedTuple):
    """What a tool gave for a call. text: any that can be encoded as UTF-8."""

    call_id: str
    text: str


class LiveText(NamedTuple):
    """Text escaped for JSON, and its o200k tokens."""

    json: bytes
    tokens: int


class Came(NamedTuple):
    """An answer that came. results: by call id, as it stands in `calls`."""

    text: LiveText
    calls: tuple[Call, ...]
    call_tokens: int
    results: dict[str, LiveText]


NOTHING = Came(LiveText(b"", 0), (), 0, {})
"""The answer of a turn that failed."""


def prepare(
    turn: Turn, message: LiveMessage, results: Sequence[ToolResult], history: History, *, has_calls: bool
) -> Came:
    """Serialise and count an answer that continues `history`, once.

    Reasoning is left out. Ids of calls are those that came, unless there is none or an earlier call has it,
    which strict endpoints refuse. Arguments that are no JSON object are wrapped in one, as the text that they
    are: endpoints that parse them would refuse all later turns. White space alone is no text.
    """
    if not has_calls:
        text = message.text + "".join(result.text for result in results)
        return Came(LiveText(escaped(text), history.count(text) if text else 0), (), 0, {})
    used = {call_id for piece in history.pieces for call_id in piece.calls}
    waiting = list(results)
    calls: list[Call] = []
    given: dict[str, LiveText] = {}
    for number, call in enumerate(message.tool_calls):
        call_id = _free_id(call.call_id, turn, number, used)
        used.add(call_id)
        calls.append(Call(call_id, call.name or "tool", _object(call.arguments)))
        for place, result in enumerate(waiting):
            if result.call_id == call.call_id:
                given[call_id] = _live(waiting.pop(place).text)
                break
    tokens = sum(count_tokens(call.name) + count_tokens(call.arguments) for call in calls)
    text = "" if message.text.isspace() else message.text
    return Came(_live(text), tuple(calls), tokens, given)


def _live(text: str) -> LiveText:
    return LiveText(escaped(text), count_tokens(text)) if text else LiveText(b"", 0)


def _free_id(call_id: str, turn: Turn, number: int, used: Collection[str]) -> str:
    while not call_id or call_id in used:
        call_id, number = made_call_id(turn.turn_id, number), number + 1_000
    return call_id


def _object(arguments: str) -> str:
    """Arguments as they came if they are a JSON object, else an object that holds them."""
    try:
        whole = isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        whole = False
    return arguments if whole else msgspec.json.encode({"input": arguments}).decode()
