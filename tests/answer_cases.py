"""Answers as the client hands them on, made without a network, for the tests that read answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

from fake_reply import Reply
from fake_wire import filled, stream_events, whole_answer
from hypothesis import strategies as st

from agentload._http_client import Answer, Marks
from agentload._options import Api

APIS: tuple[Api, ...] = get_args(Api)

ASKED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def answer_of(parts: Sequence[bytes], **fields: Any) -> Answer:
    """An answer whose parts came in one read each, 1 us apart; `fields` that are no field are headers."""
    marks, total = Marks([], []), 0
    for number, part in enumerate(parts):
        total += len(part)
        marks.at_ns.append(1_000 * (number + 1))
        marks.body_bytes.append(total)
    values: dict[str, Any] = {"status": 200, "error": None, "sent_ns": 0, "end_ns": 10**6}
    headers = {"content-type": "text/event-stream"}
    for name, value in fields.items():
        if name in Answer._fields:
            values[name] = value
        else:
            headers[name.replace("_", "-")] = value
    return Answer(body=b"".join(parts), marks=marks, headers=headers, **values)


def events_of(api: Api, reply: Reply) -> list[bytes]:
    """The events of a whole stream."""
    return stream_events(api, filled(reply, api, ASKED), ASKED).all()


def whole_of(api: Api, reply: Reply) -> Answer:
    """An answer that is not streamed."""
    body = json.dumps(whole_answer(api, filled(reply, api, ASKED), ASKED)).encode()
    return answer_of([body], content_type="application/json")


def event(value: Any) -> bytes:
    """An event with the name of its type, if it has one."""
    name = f"event: {value['type']}\n" if isinstance(value, dict) and "type" in value else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


def split_at(body: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The body in reads that end at `cuts`, in thousandths of it."""
    places = sorted({len(body) * cut // 1000 for cut in cuts} - {0, len(body)})
    return [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
"""What a model may say."""

cuts = st.lists(st.integers(1, 999), max_size=12)
