"""Where messages begin and end: laws of the recorder's HTTP scanner."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload._record._http import (
    Answers,
    ChunkedBody,
    End,
    Head,
    Messages,
    NotHttpError,
    Requests,
    read_head,
)

BODIES = st.binary(max_size=400)
SPLITS = st.lists(st.integers(1, 60), max_size=40)


def chunked(body: bytes, sizes: Iterable[int], *, trailer: bytes = b"") -> bytes:
    out, at = [], 0
    for size in sizes:
        piece = body[at : at + size]
        if piece:
            out.append(b"%x;n=1\r\n" % len(piece) + piece + b"\r\n")
        at += size
    if body[at:]:
        out.append(b"%X\r\n" % len(body[at:]) + body[at:] + b"\r\n")
    return b"".join(out) + b"0\r\n" + trailer + b"\r\n"


def request(body: bytes, framed: bytes | None) -> bytes:
    if framed is not None:
        return b"POST /a HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n" + framed
    return b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def pieces(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    return [piece for piece in [*out, data[at:]] if piece]


def scanned(messages: Messages, data: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Head and body of each whole message, framing included."""
    found: list[tuple[bytes, bytes]] = []
    head, body = b"", b""
    for piece in data:
        for part in messages.feed(piece):
            if isinstance(part, Head):
                head, body = part.raw, b""
            elif isinstance(part, End):
                found.append((head, body))
            else:
                body += part
    return found


@given(bodies=st.lists(st.tuples(BODIES, st.none() | SPLITS), max_size=4), cuts=SPLITS)
def test_messages_are_found_however_they_are_cut(
    bodies: list[tuple[bytes, list[int] | None]], cuts: list[int]
) -> None:
    sent = [request(body, None if sizes is None else chunked(body, sizes)) for body, sizes in bodies]
    found = scanned(Requests(), pieces(b"".join(sent), cuts))
    assert [head + body for head, body in found] == sent


@given(body=BODIES, sizes=SPLITS, cuts=SPLITS, trailer=st.sampled_from([b"", b"x-sum: 1\r\n"]))
def test_the_content_of_chunks_is_kept(
    body: bytes, sizes: list[int], cuts: list[int], trailer: bytes
) -> None:
    kept: list[bytes] = []
    scanner = ChunkedBody(kept)
    data = pieces(chunked(body, sizes, trailer=trailer), cuts)
    ends = [scanner.feed(piece, 0) for piece in data]
    assert b"".join(kept) == body
    assert ends == [None] * (len(data) - 1) + [len(data[-1])]


@given(cuts=SPLITS)
def test_answers_without_a_body_are_told_by_their_request_and_status(cuts: list[int]) -> None:
    answers = Answers()
    answers.methods.extend([b"HEAD", b"POST", b"GET", b"POST"])
    sent = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil it closes",
    ]
    found = scanned(answers, pieces(b"".join(sent), cuts))
    assert [body for _, body in found] == [b"", b"", b""]
    assert answers.inside
    assert answers.eof()


def test_an_answer_that_is_cut_is_not_whole() -> None:
    answers = Answers()
    answers.methods.append(b"POST")
    list(answers.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n123"))
    assert not answers.eof()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",
        b"POST /\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: five\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-5\r\n",
    ],
)
def test_what_cannot_be_followed_loses_no_byte(data: bytes) -> None:
    requests = Requests()
    passed = bytearray()

    def take() -> None:
        for part in requests.feed(data):
            passed.extend(part.raw if isinstance(part, Head) else b"" if isinstance(part, End) else part)

    with pytest.raises(NotHttpError):
        take()
    assert bytes(passed) + requests.rest == data


def test_a_switch_of_protocols_ends_http() -> None:
    answers = Answers()
    answers.methods.append(b"GET")
    with pytest.raises(NotHttpError):
        list(answers.feed(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\x81\x00"))


def test_a_head_is_read_with_all_its_fields_in_order() -> None:
    head = read_head(b"GET /a?b=c HTTP/1.1\r\nA: 1\r\nb:2 \r\na:  3\r\n\r\n")
    assert head.start == (b"GET", b"/a?b=c", b"HTTP/1.1")
    assert head.fields == ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert head.field(b"a") == b"1"
