"""Judges an answer cheaply, before it is parsed: is it whole, has its first token come?"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentload._answers_chat import ChatReader
from agentload._answers_gathered import Reader
from agentload._answers_json import NOT_JSON
from agentload._answers_messages import MessagesReader
from agentload._answers_responses import ResponsesReader
from agentload._answers_sse import event_fields, events, read_events
from agentload._http_client import Answer
from agentload._options import Api

_HEAD_EVENTS = 8
_TAIL_EVENTS = 4
"""How many events at both ends `ended_well` decodes. Providers send at most three before the first text, and
four from the finish reason on."""


_ERROR = re.compile(rb'"error"(?!: ?null)')
"""An error in an event, or the name of one; many answers have a field for it that is null."""


def reader_for(api: Api) -> Reader:
    """A reader of one answer of `api`."""
    if api == "responses":
        return ResponsesReader()
    return MessagesReader() if api == "messages" else ChatReader()


def is_stream(answer: Answer) -> bool:
    """Whether the answer says that it is a stream of events."""
    return "text/event-stream" in answer.headers.get("content-type", "").lower()


def encoding_of(answer: Answer) -> str | None:
    """The encoding of the answer's body, if it has one."""
    encoding = answer.headers.get("content-encoding", "").strip()
    return encoding if encoding.lower() not in ("", "identity") else None


def ended_well(answer: Answer, api: Api) -> bool:
    """Whether an answer is certainly a whole stream; where it is not, `parse_answer` must tell.

    Of a stream of at most twelve events that is exact. Of a longer one, the first events are decoded up to
    the first text, and the last four, which must end it; the others must begin and end like the one JSON
    object that each is, and hold no error. What may slip through is an event between those that looks so
    and that `parse_answer` then finds to be no JSON, of another shape, or an error whose name is spelled
    with escapes. It takes about 1 ns a byte.
    """
    body = answer.body
    if answer.status != 200 or answer.error is not None or not is_stream(answer) or encoding_of(answer):
        return False
    named = api in ("responses", "messages")
    number = _events_in(body, named=named)
    if number is None or _ERROR.search(body):
        return False
    if number <= _HEAD_EVENTS + _TAIL_EVENTS:
        return _is_whole(body, api)
    tail = _start_of_tail(body)
    return _is_whole(body[tail:], api, tail_only=True) and _has_text(body[:tail], api, _HEAD_EVENTS)


def shows_token(api: Api) -> Callable[[bytes], bool]:
    """Return a function that says whether a body, or as much of it as has come, holds a token."""
    return lambda body: _has_text(body, api, None)


def _events_in(body: bytes, *, named: bool) -> int | None:
    """How many events a body has, if each looks like a line of a JSON object, after its name if `named`.

    `None` if some event is not, or the last is not whole, or is not what ends a stream.
    """
    lines = body.count(b"\n")
    if named:
        number, over = divmod(lines, 3)
        looks = body.startswith(b"event: ") and body.endswith(b"}\n\n")
        inner = body.count(b"}\n\nevent: ")
        looks = looks and b"event: error" not in body
    else:
        number, over = divmod(lines, 2)
        looks = body.startswith(b"data: {") and body.endswith(b"}\n\ndata: [DONE]\n\n")
        # The last event is no object.
        inner = body.count(b"}\n\ndata: {") + 1
    return number if looks and not over and inner == number - 1 and b"\r" not in body else None


def _is_whole(body: bytes, api: Api, *, tail_only: bool = False) -> bool:
    reader = reader_for(api)
    read_events(body, reader)
    gathered = reader.gathered
    whole = gathered.failure is None and gathered.finish_reason is not None
    if api == "messages":
        # Its stop reason comes one event before the last.
        whole = whole and b'"message_stop"' in body[body.rfind(b"\ndata: ") :]
    return whole and (tail_only or bool(gathered.texts))


def _start_of_tail(body: bytes) -> int:
    """Where the last events of a body begin."""
    place = len(body) - 2
    for _ in range(_TAIL_EVENTS):
        place = body.rfind(b"\n\n", 0, place)
    return place + 2


def _has_text(body: bytes, api: Api, most: int | None) -> bool:
    """Whether text comes in the first `most` events."""
    reader = reader_for(api)
    for event, end in events(body if most is None else _first_events(body, most)):
        _, data = event_fields(event)
        if not data or data.strip() == b"[DONE]":
            continue
        try:
            reader.take(data, end)
        except NOT_JSON:
            return False
        if reader.gathered.failure is not None:
            return False
        if reader.gathered.texts:
            return True
    return False


def _first_events(body: bytes, most: int) -> bytes:
    place = 0
    for _ in range(most):
        place = body.find(b"\n\n", place) + 2
        if place < 2:
            return body
    return body[:place]
