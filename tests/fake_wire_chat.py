"""The bytes of chat and legacy completions: a role chunk, a usage chunk with no choices, [DONE]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fake_reply import PIECE, Events, FakeUsage, Reply, data_event, fragments


def _openai_usage(usage: FakeUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_written_tokens,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def chat_stream(reply: Reply, body: Mapping[str, Any]) -> Events:
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1764518400,
        "model": body.get("model", "m"),
        "system_fingerprint": "fp_1",
    }
    usage = {"usage": None} if _include_usage(body) else {}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return data_event({**head, "choices": [choice], **usage})

    content = [chunk({"reasoning_content": piece}) for piece in PIECE.findall(reply.reasoning)]
    content += [chunk({"content": piece}) for piece in reply.pieces or ()]
    for index, call in enumerate(reply.tool_calls):
        call_opening = {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        content.append(chunk({"tool_calls": [{"index": index, **call_opening}]}))
        content += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
            for part in fragments(call.arguments)
        ]
    finish = [chunk({}, reply.finish)]
    if reply.usage is not None and _include_usage(body):
        finish.append(data_event({**head, "choices": [], "usage": _openai_usage(reply.usage)}))
    first = None if reply.tool_calls and not reply.text else ""
    opening = [chunk({"role": "assistant", "content": first, "refusal": None})]
    return Events(opening, content, finish, [b"data: [DONE]\n\n"])


def chat_whole(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.tool_calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764518400,
        "model": body.get("model", "m"),
        "choices": [choice],
        **({"usage": _openai_usage(reply.usage)} if reply.usage else {}),
    }


def completions_stream(reply: Reply, body: Mapping[str, Any]) -> Events:
    head = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1764518400,
        "model": body.get("model", "m"),
    }

    def chunk(text: str, finish: str | None = None) -> bytes:
        return data_event(
            {**head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}
        )

    finish = [chunk("", reply.finish)]
    if reply.usage is not None and _include_usage(body):
        finish.append(data_event({**head, "choices": [], "usage": _openai_usage(reply.usage)}))
    return Events([], [chunk(piece) for piece in reply.pieces or ()], finish, [b"data: [DONE]\n\n"])


def completions_whole(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1764518400,
        "model": body.get("model", "m"),
        "choices": [{"index": 0, "text": reply.text, "logprobs": None, "finish_reason": reply.finish}],
        **({"usage": _openai_usage(reply.usage)} if reply.usage else {}),
    }
