"""How each API writes messages: the bytes of a history, which only ever grow at its end.

A history lacks what closes its arrays, and with Anthropic also what closes the last message, since a
message of the same role is appended to it. `closing` gives what is missing.
Texts come escaped for JSON, without quotes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from agentload._options import Api

Role = Literal["tools", "system", "user", "assistant", "tool"]
"""Of a message: "tool" is the result of a call, "tools" the declaration of tools before all messages."""


class Call(NamedTuple):
    """A tool call in an assistant message. arguments: the text of a JSON object."""

    call_id: str
    name: str
    arguments: str


class Written(NamedTuple):
    """A message as it is to be written. text: escaped for JSON. answers: the call it is the result of."""

    role: Role
    text: bytes
    calls: Sequence[Call]
    answers: str | None


class Wire(ABC):
    """The messages of one API.

    opening: what stands before a history. has_calls: whether it has tool calls.
    """

    opening: bytes
    has_calls = True

    @abstractmethod
    def add(self, data: bytearray, last: Role | None, message: Written) -> tuple[int, int] | None:
        """Append a message that follows one of `last`; return where its text stands, `None` if nothing was
        written, since the API refuses empty messages."""

    def declare(self, data: bytearray, tools: bytes) -> None:  # noqa: B027 (most want none)
        """Begin with the declaration of tools, if the API wants one."""

    @abstractmethod
    def closing(self, last: Role | None) -> bytes:
        """What a history that ends with a message of `last` lacks."""


def _put(data: bytearray, before: bytes, text: bytes, after: bytes) -> tuple[int, int]:
    data += before
    start = len(data)
    data += text
    stop = len(data)
    data += after
    return start, stop


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)


class ChatWire(Wire):
    """OpenAI chat completions: one message each, tool calls in the assistant's, results of role "tool"."""

    opening = b'"messages":['

    def add(self, data: bytearray, last: Role | None, message: Written) -> tuple[int, int] | None:
        role, text, calls, answers = message
        comma = b"," if data else b""
        answered = b"" if answers is None else b'"tool_call_id":%s,' % _quoted(answers)
        before = b'%s{"role":"%s",%s"content":"' % (comma, role.encode(), answered)
        place = _put(data, before, text, b'"')
        if calls:
            data += b',"tool_calls":[%s]' % b",".join(map(self._call, calls))
        data += b"}"
        return place

    @staticmethod
    def _call(call: Call) -> bytes:
        parts = tuple(map(_quoted, call))
        return b'{"id":%s,"type":"function","function":{"name":%s,"arguments":%s}}' % parts

    def closing(self, last: Role | None) -> bytes:
        return b"]"


class ResponsesWire(Wire):
    """OpenAI responses: a list of items; calls and results are items of their own."""

    opening = b'"input":['

    def add(self, data: bytearray, last: Role | None, message: Written) -> tuple[int, int] | None:
        role, text, calls, answers = message
        place = None
        if answers is not None:
            head = b'%s{"type":"function_call_output","call_id":%s,"output":"'
            place = _put(data, head % (b"," if data else b"", _quoted(answers)), text, b'"}')
        elif text:
            head = b'%s{"role":"%s","content":"' % (b"," if data else b"", role.encode())
            place = _put(data, head, text, b'"}')
        for call in calls:
            data += b"," if data else b""
            parts = tuple(map(_quoted, call))
            data += b'{"type":"function_call","call_id":%s,"name":%s,"arguments":%s}' % parts
        return place or ((len(data), len(data)) if calls else None)

    def closing(self, last: Role | None) -> bytes:
        return b"]"


class CompletionsWire(Wire):
    """OpenAI legacy completions: one text, in which nobody speaks and no tools are called."""

    opening = b'"prompt":"'
    has_calls = False

    def add(self, data: bytearray, last: Role | None, message: Written) -> tuple[int, int] | None:
        return _put(data, b"", message.text, b"") if message.text else None

    def closing(self, last: Role | None) -> bytes:
        return b'"'


class MessagesWire(Wire):
    """Anthropic messages: tools and system at the top, then user and assistant in turn, made of blocks.

    Results of tools are the first blocks of a user's message. No block may be empty.
    """

    opening = b""

    def add(self, data: bytearray, last: Role | None, message: Written) -> tuple[int, int] | None:
        role, text, calls, answers = message
        if not text and not calls and answers is None:
            return None
        if role == "system":
            return _put(data, b',"system":"' if data else b'"system":"', text, b'"')
        self._speak(data, last, role)
        if answers is not None:
            data += b'{"type":"tool_result","tool_use_id":%s' % _quoted(answers)
            return _put(data, b',"content":"', text, b'"}') if text else _put(data, b"", b"", b"}")
        place = _put(data, b'{"type":"text","text":"', text, b'"}') if text else None
        for number, call in enumerate(calls):
            data += b"," if number or text else b""
            named = _quoted(call.call_id), _quoted(call.name), call.arguments.encode()
            data += b'{"type":"tool_use","id":%s,"name":%s,"input":%s}' % named
        return (len(data), len(data)) if place is None else place

    @staticmethod
    def _speaker(role: Role) -> bytes:
        return b"assistant" if role == "assistant" else b"user"

    def _speak(self, data: bytearray, last: Role | None, role: Role) -> None:
        """Go on with the message of whoever spoke last, or begin the next one."""
        speaker = self._speaker(role)
        if last is None or last in ("tools", "system"):
            data += b'%s"messages":[' % (b"," if data else b"")
        elif self._speaker(last) == speaker:
            data += b","
            return
        else:
            data += b"]},"
        data += b'{"role":"%s","content":[' % speaker

    def declare(self, data: bytearray, tools: bytes) -> None:
        if tools:
            data += b'"tools":%s' % tools

    def closing(self, last: Role | None) -> bytes:
        return b"]}]"


WIRES: dict[Api, Wire] = {
    "chat": ChatWire(),
    "responses": ResponsesWire(),
    "completions": CompletionsWire(),
    "messages": MessagesWire(),
}
