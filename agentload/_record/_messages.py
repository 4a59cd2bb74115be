"""What one message says, in the same words for the three APIs that have messages.

What clients spell now one way and now another does not count: a text as a string or as a list of one part,
cache marks, ids and states of items, the order of the keys in a call's arguments.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from agentload._answers_json import json_text

Kind = Literal["system", "user", "assistant", "tool", "reasoning"]

_ROLES: dict[str, Kind] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXTS = ("text", "input_text", "output_text")


class Said(NamedTuple):
    """A message. calls: id, name and arguments of each; results: id of the call, and the text.

    other: what else is in it (images), as JSON: it tells messages apart, and its tokens cannot be counted.
    """

    kind: Kind
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    other: str = ""


def said_of(value: Any) -> Said:
    """Read a message, an item of the responses API, or a system prompt (a text, or parts without a role)."""
    if isinstance(value, str):
        return Said("user", value)
    if isinstance(value, list):
        return _Parts().read(value).said("system")
    if not isinstance(value, dict):
        return Said("user", other=json_text(value))
    kind = value.get("type")
    if isinstance(kind, str) and kind != "message" and "role" not in value:
        return _item(kind, value)
    return _message(value)


def _message(value: dict[str, Any]) -> Said:
    role = _ROLES.get(str(value.get("role")), "user")
    parts = _Parts()
    if role == "tool":
        call_id = _text(value.get("tool_call_id") or value.get("name"))
        parts.results.append((call_id, _flat(value.get("content"))))
        return parts.said("tool")
    parts.read(value.get("content"))
    for name in ("reasoning_content", "reasoning"):
        if isinstance(value.get(name), str):
            parts.reasoning.append(value[name])
            break
    calls = value.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = call.get("function") or call.get("custom")
            parts.call(call.get("id"), function if isinstance(function, dict) else {})
    if isinstance(value.get("function_call"), dict):
        parts.call(value["function_call"].get("name"), value["function_call"])
    if isinstance(value.get("refusal"), str):
        parts.texts.append(value["refusal"])
    return parts.said(role)


def _item(kind: str, value: dict[str, Any]) -> Said:
    """An item of the responses API that is no message."""
    parts = _Parts()
    if kind == "reasoning":
        for name in ("summary", "content"):
            if isinstance(value.get(name), list):
                parts.reasoning += [_text(part.get("text")) for part in value[name] if isinstance(part, dict)]
        return Said("reasoning", reasoning="".join(parts.reasoning))
    if kind.endswith("_call_output"):
        return Said("tool", results=((_text(value.get("call_id")), _flat(value.get("output"))),))
    if kind.endswith("_call"):
        parts.call(value.get("call_id") or value.get("id"), value)
        return parts.said("assistant")
    if kind in _TEXTS:
        return Said("user", _text(value.get("text")))
    return Said("user", other=json_text(value))


class _Parts:
    """What the content of a message consists of."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, str, str]] = []
        self.results: list[tuple[str, str]] = []
        self.other: list[str] = []

    def read(self, content: Any) -> _Parts:
        """Take in a text or a list of parts."""
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list):
            for part in content:
                self._part(part)
        elif content is not None:
            self.other.append(json_text(content))
        return self

    def call(self, call_id: Any, function: dict[str, Any]) -> None:
        """Take in a tool call; of `function` its name and its arguments, under the name that each API has."""
        given = next((function[name] for name in ("arguments", "input") if name in function), "")
        self.calls.append((_text(call_id), _text(function.get("name")), _arguments(given)))

    def said(self, kind: Kind) -> Said:
        """All of it; a message with results is a tool's, whatever its role."""
        return Said(
            "tool" if self.results else kind,
            "".join(self.texts),
            "".join(self.reasoning),
            tuple(self.calls),
            tuple(self.results),
            "".join(self.other),
        )

    def _part(self, part: Any) -> None:
        if isinstance(part, str):
            self.texts.append(part)
            return
        if not isinstance(part, dict):
            self.other.append(json_text(part))
            return
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "refusal":
                self.texts.append(_text(part.get("text") or part.get("refusal")))
            case "thinking":
                self.reasoning.append(_text(part.get("thinking")))
            case "redacted_thinking":
                self.reasoning.append("")
            case "tool_use":
                self.call(part.get("id"), part)
            case "tool_result":
                self.results.append((_text(part.get("tool_use_id")), _flat(part.get("content"))))
            case _:
                bare = {name: value for name, value in part.items() if name != "cache_control"}
                self.other.append(json_text(bare))


def _flat(content: Any) -> str:
    """The text of a tool's result; what is no text in it is left out."""
    return "".join(_Parts().read(content).texts)


def _arguments(given: Any) -> str:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return str(given)
    return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if given else "{}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
