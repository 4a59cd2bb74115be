"""Reads OpenAI's responses, whole or in events."""

from __future__ import annotations

from typing import Any

import msgspec

from agentload._answers_gathered import REASONING, TEXT, UNKEPT, Call, Gathered
from agentload._answers_json import decoder, error_message, json_text, message_in
from agentload._answers_usage import usage_of

_TEXT_DELTAS = {
    "response.output_text.delta": TEXT,
    "response.refusal.delta": TEXT,
    "response.reasoning_text.delta": REASONING,
    "response.reasoning_summary_text.delta": REASONING,
}

_CALL_DELTAS = {
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
    "response.mcp_call_arguments.delta",
    "response.code_interpreter_call_code.delta",
}

_CALLS = {"function_call", "custom_tool_call"}

_ENDS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class _Event(msgspec.Struct, gc=False):
    """As much of an event as deltas have."""

    type: str = ""
    delta: Any = None
    output_index: Any = None
    error: Any = None


class _Part(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    call_id: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    error: Any = None
    incomplete_details: Any = None
    output: list[_Item] | None = None
    usage: Any = None
    agentload: Any = None


class _ItemEvent(msgspec.Struct):
    item: _Item | None = None


class _EndEvent(msgspec.Struct):
    response: _Response | None = None
    agentload: Any = None


_decode = decoder(_Event)
_decode_item = decoder(_ItemEvent)
_decode_end = decoder(_EndEvent)
_decode_response = decoder(_Response)


class ResponsesReader:
    """Reads deltas, output items and the last event; ignores all others.

    Endpoints that send an item, or all of them, only when it is done are read from there.
    """

    noun = "responses event"

    def __init__(self) -> None:
        self.gathered = Gathered()
        self._calls: dict[Any, Call] = {}
        self._streamed: set[Any] = set()
        """Output items of which text has come."""

    def take(self, data: bytes, end: int) -> None:
        """See `Reader`."""
        event = _decode(data)
        kind = event.type
        if (slot := _TEXT_DELTAS.get(kind)) is not None:
            if isinstance(event.delta, str):
                self._streamed.add(_key(event.output_index))
                self.gathered.add(event.delta, end, slot)
        elif kind in _CALL_DELTAS:
            if isinstance(event.delta, str):
                key = _key(event.output_index)
                self._streamed.add(key)
                self.gathered.add(event.delta, end, self._calls[key].slot if key in self._calls else UNKEPT)
        elif event.error is not None or kind == "error":
            self.gathered.fail("error_event", f"error in the stream: {error_message(data)}")
        elif kind == "response.output_item.added":
            self._begin(_key(event.output_index), _decode_item(data).item, end)
        elif kind == "response.output_item.done":
            self._take_item(_key(event.output_index), _decode_item(data).item, end)
        elif kind in _ENDS:
            ending = _decode_end(data)
            self._end(kind, ending.response or _Response(), end)
            self.gathered.take_times(ending.agentload)

    def take_whole(self, data: bytes) -> None:
        """See `Reader`."""
        response = _decode_response(data)
        if response.error is not None:
            self.gathered.fail("error_event", f"error in the answer: {message_in(response.error)}")
        elif response.status in ("completed", "incomplete", "failed", "cancelled"):
            self._end(f"response.{response.status}", response, len(data))

    def plain(self, data: bytes) -> tuple[int, str] | None:
        """See `Reader`."""
        event = _decode(data)
        key = _key(event.output_index)
        if not isinstance(event.delta, str) or not event.delta or key not in self._streamed:
            return None
        if (slot := _TEXT_DELTAS.get(event.type)) is not None:
            return slot, event.delta
        if event.type in _CALL_DELTAS and key in self._calls:
            return self._calls[key].slot, event.delta
        return None

    def _begin(self, key: Any, item: _Item | None, end: int) -> None:
        if item is not None and item.type in _CALLS and key not in self._calls:
            call = self._calls[key] = self.gathered.start_call(item.call_id or item.id)
            self.gathered.name_call(call, item.name, end)

    def _take_item(self, key: Any, item: _Item | None, end: int) -> None:
        """Read a whole item of which no text has come yet."""
        if item is None:
            return
        self._begin(key, item, end)
        if key in self._streamed:
            return
        self._streamed.add(key)
        if item.type in _CALLS:
            given = item.arguments if item.arguments is not None else item.input
            text = given if isinstance(given, str) else json_text(given) if given else ""
            self.gathered.add(text, end, self._calls[key].slot)
            return
        slots = {"message": TEXT, "reasoning": REASONING}
        if (slot := slots.get(item.type)) is not None:
            for part in [*(item.summary or ()), *(item.content or ())]:
                self.gathered.add(part.text or part.refusal or "", end, slot)

    def _end(self, kind: str, response: _Response, end: int) -> None:
        gathered = self.gathered
        if not self._streamed:
            for index, item in enumerate(response.output or ()):
                self._take_item(index, item, end)
        if response.usage is not None:
            gathered.usage = usage_of(response.usage)
        gathered.take_times(response.agentload)
        if kind in ("response.failed", "response.cancelled") or response.error is not None:
            said = message_in(response.error) if response.error is not None else kind.partition(".")[2]
            gathered.fail("error_event", f"the answer has failed: {said}")
            return
        details = response.incomplete_details
        reason = details.get("reason") if isinstance(details, dict) else None
        status = kind.partition(".")[2]
        gathered.finish(str(reason) if reason and status == "incomplete" else status)


def _key(index: Any) -> Any:
    """An output item's place; what is no number stands for the only one."""
    return index if isinstance(index, int) else 0
