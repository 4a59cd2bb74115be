"""Exchanges as the recording proxy hands them on, with the fake endpoint's bodies, and turns made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fake_endpoint import Reply, ToolUse
from fake_wire import filled, stream_events, whole_answer

from agentload._options import Api
from agentload._record._exchange import Exchange
from agentload._record._journal import Journal, make_partial
from agentload._record._turns import TurnMaker
from agentload_traces import Session, Turn, open_trace

MS = 1_000_000
PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


class Recorder:
    """Sends requests on a clock of its own: each answer takes 10 ms, its first token 4."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "t.jsonl"
        make_partial(self.path)
        self.journal = Journal(self.path)
        self.maker = TurnMaker(self.journal, origin_ns=0, **options)
        self.now_ms = 100

    def ask(
        self,
        body: dict[str, Any] | bytes,
        reply: Reply | None = None,
        *,
        api: Api = "chat",
        headers: Mapping[str, str] | None = None,
        after_ms: int = 0,
        **more: Any,
    ) -> None:
        """One exchange, that begins `after_ms` after the end of the one before."""
        self.now_ms += after_ms
        start = self.now_ms
        self.now_ms = start + 10
        fields = body if isinstance(body, dict) else {}
        made = filled(reply or Reply(text="fine"), api, fields)
        status, came = made.status, {"content-type": "application/json"}
        if status != 200:
            data = [b'{"error": {"message": "no"}}']
        elif fields.get("stream"):
            came["content-type"] = "text/event-stream"
            data = stream_events(api, made, fields).all()
        else:
            data = [json.dumps(whole_answer(api, made, fields)).encode()]
        at = [(start + 4) * MS] * (len(data) - 1) + [(start + 10) * MS]
        exchange = Exchange(
            api=api,
            target=PATHS[api],
            start_ns=start * MS,
            sent_fields=dict(headers or {}),
            body=[body if isinstance(body, bytes) else json.dumps(body).encode()],
            status=status,
            came_fields=came,
            reads=list(zip(at, data, strict=True)),
            end_ns=(start + 10) * MS,
        )
        for name, value in more.items():
            setattr(exchange, name, value)
        self.maker.take(exchange)

    def sessions(self) -> list[Session]:
        self.journal.finish()
        return list(open_trace(self.path, strict=True).sessions())

    def turns(self) -> list[Turn]:
        (session,) = self.sessions()
        return list(session.turns)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(call_id: str, name: str = "look", arguments: str = '{"at": "it"}') -> ToolUse:
    return ToolUse(name, arguments, call_id)


def called(*calls: ToolUse, text: str | None = None) -> dict[str, Any]:
    uses = [
        {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in calls
    ]
    return {"role": "assistant", "content": text, "tool_calls": uses}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}}
    return {"model": "m", "stream": True, "messages": list(messages), **usage, **more}
