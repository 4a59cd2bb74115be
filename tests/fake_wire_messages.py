"""The bytes of Anthropic's messages API: message_start, a ping, blocks, message_delta and message_stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fake_reply import PIECE, Events, FakeUsage, Reply, fragments, named_event


def _messages_usage(usage: FakeUsage) -> dict[str, Any]:
    """Anthropic's `input_tokens` leaves out what was read from and written to the cache."""
    fresh = usage.input_tokens - usage.cached_tokens - usage.cache_written_tokens
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": usage.cache_written_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }


def _messages_blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": "c2ln"})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        given = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": given})
    return blocks


def messages_whole(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "m"),
        "content": _messages_blocks(reply),
        "stop_reason": reply.finish,
        "stop_sequence": None,
        **({"usage": _messages_usage(reply.usage)} if reply.usage else {}),
    }


def messages_stream(reply: Reply, body: Mapping[str, Any]) -> Events:
    begun: dict[str, Any] = {**messages_whole(reply, body), "content": [], "stop_reason": None}
    if reply.usage is not None:
        begun["usage"] = {**begun["usage"], "output_tokens": 1}
    ping = {"type": "ping"}
    content: list[dict[str, Any]] = []
    calls = iter(reply.tool_calls)
    for index, block in enumerate(_messages_blocks(reply)):
        place = {"type": "content_block_delta", "index": index}
        if block["type"] == "thinking":
            empty: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": part} for part in PIECE.findall(reply.reasoning)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            empty = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in reply.pieces or ()]
        else:
            empty = {**block, "input": {}}
            parts = ["", *fragments(next(calls).arguments)]
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        content.append({"type": "content_block_start", "index": index, "content_block": empty})
        content += [{**place, "delta": delta} for delta in deltas]
        content.append({"type": "content_block_stop", "index": index})
    stop: dict[str, Any] = {"delta": {"stop_reason": reply.finish, "stop_sequence": None}}
    if reply.usage is not None:
        stop["usage"] = {"output_tokens": reply.usage.output_tokens}
    return Events(
        [named_event({"type": "message_start", "message": begun}), named_event(ping)],
        [named_event(event) for event in content],
        [named_event({"type": "message_delta", **stop})],
        [named_event({"type": "message_stop"})],
    )
