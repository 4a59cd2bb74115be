"""Reads chat completions and legacy completions, whole or in chunks."""

from __future__ import annotations

from typing import Any

import msgspec

from agentload._answers_gathered import REASONING, TEXT, UNKEPT, Call, Gathered
from agentload._answers_json import decoder, json_text, message_in
from agentload._answers_usage import usage_of


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None

    def text(self) -> str:
        """The arguments as JSON text; some endpoints send the object itself."""
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments or ""
        return json_text(self.arguments)


class _ToolCall(msgspec.Struct, gc=False):
    index: Any = None
    id: Any = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None

    def texts(self) -> list[tuple[int, str]]:
        """What it holds beside calls: slots and texts."""
        # An endpoint that knows more than one name for reasoning sends the same text under each.
        reasoning = self.reasoning or self.reasoning_content or _detailed(self.reasoning_details)
        texts = [(REASONING, reasoning)] if reasoning else []
        if isinstance(self.content, list):
            texts += _parts(self.content)
        elif self.content:
            texts.append((TEXT, self.content))
        if self.refusal:
            texts.append((TEXT, self.refusal))
        return texts


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    agentload: Any = None
    error: Any = None


_decode = decoder(_Chunk)


class ChatReader:
    """Reads the chunks of both APIs: what one has in `delta` or `message`, the other has in `text`."""

    noun = "completion chunk"

    def __init__(self) -> None:
        self.gathered = Gathered()
        self._calls: dict[Any, Call] = {}
        self._last_call: Call | None = None

    def take(self, data: bytes, end: int) -> None:
        """See `Reader`."""
        chunk = _decode(data)
        if chunk.error is not None:
            self.gathered.fail("error_event", f"error in the stream: {message_in(chunk.error)}")
            return
        for choice in chunk.choices or ():
            self._take_choice(choice, choice.delta, end)
        self._take_rest(chunk)

    def take_whole(self, data: bytes) -> None:
        """See `Reader`."""
        chunk = _decode(data)
        if chunk.error is not None:
            self.gathered.fail("error_event", f"error in the answer: {message_in(chunk.error)}")
            return
        for choice in chunk.choices or ():
            self._take_choice(choice, choice.message, len(data))
        self._take_rest(chunk)

    def plain(self, data: bytes) -> tuple[int, str] | None:
        """See `Reader`."""
        chunk = _decode(data)
        choices = chunk.choices or []
        if (chunk.usage, chunk.agentload, chunk.error) != (None, None, None) or len(choices) != 1:
            return None
        choice = choices[0]
        if choice.finish_reason or choice.index not in (0, None):
            return None
        delta = choice.delta
        texts = [(TEXT, choice.text)] if choice.text else []
        if delta is not None:
            texts += delta.texts()
            if delta.function_call is not None or delta.reasoning_details is not None:
                return None
            for part in delta.tool_calls or ():
                call = self._calls.get(part.index) if isinstance(part.index, int) else None
                if call is None or part.id or part.function is None or part.function.name:
                    return None
                texts.append((call.slot, part.function.text()))
        return texts[0] if len(texts) == 1 else None

    def _take_rest(self, chunk: _Chunk) -> None:
        gathered = self.gathered
        if chunk.usage is not None:
            gathered.usage = usage_of(chunk.usage) or gathered.usage
        gathered.take_times(chunk.agentload)

    def _take_choice(self, choice: _Choice, delta: _Delta | None, end: int) -> None:
        gathered = self.gathered
        # Of several alternatives, all were generated, but the first is the message.
        kept = choice.index in (0, None)
        if choice.text:
            gathered.add(choice.text, end, TEXT if kept else UNKEPT)
        if delta is not None:
            for slot, text in delta.texts():
                gathered.add(text, end, slot if kept else UNKEPT)
            for part in delta.tool_calls or ():
                if kept:
                    self._take_call(part, end)
                elif part.function is not None:
                    gathered.add((part.function.name or "") + part.function.text(), end, UNKEPT)
            if delta.function_call is not None:
                self._take_call(_ToolCall("function_call", None, delta.function_call), end)
        if choice.finish_reason:
            gathered.finish(choice.finish_reason)

    def _take_call(self, part: _ToolCall, end: int) -> None:
        gathered = self.gathered
        call_id = str(part.id) if part.id else None
        # Some endpoints leave the index out, or give all calls the same: then a new id begins a new call.
        key = part.index if isinstance(part.index, int | str) else None
        call = self._last_call if key is None else self._calls.get(key)
        if call is None or (call_id is not None and call.call_id != call_id):
            call = gathered.start_call(call_id)
            if key is not None:
                self._calls[key] = call
        self._last_call = call
        if part.function is not None:
            gathered.name_call(call, part.function.name, end)
            gathered.add(part.function.text(), end, call.slot)


def _detailed(details: Any) -> str:
    """Reasoning as OpenRouter spells it out; it mostly sends the same as `reasoning` too."""
    if not isinstance(details, list):
        return ""
    parts = [part.get("text") or part.get("summary") for part in details if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def _parts(content: list[Any]) -> list[tuple[int, str]]:
    """Content as a list of parts, as Mistral's reasoning models send it."""
    texts: list[tuple[int, str]] = []
    for part in content:
        if not isinstance(part, dict):
            continue
        if isinstance(text := part.get("text"), str):
            texts.append((TEXT, text))
        if isinstance(thinking := part.get("thinking"), str):
            texts.append((REASONING, thinking))
        elif isinstance(thinking, list):
            texts += [(REASONING, text) for _, text in _parts(thinking)]
    return texts
