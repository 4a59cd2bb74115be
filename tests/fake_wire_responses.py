"""The bytes of the responses API: response.created to response.completed, every event numbered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fake_reply import PIECE, Events, Reply, fragments, named_event


def _responses_items(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"id": "rs_1", "type": "reasoning", "summary": summary, "status": "completed"})
    if reply.text:
        text = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    for number, call in enumerate(reply.tool_calls):
        items.append(
            {
                "id": f"fc_{number}",
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
        )
    return items


def responses_whole(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    usage = None
    if reply.usage is not None:
        usage = {
            "input_tokens": reply.usage.input_tokens,
            "input_tokens_details": {
                "cached_tokens": reply.usage.cached_tokens,
                "cache_write_tokens": reply.usage.cache_written_tokens,
            },
            "output_tokens": reply.usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
            "total_tokens": reply.usage.input_tokens + reply.usage.output_tokens,
        }
    status = "completed" if reply.finish in ("completed", None) else "incomplete"
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1764518400,
        "status": status,
        "error": None,
        "incomplete_details": None if status == "completed" else {"reason": reply.finish},
        "model": body.get("model", "m"),
        "output": _responses_items(reply),
        "usage": usage,
    }


def responses_stream(reply: Reply, body: Mapping[str, Any]) -> Events:
    whole = responses_whole(reply, body)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    opening: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    content: list[dict[str, Any]] = []
    for index, item in enumerate(whole["output"]):
        content += _responses_item(index, item, reply)
    events = [
        named_event({**event, "sequence_number": number}) for number, event in enumerate([*opening, *content])
    ]
    last = {
        "type": f"response.{whole['status']}",
        "response": whole,
        "sequence_number": len(events),
    }
    return Events(events[:2], events[2:], [named_event(last)], [])


def _responses_item(index: int, item: dict[str, Any], reply: Reply) -> list[dict[str, Any]]:
    """The events of one output item, from added to done."""
    place = {"item_id": item["id"], "output_index": index}
    bare = {**item, "status": "in_progress"}
    events: list[dict[str, Any]] = []
    if item["type"] == "reasoning":
        bare["summary"] = []
        part = {**place, "summary_index": 0}
        kind = "response.reasoning_summary"
        events.append({"type": f"{kind}_part.added", **part, "part": {"type": "summary_text", "text": ""}})
        pieces = PIECE.findall(reply.reasoning)
        events += [{"type": f"{kind}_text.delta", **part, "delta": piece} for piece in pieces]
        events.append({"type": f"{kind}_text.done", **part, "text": reply.reasoning})
        events.append({"type": f"{kind}_part.done", **part, "part": item["summary"][0]})
    elif item["type"] == "message":
        bare["content"] = []
        part = {**place, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events.append({"type": "response.content_part.added", **part, "part": empty})
        kind = "response.output_text"
        events += [
            {"type": f"{kind}.delta", **part, "delta": piece, "logprobs": []} for piece in reply.pieces or ()
        ]
        events.append({"type": f"{kind}.done", **part, "text": reply.text, "logprobs": []})
        events.append({"type": "response.content_part.done", **part, "part": item["content"][0]})
    else:
        bare["arguments"] = ""
        kind = "response.function_call_arguments"
        events += [{"type": f"{kind}.delta", **place, "delta": part} for part in fragments(item["arguments"])]
        events.append({"type": f"{kind}.done", **place, "arguments": item["arguments"]})
    added = {"type": "response.output_item.added", "output_index": index, "item": bare}
    done = {"type": "response.output_item.done", "output_index": index, "item": item}
    return [added, *events, done]
