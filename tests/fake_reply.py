"""What the fake endpoint is told to answer; see `fake_endpoint`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Fault = Literal[
    "close",
    "reset",
    "not_http",
    "html",
    "json",
    "no_first_token",
    "stall",
    "reset_in_stream",
    "half_event",
    "cut_in_event",
    "bad_chunk",
    "invalid_json",
    "error_event",
    "missing_finish",
    "no_terminal",
]
"""What goes wrong with an answer that has status 200.

close, reset, not_http: before an answer, by FIN, by RST, by bytes that are no HTTP.
html, json: an answer that is no stream, though one was asked for: a page; a whole completion.
no_first_token: pings only, until released. stall: silence in mid-stream, until released. Both go on then.
reset_in_stream: RST. half_event: half an event, then FIN. cut_in_event: half an event, then an orderly end.
bad_chunk: a chunk whose size is no number. invalid_json: an event that is no JSON; the rest follows.
error_event: the provider's own event for an error, then an orderly end.
missing_finish: no finish reason and nothing after it. no_terminal: a finish reason, but no terminal event.

Of an answer that is not streamed, reset_in_stream, half_event and bad_chunk cut the body in the same ways,
invalid_json and cut_in_event send half of it as a whole, error_event an error with status 200; stall and
no_first_token wait, and missing_finish leaves the finish reason out.
"""


@dataclass(frozen=True)
class ToolUse:
    """One tool call of an answer. arguments: JSON text."""

    name: str
    arguments: str = "{}"
    call_id: str = "call_1"


@dataclass(frozen=True)
class FakeUsage:
    """Token counts, rendered as each API names them. input_tokens includes cached and newly cached ones."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0


COUNTED = FakeUsage(-1, -1)
"""Stands for true counts of what was sent and answered."""


@dataclass(frozen=True)
class Reply:
    """What to answer.

    text: `None` is as many words, each one token, as `max_tokens` of the request says (16 if it does not).
    pieces: the text in the deltas it is to be sent in; `None` is a word each.
    finish: the finish or stop reason, in the API's own words; `None` is the one that fits.
    usage: `None` sends none. status, headers, message, body: other than 200 answers with `message` in the
    provider's shape of an error, or with `body` as it stands. chunk_delay_s: before each event.
    fault: see `Fault`. fault_after: events that go before it; `None` is half of those with content.
    """

    text: str | None = None
    reasoning: str = ""
    tool_calls: Sequence[ToolUse] = ()
    usage: FakeUsage | None = COUNTED
    finish: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "as scripted"
    body: bytes | None = None
    chunk_delay_s: float = 0.0
    fault: Fault | None = None
    fault_after: int | None = None
    pieces: Sequence[str] | None = None


class Events(NamedTuple):
    """The events of a stream, in parts that follow each other."""

    opening: list[bytes]
    content: list[bytes]
    finish: list[bytes]
    terminal: list[bytes]

    def all(self) -> list[bytes]:
        return [*self.opening, *self.content, *self.finish, *self.terminal]


PIECE = re.compile(r"\s*\S+|\s+$")
"""What text is split into: a delta a word."""


def data_event(value: Any) -> bytes:
    """An event of a data line alone, as OpenAI's older APIs send them."""
    return f"data: {json.dumps(value)}\n\n".encode()


def named_event(value: dict[str, Any]) -> bytes:
    """An event that has its type in a line of its own too."""
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def fragments(arguments: str) -> list[str]:
    """The deltas that a call's arguments are sent in."""
    return [arguments[at : at + 8] for at in range(0, len(arguments), 8)]
