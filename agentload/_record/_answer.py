"""What a recorded exchange comes to: whether it was answered, and what the answer says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from agentload._answers import ParsedAnswer, parse_answer
from agentload._answers_gathered import text_tokens
from agentload._answers_json import NOT_JSON
from agentload._http_client import Answer, Marks
from agentload._record._content import UnreadableError, content
from agentload._record._exchange import Exchange

_FIRST_DATA = re.compile(rb"(?:^|\n)data: ?(\{[^\r\n]*)")


class Call(NamedTuple):
    """A tool call that an answer makes. call_id: by which the next prompt names its result."""

    call_id: str
    name: str | None
    arguments: str
    arguments_tokens: int


class Answered(NamedTuple):
    """A whole answer. Times are of perf_counter.

    input_tokens, cached_tokens, output_tokens: as the endpoint tells, `None` if it does not.
    counted_tokens: of the answer's text; `None` if it could not be read, and then why: unreadable.
    first_token_ns: `None` of an answer that is not streamed.
    """

    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    counted_tokens: int | None
    text: str
    reasoned: bool
    calls: tuple[Call, ...]
    first_token_ns: int | None
    end_ns: int
    response_id: str | None
    unreadable: str | None = None


def read_answer(exchange: Exchange) -> Answered | str:
    """The answer of an exchange; of a failed one, the kind of failure."""
    if exchange.status is None:
        return {"unreachable": "connect", "cancelled": "cancelled", "stopped": "stopped"}.get(
            exchange.outcome, "reset"
        )
    times = [at_ns for at_ns, _ in exchange.reads]
    end_ns = times[-1] if times else exchange.end_ns
    try:
        pieces = content((data for _, data in exchange.reads), exchange.came_fields)
    except UnreadableError as reason:
        if exchange.status != 200 or exchange.outcome != "whole":
            return "refused" if exchange.status != 200 else exchange.outcome
        return Answered(None, None, None, None, "", False, (), None, end_ns, None, str(reason))
    body = b"".join(pieces)
    parsed = parse_answer(_as_answer(exchange, pieces, times, body), exchange.api, keep_message=True)
    if parsed.error is not None:
        # A client that hangs up after the last event has its answer; one that does before has not.
        ended_early = exchange.outcome != "whole" and parsed.error_kind in ("cut_off", "empty", "bad_stream")
        return exchange.outcome if ended_early else parsed.error_kind or "failed"
    return _answered(exchange, parsed, body, end_ns)


def _as_answer(exchange: Exchange, pieces: Sequence[bytes], times: list[int], body: bytes) -> Answer:
    """As the replayer's client would have it; the compression is off."""
    sizes = []
    size = 0
    for piece in pieces:
        size += len(piece)
        sizes.append(size)
    headers = {name: value for name, value in exchange.came_fields.items() if name == "content-type"}
    return Answer(
        status=exchange.status,
        headers=headers,
        body=body,
        marks=Marks(times, sizes),
        sent_ns=exchange.start_ns,
        end_ns=exchange.end_ns,
        error=None,
    )


def _answered(exchange: Exchange, parsed: ParsedAnswer, body: bytes, end_ns: int) -> Answered:
    usage, message = parsed.usage, parsed.message
    calls = message.tool_calls if message is not None else ()
    streamed = "event-stream" in exchange.came_fields.get("content-type", "")
    return Answered(
        input_tokens=(usage and usage.input_tokens) or None,  # 0 is no count of a prompt
        cached_tokens=usage.cached_tokens if usage is not None else None,
        output_tokens=(usage and usage.output_tokens) or None,
        counted_tokens=parsed.output_tokens,
        text=message.text if message is not None else "",
        reasoned=bool(message and message.reasoning) or bool(usage and usage.reasoning_tokens),
        calls=tuple(
            Call(call.call_id, call.name or None, call.arguments, text_tokens(call.arguments))
            for call in calls
        ),
        first_token_ns=parsed.arrivals[0].at_ns if streamed and parsed.arrivals else None,
        end_ns=end_ns,
        response_id=_response_id(body) if exchange.api == "responses" else None,
    )


class _WithId(msgspec.Struct):
    id: str | None = None
    response: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_WithId).decode


def _response_id(body: bytes) -> str | None:
    """The id by which a later request continues this response."""
    found = _FIRST_DATA.search(body)
    try:
        whole = _decode(found[1] if found else body)
        if bytes(whole.response) != b"null":
            whole = _decode(bytes(whole.response))
    except NOT_JSON:
        return None
    return whole.id
