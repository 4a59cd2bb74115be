"""Reads the server-sent events of a finished stream.

Most events of a stream differ in one string only. The bytes before and after that string are learned from an
event, and events with the same ones are not decoded: their string is looked up among those known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from agentload._answers_gathered import SHORT, Reader, piece_tokens
from agentload._answers_json import NOT_JSON, error_message
from agentload._one_line import one_line

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")

_LEARNED_FROM = re.compile(r"[ A-Za-z0-9]+")
"""Texts that stand in JSON as they are, without escapes."""

_PROBE = "Zq7"

_LEARNINGS = 16
"""How often a frame is learned in one answer. Where every event differs in more, it never pays."""

_KNOWN_MOST = 65536

_known: dict[bytes, tuple[str, int]] = {}
"""What stands between the quotes of a JSON string → the string and its tokens."""

_decode_string = msgspec.json.Decoder(str).decode


class _Frame(NamedTuple):
    """What an event has before and after its text, and the slot that the text belongs to."""

    before: bytes
    after: bytes
    slot: int


_NO_FRAME = _Frame(b"\0", b"\0", 0)


def events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Each whole event of a stream, and where in the body it ends."""
    if b"\r" not in body:
        end = 0
        for event in body.split(b"\n\n")[:-1]:
            end += len(event) + 2
            yield event, end
        return
    start = 0
    for found in _EVENT_END.finditer(body):
        yield body[start : found.start()], found.end()
        start = found.end()


def read_events(body: bytes, reader: Reader) -> None:
    """Feed each whole event to `reader`, up to the first that is bad or tells of an error."""
    gathered = reader.gathered
    add_text, add_count = gathered.texts.append, gathered.counts.append
    add_end, add_slot = gathered.ends.append, gathered.slots.append
    frame, learnings = _NO_FRAME, _LEARNINGS
    before, after, slot = frame
    first, last = len(before), -len(after)
    get = _known.get
    for number, (event, end) in enumerate(events(body), 1):
        if event.startswith(before) and event.endswith(after):
            # An overlap of the two leaves nothing between them, and nothing is never known.
            piece = get(event[first:last]) or _learn_string(event[first:last])
            if piece is not None:
                add_text(piece[0])
                add_count(piece[1])
                add_end(end)
                add_slot(slot)
                continue
        if not _take(event, end, number, reader):
            return
        if learnings and gathered.ends and gathered.ends[-1] == end:
            learnings -= 1
            if learned := _learn_frame(event, reader):
                frame = before, after, slot = learned
                first, last = len(before), -len(after)


def _take(event: bytes, end: int, number: int, reader: Reader) -> bool:
    """Feed one event to `reader`; return whether the stream goes on after it."""
    name, data = event_fields(event)
    if not data:
        return True
    if name == b"error":
        reader.gathered.fail("error_event", f"error in the stream: {error_message(data)}")
        return False
    if data.strip() == b"[DONE]":
        return False
    try:
        reader.take(data, end)
    except NOT_JSON as failure:
        reason = one_line(str(failure))
        reader.gathered.fail("bad_stream", f"event {number} of the stream is not a {reader.noun}: {reason}")
    return reader.gathered.failure is None


def event_fields(event: bytes) -> tuple[bytes, bytes]:
    """The name of an event, `b""` without one, and its data lines, joined."""
    name = b""
    head, _, rest = event.partition(b"\n")
    if not rest and head.startswith(b"data: ") and b"\r" not in head:
        return name, head[6:]
    if (
        head.startswith(b"event: ")
        and rest.startswith(b"data: ")
        and b"\n" not in rest
        and b"\r" not in event
    ):
        return head[7:], rest[6:]
    lines = []
    for line in event.removeprefix(b"\xef\xbb\xbf").splitlines():
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].removeprefix(b" ")
    return name, b"\n".join(lines)


def _learn_frame(event: bytes, reader: Reader) -> _Frame | None:
    """What surrounds the text of an event that holds nothing else, if that is certain."""
    _, data = event_fields(event)
    plain = reader.plain(data)
    if plain is None or not _LEARNED_FROM.fullmatch(plain[1]):
        return None
    slot, text = plain
    quoted = f'"{text}"'.encode()
    place = event.find(quoted)
    if place < 0:
        return None
    before, after = event[: place + 1], event[place + len(quoted) - 1 :]
    # Whether that is the place, an event with another text there tells.
    _, data = event_fields(before + _PROBE.encode() + after)
    try:
        probed = reader.plain(data)
    except NOT_JSON:
        return None
    return _Frame(before, after, slot) if probed == (slot, _PROBE) else None


def _learn_string(inner: bytes) -> tuple[str, int] | None:
    """What a JSON string says that has `inner` between its quotes; `None` if it is none, or empty."""
    try:
        text = _decode_string(b'"%b"' % inner)
    except NOT_JSON:
        return None
    if not text:
        return None
    if len(_known) >= _KNOWN_MOST:
        _known.clear()
    piece = (text, piece_tokens(text))
    if len(inner) <= SHORT:
        _known[inner] = piece
    return piece
