"""Reading answers: tokens by arrival, usage, and everything that endpoints get wrong."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from answer_cases import answer_of
from hypothesis import given
from hypothesis import strategies as st

from agentload._answers import Usage, parse_answer
from agentload._http_client import Answer, Marks
from agentload_traces import count_tokens


def _event(text: str | None = None, finish: str | None = None, **extra: object) -> bytes:
    delta = {} if text is None else {"content": text}
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **extra}
    return f"data: {json.dumps(chunk)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
DEEP = b"[" * 100_000


def test_tokens_by_the_read_that_brought_them() -> None:
    parsed = parse_answer(
        answer_of([_event(" one two"), _event(" three") + _event(" four"), _event(None, "stop") + DONE])
    )
    assert [(a.at_ns, a.tokens) for a in parsed.arrivals] == [(1_000, 2), (2_000, 2)]
    assert (parsed.output_tokens, parsed.error) == (4, None)


def test_an_event_split_over_two_reads_arrives_with_the_second() -> None:
    event = _event(" one two three")
    parsed = parse_answer(answer_of([event[:20], event[20:], _event(None, "stop")]))
    assert [(a.at_ns, a.tokens) for a in parsed.arrivals] == [(2_000, 3)]


@given(text=st.text(min_size=1, max_size=60), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_tokens_sum_to_the_count_of_the_whole_text(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    parsed = parse_answer(answer_of([_event(piece) for piece in pieces] + [_event(None, "stop")]))
    assert parsed.error is None
    assert parsed.output_tokens == count_tokens(text) == sum(a.tokens for a in parsed.arrivals)


def test_usage_and_the_simulators_timing() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    timing = {"queue_ns": 1, "prefill_ns": 2, "handoff_ns": 3, "decode_ns": 4}
    timing |= {"cached_tokens": 4, "steps": 1, "replica": 0, "server_ns": 11}
    last = f"data: {json.dumps({'choices': [], 'usage': usage, 'agentload': timing})}\n\n".encode()
    parsed = parse_answer(answer_of([_event(" a"), _event(None, "stop"), last, DONE]))
    assert parsed.usage is not None
    assert parsed.usage == Usage(input_tokens=9, output_tokens=1, cached_tokens=4)
    assert parsed.timing is not None
    assert (parsed.timing.handoff_ns, parsed.timing.handoff_tokens) == (3, None)


def test_reasoning_and_tool_call_fragments_are_tokens_too() -> None:
    reasoning = {"choices": [{"delta": {"reasoning_content": " think hard"}}]}
    call = {"function": {"name": "shell", "arguments": '{"input"'}}
    calling = {"choices": [{"delta": {"tool_calls": [{"index": 0, **call}]}}]}
    parts = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in (reasoning, calling)]
    parsed = parse_answer(answer_of([*parts, _event(None, "tool_calls")]))
    assert parsed.error is None
    assert parsed.output_tokens == count_tokens(' think hardshell{"input"')


def test_comments_crlf_and_other_fields_are_legal() -> None:
    crlf = (b": ping\n\nid: 7\nevent: message\n" + _event(" one") + _event(None, "stop") + DONE).replace(
        b"\n", b"\r\n"
    )
    for body in (crlf, crlf.replace(b"\r\n", b"\n")):
        parsed = parse_answer(answer_of([body]))
        assert (parsed.output_tokens, parsed.error) == (1, None)


@pytest.mark.parametrize(
    "parts",
    [
        [b": keepalive\r\n\r\n", _event(" one"), _event(None, "stop"), DONE],
        [_event(" one"), _event(None, "stop"), b"data: [DONE] \n\n"],
        [
            _event(" one"),
            _event(None, "stop"),
            b'data: {"choices":null,"usage":{"prompt_tokens":1}}\n\n',
            DONE,
        ],
        [_event(" one").replace(b"\n", b"\r"), _event(None, "stop")],
        [b"\xef\xbb\xbf" + _event(" one"), _event(None, "stop")],
        [
            _event(" one", None, usage={"prompt_tokens": 2**70}),
            _event(None, "stop", usage={"prompt_tokens": "10"}),
        ],
        [
            _event(
                " one", "stop", agentload={"queue_ns": -3, "prefill_ns": 0, "handoff_ns": 0, "decode_ns": 0}
            )
        ],
    ],
)
def test_a_complete_answer_survives_small_deviations(parts: list[bytes]) -> None:
    parsed = parse_answer(answer_of(parts, content_type="Text/Event-Stream; charset=utf-8"))
    assert (parsed.error, parsed.output_tokens, parsed.timing) == (None, 1, None)
    assert parsed.usage is None or (parsed.usage.input_tokens or 0) < 2**53


def test_lone_surrogates_are_replaced() -> None:
    text = b'data: {"choices":[{"delta":{"content":"a\\ud83d b"}}]}\n\n'
    parsed = parse_answer(answer_of([text, _event(None, "stop")]))
    assert parsed.error is None
    assert parsed.output_tokens == count_tokens("a\ufffd b")


def test_an_answer_without_marks_counts_from_its_end() -> None:
    answer = answer_of([_event(" one two"), _event(None, "stop")])._replace(marks=Marks([], []))
    assert parse_answer(answer).arrivals == [(answer.end_ns, 2)]


def test_an_answer_that_is_not_streamed() -> None:
    body = {
        "choices": [{"message": {"content": " one two"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
    }
    parsed = parse_answer(answer_of([json.dumps(body).encode()], content_type="application/json"))
    assert (parsed.output_tokens, parsed.error) == (2, None)
    assert [a.tokens for a in parsed.arrivals] == [2]


@pytest.mark.parametrize(
    ("answer", "kind", "error"),
    [
        (
            answer_of([b'{"error":{"message":"slow down","code":"x"}}'], status=429),
            "rate_limited",
            "HTTP 429: slow down",
        ),
        (answer_of([b"<html>\n<b>Bad</b>"], status=502), "unavailable", "HTTP 502: <html> <b>Bad</b>"),
        (answer_of([b""], status=500), "unavailable", "HTTP 500: no message"),
        (answer_of([b'{"detail":[]}'], status=422), "refused", "HTTP 422: {'detail': []}"),
        (
            answer_of([_event(" a"), b"data: {oops\n\n"]),
            "bad_stream",
            "event 2 of the stream is not a completion chunk: ",
        ),
        (
            answer_of([_event(" a"), b"data: [1]\n\n"]),
            "bad_stream",
            "event 2 of the stream is not a completion chunk: ",
        ),
        (
            answer_of([b"data: \xff\xfe\n\n"]),
            "bad_stream",
            "event 1 of the stream is not a completion chunk: ",
        ),
        (
            answer_of([b"data: " + DEEP + b"\n\n"]),
            "bad_stream",
            "event 1 of the stream is not a completion chunk: ",
        ),
        (
            answer_of([DEEP], content_type="application/json"),
            "not_a_stream",
            "the answer is neither a stream nor a completion",
        ),
        (answer_of([b'{"error":' * 5_000 + b"1" + b"}" * 5_000], status=400), "refused", "HTTP 400: "),
        (answer_of([b'{"error":"a\\u001b[31m\\u0000b"}'], status=400), "refused", "HTTP 400: a [31m b"),
        (answer_of([b""], status=307, location="ftp://x/"), "refused", "HTTP 307: redirects to ftp://x/"),
        (answer_of([b"\x1f\x8b"], content_encoding="gzip"), "bad_stream", "the answer is encoded as gzip"),
        (answer_of([_event(" a"), DONE]), "cut_off", "the stream ended without a finish reason"),
        (
            answer_of([_event(" a"), _event(None, "stop")[:-1]]),
            "cut_off",
            "the stream ended without a finish reason",
        ),
        (answer_of([b'data: {"error":{"message":"died"}}\n\n']), "error_event", "error in the stream: died"),
        (
            answer_of([b"\x00\x01"], content_type="text/html"),
            "not_a_stream",
            "the answer is neither a stream nor a completion (text/html)",
        ),
        (
            answer_of([b"{}"], content_type="application/json"),
            "not_a_stream",
            "the answer has no finish reason",
        ),
        (
            answer_of(
                [_event(" a")], error="the stream was cut off before its end", error_kind="stall_timeout"
            ),
            "stall_timeout",
            "the stream was cut off",
        ),
        (
            answer_of([], status=None, error="cannot connect", error_kind="connect"),
            "connect",
            "cannot connect",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(answer: Answer, kind: str, error: str) -> None:
    parsed = parse_answer(answer)
    assert parsed.error is not None
    assert parsed.error.startswith(error)
    assert "\n" not in parsed.error
    assert parsed.error_kind == kind


@given(body=st.binary(max_size=200), streamed=st.booleans(), status=st.sampled_from([200, 500]))
def test_no_bytes_raise(body: bytes, streamed: bool, status: int) -> None:
    content_type = "text/event-stream" if streamed else "application/json"
    assert parse_answer(answer_of([body], content_type=content_type, status=status)).error is not None


def test_what_came_before_an_error_is_kept() -> None:
    parsed = parse_answer(answer_of([_event(" one two"), b"data: {oops\n\n", _event(" three")]))
    assert parsed.output_tokens == 2
