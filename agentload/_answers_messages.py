"""Reads Anthropic's messages, whole or in events."""

from __future__ import annotations

from typing import Any

import msgspec

from agentload._answers_gathered import REASONING, TEXT, UNKEPT, Call, Gathered
from agentload._answers_json import converted, decoder, json_text, message_in
from agentload._answers_usage import fresh_usage_of, merged


class _Delta(msgspec.Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: Any = None
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: Any = None
    usage: Any = None
    error: Any = None
    agentload: Any = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: Any = None
    error: Any = None
    agentload: Any = None


_decode = decoder(_Event)
_decode_message = decoder(_Message)


class MessagesReader:
    """Reads message_start, content_block_*, message_delta and error; ignores all others."""

    noun = "messages event"

    def __init__(self) -> None:
        self.gathered = Gathered()
        self._calls: dict[Any, Call] = {}
        self._usage: dict[str, Any] = {}

    def take(self, data: bytes, end: int) -> None:
        """See `Reader`."""
        event = _decode(data)
        if event.error is not None or event.type == "error":
            said = event.error if event.error is not None else event.message
            self.gathered.fail("error_event", f"error in the stream: {message_in(said)}")
            return
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._take_delta(event.index, event.delta, end)
            case "content_block_start" if event.content_block is not None:
                self._start_block(event.index, event.content_block, end)
            case "message_start":
                if message := converted(event.message, _Message):
                    self._take_usage(message.usage)
            case "message_delta":
                self._take_usage(event.usage)
                if event.delta is not None and event.delta.stop_reason:
                    self.gathered.finish(event.delta.stop_reason)
        self.gathered.take_times(event.agentload)

    def take_whole(self, data: bytes) -> None:
        """See `Reader`."""
        message = _decode_message(data)
        if message.error is not None:
            self.gathered.fail("error_event", f"error in the answer: {message_in(message.error)}")
            return
        for index, block in enumerate(message.content or ()):
            self._start_block(index, block, len(data))
        if message.stop_reason:
            self.gathered.finish(message.stop_reason)
        self._take_usage(message.usage)
        self.gathered.take_times(message.agentload)

    def plain(self, data: bytes) -> tuple[int, str] | None:
        """See `Reader`."""
        event = _decode(data)
        told = (event.usage, event.error, event.agentload)
        if event.type != "content_block_delta" or event.delta is None or told != (None, None, None):
            return None
        if event.delta.partial_json and _key(event.index) not in self._calls:
            return None
        texts = self._texts(event.index, event.delta)
        return texts[0] if len(texts) == 1 else None

    def _take_delta(self, index: Any, delta: _Delta, end: int) -> None:
        if delta.partial_json and _key(index) not in self._calls:
            # Its block never began, or is one whose tool the endpoint runs itself.
            self.gathered.add(delta.partial_json, end, UNKEPT)
            return
        for slot, text in self._texts(index, delta):
            self.gathered.add(text, end, slot)

    def _texts(self, index: Any, delta: _Delta) -> list[tuple[int, str]]:
        texts = []
        if delta.text:
            texts.append((TEXT, delta.text))
        if delta.thinking:
            texts.append((REASONING, delta.thinking))
        if delta.partial_json:
            texts.append((self._calls[_key(index)].slot, delta.partial_json))
        return texts

    def _start_block(self, index: Any, block: _Block, end: int) -> None:
        gathered = self.gathered
        gathered.add(block.thinking or "", end, REASONING)
        if block.type.endswith("_result"):
            # What a tool of the endpoint gave, not the model.
            return
        gathered.add(block.text or "", end, TEXT)
        given = json_text(block.input) if block.input else ""
        if block.type == "tool_use":
            call = self._calls[_key(index)] = gathered.start_call(block.id)
            gathered.name_call(call, block.name, end)
            gathered.add(given, end, call.slot)
        else:
            gathered.add((block.name or "") + given, end, UNKEPT)

    def _take_usage(self, usage: Any) -> None:
        if usage is not None:
            self._usage = merged(self._usage, usage)
            self.gathered.usage = fresh_usage_of(self._usage)


def _key(index: Any) -> Any:
    """The index of a block, if it is one; else what stands for it, for foreign indices may be anything."""
    return index if isinstance(index, int) else repr(index)
