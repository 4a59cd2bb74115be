"""Everything in a request body but the messages: limits, streaming, tools, and what a user adds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from agentload._options import Api
from agentload_traces import AgentloadError, Session, ToolCall, Turn, count_tokens

_OWN = {
    "chat": ("messages", "stream"),
    "responses": ("input", "stream"),
    "completions": ("prompt", "stream"),
    "messages": ("messages", "system", "stream"),
}
"""Fields that hold the trace's prompt, or on which measuring rests."""

_LIMIT = {
    "chat": "max_tokens",
    "responses": "max_output_tokens",
    "completions": "max_tokens",
    "messages": "max_tokens",
}

_CHAT_LIMIT = "max_completion_tokens"
"""What newer OpenAI models want instead of `max_tokens`."""

RESPONSES_LEAST = 16
"""OpenAI's responses API refuses a smaller `max_output_tokens`."""

_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}}

DESCRIPTION_WORDS = 16
"""Words of the prompt's text that describe the first declared tool: with another salt, or in another session
that shares no text, prompts then differ from their first block on."""


def asked_tokens(turn: Turn) -> int:
    """Output tokens to ask for: the recorded count, but at least 1, since nobody can ask for none."""
    return max(1, turn.output_tokens or 0)


def check_extra_body(api: Api, extra: Mapping[str, Any]) -> None:
    """Raise `AgentloadError` if `extra` sets a field that must be the replayer's own.

    All other fields are the user's: what is set replaces what would be sent. In chat
    `max_completion_tokens` takes the place of `max_tokens`; as null it stands for each turn's recorded count.
    """
    for name in _OWN[api]:
        if name in extra:
            raise AgentloadError(f"--extra-body: {name!r} is set by the replayer itself; leave it out")


class BodyFields:
    """What surrounds the messages of a session's requests.

    before: up to the messages. extra_tokens: o200k tokens of the tools and instructions that a user adds,
    as JSON. Other fields of a user are no prompt.
    """

    def __init__(self, api: Api, model: str, *, force_output: bool, extra_body: Mapping[str, Any]) -> None:
        extra = dict(extra_body)
        self._api = api
        self._forces = force_output and api != "messages"
        self._before = b'{"model":%s,' % _json(extra.pop("model", model))
        self.has_tools = "tools" in extra
        self.extra_tokens = _prompt_tokens(extra)
        limit = _CHAT_LIMIT if api == "chat" and _CHAT_LIMIT in extra else _LIMIT[api]
        if limit == _CHAT_LIMIT and extra[limit] is None:
            del extra[limit]
        self._limit: object = extra.get(limit)
        # `None` stands for the number of tokens that a turn asks for.
        fields: dict[str, bytes | None] = {limit: None, **_streaming(api)}
        if self._forces:
            fields |= {"min_tokens": None, "ignore_eos": b"true"}
        self._after: list[bytes | None] = []
        for name, value in (fields | {name: _json(value) for name, value in extra.items()}).items():
            self._after += (b",%s:" % _json(name), value)

    def output_tokens(self, turn: Turn) -> int:
        """The most tokens that the request of `turn` asks for.

        OpenAI's responses API takes no less than 16; servers that can be forced take any number.
        """
        if isinstance(self._limit, int):
            return self._limit
        asked = asked_tokens(turn)
        return asked if self._forces or self._api != "responses" else max(asked, RESPONSES_LEAST)

    def body(self, opening: bytes, messages: bytearray, closing: bytes, output_tokens: int) -> bytes:
        """The whole body: one copy of the messages."""
        count = b"%d" % output_tokens
        after = [count if part is None else part for part in self._after]
        return b"".join((self._before, opening, messages, closing, *after, b"}"))


def _streaming(api: Api) -> dict[str, bytes]:
    if api == "responses":
        return {"stream": b"true", "store": b"false"}
    if api == "messages":
        return {"stream": b"true"}
    return {"stream": b"true", "stream_options": b'{"include_usage":true}'}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _prompt_tokens(extra: Mapping[str, Any]) -> int:
    tokens = count_tokens(_text(extra["tools"])) if extra.get("tools") else 0
    instructions = extra.get("instructions")
    return tokens + (count_tokens(instructions) if isinstance(instructions, str) else 0)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


_LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


def function_name(call: ToolCall) -> str:
    """The name of a recorded call, in the letters that OpenAI and Anthropic allow (64 of `a-zA-Z0-9_-`)."""
    name = call.name or "tool"
    return name if _LEGAL_NAME.fullmatch(name) else _ILLEGAL.sub("_", name)[:64]


def made_call_id(turn_id: str, number: int) -> str:
    """The id of a turn's call, unique in its session: 40 letters that all APIs allow."""
    name = f"call_{turn_id}_{number}"
    if _LEGAL_ID.fullmatch(name):
        return name
    digest = blake2b(turn_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"call_{digest}_{number}"


class DeclaredTools:
    """The tools that a session's recorded calls name, for an API that wants them declared (Anthropic).

    names: of them. tokens: o200k tokens of names, descriptions and the JSON of the schemas.
    """

    def __init__(self, session: Session) -> None:
        self.names = sorted({function_name(call) for turn in session.turns for call in turn.tool_calls})
        schema = _text(_SCHEMA)
        each = count_tokens(schema)
        self.tokens = sum(count_tokens(name) + each for name in self.names)
        self.tokens += DESCRIPTION_WORDS if self.names else 0

    def json(self, description: bytes) -> bytes:
        """The declaration; the first tool is described by `description` (escaped for JSON)."""
        tools = []
        for number, name in enumerate(self.names):
            described = b'"description":"%s",' % description if not number else b""
            schema = msgspec.json.encode(_SCHEMA)
            tools.append(b'{"name":%s,%s"input_schema":%s}' % (_json(name), described, schema))
        return b"[%s]" % b",".join(tools)
