"""An answer is read the same however its bytes are cut into reads."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload._http_framing import MOST_BODY_BYTES, AnswerReader, BadAnswerError


class Legal(NamedTuple):
    """A legal answer. kept: whether its connection may be used again."""

    data: bytes
    body: bytes
    status: int
    kept: bool
    until_close: bool


PIECES = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"data: {}\n\n", b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"a" * 300]),
    ),
    max_size=8,
)

INTERIM = st.sampled_from(
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"]
)

CASINGS = st.sampled_from([bytes.lower, bytes.upper, bytes.title])


@st.composite
def legal_answers(draw: st.DrawFn) -> Legal:
    casing = draw(CASINGS)
    pieces = draw(PIECES)
    body = b"".join(pieces)
    status = draw(st.sampled_from([200, 200, 429, 503]))
    framing = draw(st.sampled_from(["chunked", "length", "close"]))
    close = draw(st.booleans())
    fields = [(casing(b"content-type"), b"text/event-stream"), (b"X-Empty", b"")]
    if close:
        fields.append((casing(b"connection"), casing(b"close")))
    if framing == "length":
        fields.append((casing(b"content-length"), b"%d" % len(body)))
    if framing == "chunked":
        fields.append((casing(b"transfer-encoding"), casing(b"chunked")))
        extension = draw(st.sampled_from([b"", b";x=1", b" ", b';q="a;b"']))
        form = draw(st.sampled_from([b"%x%s\r\n%s\r\n", b"%X%s\r\n%s\r\n", b"00%x%s\r\n%s\r\n"]))
        trailer = draw(st.sampled_from([b"", b"X-Took: 1\r\n", b"A: b\r\nC: d\r\n"]))
        sent = b"".join(form % (len(piece), extension, piece) for piece in pieces)
        sent += b"0%s\r\n%s\r\n" % (extension, trailer)
    else:
        sent = body
    lines = b"".join(
        b"%s:%s%s\r\n" % (name, draw(st.sampled_from([b"", b" ", b"\t"])), value) for name, value in fields
    )
    reason = draw(st.sampled_from([b" OK", b" ", b""]))
    head = b"HTTP/1.1 %d%s\r\n%s\r\n" % (status, reason, lines)
    kept = framing != "close" and not close
    return Legal(draw(INTERIM) + head + sent, body, status, kept, framing == "close")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


CUTS = st.lists(st.integers(0, 10_000), max_size=30)


def read(reads: list[bytes]) -> tuple[AnswerReader, int | None, bool]:
    """Feed reads; return the reader, which of them ended the answer, and whether it was found bad."""
    reader = AnswerReader()
    for number, data in enumerate(reads):
        try:
            if reader.feed(number, data):
                return reader, number, False
        except BadAnswerError:
            return reader, None, True
    return reader, None, False


@given(legal_answers(), CUTS)
def test_any_cut_of_a_legal_answer_gives_the_same(legal: Legal, places: list[int]) -> None:
    reads = cut(legal.data, places)
    reader, ended, bad = read(reads)
    assert not bad
    assert (ended is None) == legal.until_close
    if ended is not None:
        assert ended == len(reads) - 1
    assert reader.feed_eof()
    assert (reader.status, reader.body, reader.keep_alive) == (legal.status, legal.body, legal.kept)
    assert (reader.headers["content-type"], reader.headers["x-empty"]) == ("text/event-stream", "")
    assert reader.first_byte_ns == 0
    times, sizes = reader.marks
    assert times == sorted(set(times))
    assert sizes == sorted(set(sizes))
    assert (sizes[-1] if sizes else 0) == len(legal.body)


@given(legal_answers(), CUTS)
def test_a_mark_is_what_the_reads_until_then_held(legal: Legal, places: list[int]) -> None:
    reads = cut(legal.data, places)
    reader, _, _ = read(reads)
    for at, size in zip(*reader.marks, strict=True):
        alone, _, _ = read(reads[: at + 1])
        assert alone.body == legal.body[:size]


@given(legal_answers(), CUTS, st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_what_is_wrong_with_an_answer_does_not_depend_on_the_cut(
    legal: Legal, places: list[int], place: int, wrong: bytes
) -> None:
    at = place % len(legal.data)
    data = legal.data[:at] + wrong + legal.data[at + len(wrong) :]
    whole, pieces = read([data]), read(cut(data, places))
    assert whole[2] == pieces[2]
    assert (whole[1] is None) == (pieces[1] is None)
    assert (whole[0].status, whole[0].body) == (pieces[0].status, pieces[0].body)


@given(st.binary(max_size=200), CUTS)
def test_any_bytes_are_read_or_refused(data: bytes, places: list[int]) -> None:
    read(cut(data, places))
    read(cut(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data, places))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MOST_BODY_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0x5\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"5\r\nabcdefg",
        CHUNKED + b"5;" + b"x" * 20_000,
        CHUNKED + b"0\r\n" + b"a: b\r\n" * 100_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswerError) as refused:
        AnswerReader().feed(0, data)
    assert len(str(refused.value).splitlines()) == 1
    if len(data) < 1_000:
        assert read([bytes([byte]) for byte in data])[2]


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(status: int) -> None:
    reader, ended, _ = read([b"HTTP/1.1 %d X\r\n\r\n" % status])
    assert (ended, reader.body, reader.keep_alive) == (0, b"", True)


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Upgrade, Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nextra", False),
        (CHUNKED + b"0\r\n\r\nextra", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", True),
    ],
)
def test_when_a_connection_may_be_used_again(head: bytes, kept: bool) -> None:
    reader, ended, _ = read([head])
    assert (ended, reader.keep_alive) == (0, kept)


def test_headers_in_odd_forms() -> None:
    data = b"HTTP/1.1 200 OK\r\nA: 1\r\na:2\r\nFolded: one\r\n  two\r\nSpace : x\r\nContent-Length: 0\r\n\r\n"
    reader, _, _ = read([data])
    assert reader.headers == {"a": "1, 2", "folded": "one two", "space": "x", "content-length": "0"}


def test_a_body_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentload._http_framing.MOST_BODY_BYTES", 1_000)
    piece = b"64\r\n%s\r\n" % (b"x" * 100)
    reader, _, bad = read([CHUNKED] + [piece] * 20)
    assert bad
    assert len(reader.body) == 1_100
    reader, _, bad = read([b"HTTP/1.1 200 OK\r\n\r\n"] + [b"x" * 100] * 20)
    assert bad
    assert len(reader.body) == 1_100
