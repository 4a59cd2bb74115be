"""The records of a weka file, each decoded on its own."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from agentload_traces._checks import MAX_COUNT, MAX_START_MS, MAX_WAIT_MS
from agentload_traces._json import DECODE_ERRORS, items

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_SentSeconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_START_MS / 1000)]
_WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_MS / 1000)]
_WaitMs = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_MS)]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request, named as in the file; `type` may be anything and is looked at by the importer."""

    t: _SentSeconds
    input: _Count = msgspec.field(name="in")
    out: _Count | None = None
    model: str | None = None
    hash_ids: list[int] | None = None
    input_types: tuple[str, ...] = ()
    stop: str | None = None
    api_time: _WaitSeconds | None = None
    ttft: _WaitSeconds | None = None
    type: Any = None


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-agent marker, without the requests nested in it."""

    t: _SentSeconds | None = None
    agent_id: str | None = None
    subagent_type: str | None = None
    duration_ms: _WaitMs | None = None


class _Kind(msgspec.Struct, frozen=True):
    type: str | None = None


# Known to the format, and of no use to a trace.
UNUSED = frozenset({"output_types", "think_time"})
UNUSED_OF_MARKER = frozenset(
    {"type", "requests", "total_tokens", "tool_use_count", "status", "models", "tool_tokens", "system_tokens"}
)

_decode_kind = msgspec.json.Decoder(_Kind).decode
decode_request = msgspec.json.Decoder(Request).decode
decode_marker = msgspec.json.Decoder(Marker).decode


def is_marker(record: bytes) -> bool:
    """Tell a sub-agent marker from a request; of damaged data, by the words in it."""
    try:
        return _decode_kind(record).type == "subagent"
    except msgspec.ValidationError:
        return False
    except DECODE_ERRORS:
        return b'"subagent"' in record and b'"requests"' in record


def first_t(raw: bytes) -> float:
    """Return the send time of the first nested request that can be read; 0 without any."""
    for record in items(raw):
        try:
            return decode_request(record).t
        except DECODE_ERRORS:
            continue
    return 0.0
