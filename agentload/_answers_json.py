"""Decodes what endpoints send as JSON, and finds what they say of errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from agentload._one_line import one_line

_Kind = TypeVar("_Kind")

_ERROR_DEPTH = 5

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)
"""What decoding raises for bytes that are no JSON, or JSON of another shape."""


def decoder(kind: type[_Kind]) -> Callable[[bytes], _Kind]:
    """Return a function that decodes JSON as `kind`; it raises one of `NOT_JSON`."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_any(data: bytes) -> _Kind:
        try:
            return decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # The standard library reads what msgspec does not: lone surrogates, which models do send.
            return msgspec.convert(json.loads(data), kind)

    return decode_any


def converted(value: Any, kind: type[_Kind]) -> _Kind | None:
    """`value` as `kind`; `None` where it makes no sense as that."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def json_text(value: Any) -> str:
    """`value` as JSON text; `""` where it has none."""
    try:
        return msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, RecursionError):
        pass
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return ""


def error_message(body: bytes) -> str:
    """The message in an error body of any common shape, in one line."""
    try:
        value = msgspec.json.decode(body)
    except NOT_JSON:
        value = body[:10_000].decode(errors="replace")
    return message_in(value)


def message_in(value: Any) -> str:
    """The message in a decoded error of any common shape, in one line."""
    for _ in range(_ERROR_DEPTH):
        if not isinstance(value, dict):
            break
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), str(value))
    return one_line(str(value)) or "no message"
