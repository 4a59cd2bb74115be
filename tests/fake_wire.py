"""The bytes of the four APIs' answers, as the fake endpoint sends them; see `fake_endpoint`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fake_reply import COUNTED, PIECE, Events, FakeUsage, Reply, data_event, named_event
from fake_wire_chat import chat_stream, chat_whole, completions_stream, completions_whole
from fake_wire_messages import messages_stream, messages_whole
from fake_wire_responses import responses_stream, responses_whole

from agentload._options import Api
from agentload_traces import count_tokens

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

PINGS: dict[Api, bytes] = {
    "chat": b": ping\n\n",
    "completions": b": ping\n\n",
    "responses": b": ping\n\n",
    "messages": b'event: ping\ndata: {"type": "ping"}\n\n',
}

_NOT_PROMPT = {"role", "type", "id", "tool_call_id", "call_id", "tool_use_id", "status", "cache_control"}


def filled(reply: Reply, api: Api, body: Mapping[str, Any]) -> Reply:
    """`reply` with its text, pieces, finish and usage filled in."""
    text = reply.text
    if text is None:
        asked = (body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
        words = next((number for number in asked if isinstance(number, int)), 16)
        text = "".join(f" {WORDS[number % len(WORDS)]}" for number in range(words))
    if reply.pieces is not None:
        text = "".join(reply.pieces)
    filled_in = replace(
        reply, text=text, pieces=reply.pieces if reply.pieces is not None else PIECE.findall(text)
    )
    if reply.finish is None:
        filled_in = replace(filled_in, finish=_FINISH[api][bool(reply.tool_calls)])
    if reply.usage is COUNTED:
        filled_in = replace(filled_in, usage=_counted(filled_in, body))
    return filled_in


_FINISH: dict[Api, tuple[str, str]] = {
    "chat": ("stop", "tool_calls"),
    "completions": ("stop", "stop"),
    "responses": ("completed", "completed"),
    "messages": ("end_turn", "tool_use"),
}


def _counted(reply: Reply, body: Mapping[str, Any]) -> FakeUsage:
    calls = "".join(call.name + call.arguments for call in reply.tool_calls)
    prompt = "".join(
        _strings([body.get(name) for name in ("system", "instructions", "messages", "input", "prompt")])
    )
    output = (reply.reasoning + (reply.text or "") + calls).encode(errors="replace").decode()
    reasoning = count_tokens(reply.reasoning.encode(errors="replace").decode())
    return FakeUsage(count_tokens(prompt), count_tokens(output), reasoning_tokens=reasoning)


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NOT_PROMPT:
                yield from _strings(item)


def stream_events(api: Api, reply: Reply, body: Mapping[str, Any]) -> Events:
    """The events of a whole, successful stream. reply: as `filled` returns it."""
    return _STREAMS[api](reply, body)


def whole_answer(api: Api, reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The object of an answer that is not streamed. reply: as `filled` returns it."""
    return _WHOLES[api](reply, body)


def error_body(api: Api, status: int, message: str) -> dict[str, Any]:
    """The object of an error, with the provider's type for the status."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
    if api == "messages":
        kind = kinds.get(status, "overloaded_error" if status == 529 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    code = "rate_limit_exceeded" if status == 429 else None
    return {
        "error": {
            "message": message,
            "type": kinds.get(status, "server_error"),
            "param": None,
            "code": code,
        }
    }


def error_event(api: Api, message: str) -> bytes:
    """The event that tells of an error in a stream."""
    if api == "messages":
        return named_event({**error_body("messages", 529, message)})
    if api == "responses":
        return named_event(
            {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 9}
        )
    return data_event(error_body(api, 500, message))


_Stream = Callable[[Reply, Mapping[str, Any]], Events]
_Whole = Callable[[Reply, Mapping[str, Any]], dict[str, Any]]

_STREAMS: dict[Api, _Stream] = {
    "chat": chat_stream,
    "completions": completions_stream,
    "responses": responses_stream,
    "messages": messages_stream,
}

_WHOLES: dict[Api, _Whole] = {
    "chat": chat_whole,
    "completions": completions_whole,
    "responses": responses_whole,
    "messages": messages_whole,
}
