"""Reading answers of all four APIs: messages, usage, reasoning and calls in each provider's dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answer_cases import APIS, answer_of, event, events_of, whole_of
from fake_reply import FakeUsage, Reply, ToolUse

from agentload._answers import LiveMessage, LiveToolCall, ParsedAnswer, Usage, parse_answer
from agentload._options import Api
from agentload_traces import count_tokens

CALLS = (ToolUse("read", '{"path": "a.py"}', "c1"), ToolUse("grep", '{"for": "x y", "in": [1]}', "c2"))
USAGE = FakeUsage(100, 40, cached_tokens=60, cache_written_tokens=10, reasoning_tokens=7)
MESSAGE = LiveMessage(
    " I look at it.", "Let me think.", tuple(LiveToolCall(c.call_id, c.name, c.arguments) for c in CALLS)
)
TALKING: tuple[Api, ...] = ("chat", "responses", "messages")


def _parse(api: Api, *values: Any) -> ParsedAnswer:
    return parse_answer(answer_of([event(value) for value in values]), api, keep_message=True)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("api", TALKING)
def test_message_usage_and_finish_of_a_whole_answer(api: Api, streamed: bool) -> None:
    reply = Reply(text=MESSAGE.text, reasoning=MESSAGE.reasoning, tool_calls=CALLS, usage=USAGE)
    answer = answer_of(events_of(api, reply)) if streamed else whole_of(api, reply)
    parsed = parse_answer(answer, api, keep_message=True)
    assert (parsed.error, parsed.error_kind) == (None, None)
    assert parsed.message is not None
    calls = [(call.call_id, call.name, json.loads(call.arguments)) for call in parsed.message.tool_calls]
    assert calls == [(call.call_id, call.name, json.loads(call.arguments)) for call in CALLS]
    assert parsed.message[:2] == MESSAGE[:2]
    if streamed:
        assert parsed.message == MESSAGE
    # Anthropic has no count of reasoning.
    reasoning = None if api == "messages" else 7
    assert parsed.usage == Usage(100, 40, 60, 10, reasoning)
    finish = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
    assert parsed.finish_reason == finish[api]
    said = "".join([MESSAGE.reasoning, MESSAGE.text, *(c.name + c.arguments for c in MESSAGE.tool_calls)])
    if streamed:
        assert parsed.output_tokens == count_tokens(said)
    assert sum(arrival.tokens for arrival in parsed.arrivals) == parsed.output_tokens


@pytest.mark.parametrize("streamed", [True, False])
def test_legacy_completions(streamed: bool) -> None:
    reply = Reply(text=" one two three", usage=USAGE, finish="length")
    answer = answer_of(events_of("completions", reply)) if streamed else whole_of("completions", reply)
    parsed = parse_answer(answer, "completions", keep_message=True)
    assert parsed.message == LiveMessage(" one two three", "", ())
    assert parsed[1:3] == (3, Usage(100, 40, 60, 10, 7))
    assert (parsed.error, parsed.finish_reason) == (None, "length")


@pytest.mark.parametrize("api", APIS)
def test_one_token_an_event_arrives_with_its_read(api: Api) -> None:
    events = events_of(api, Reply(text=" one two three"))
    parsed = parse_answer(answer_of(events), api)
    carrying = [number for number, sent in enumerate(events, 1) if b'delta": " ' in sent or b'": " ' in sent]
    assert [(a.at_ns, a.tokens) for a in parsed.arrivals] == [(1_000 * n, 1) for n in carrying[:3]]


@pytest.mark.parametrize("api", APIS)
def test_text_that_needs_care(api: Api) -> None:
    """Escapes, characters of several bytes, JSON in the text: short strings in frames that repeat."""
    pieces = [
        "plain",
        '"quoted"',
        "a\\b",
        "line\nline",
        "",
        "é",
        "🙂",
        '","finish_reason":"stop',
        "plain",
        "x",
    ]
    parsed = parse_answer(answer_of(events_of(api, Reply(pieces=pieces))), api, keep_message=True)
    assert parsed.error is None
    assert parsed.message is not None
    assert parsed.message.text == "".join(pieces)
    assert parsed.output_tokens == count_tokens("".join(pieces))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_other_line_ends_comments_and_several_data_lines(api: Api, ending: str) -> None:
    body = b"\xef\xbb\xbf: hello\n\nretry: 3000\n\n" + b"".join(events_of(api, Reply(text=" one two")))
    body = body.replace(b", ", b",\ndata: ").replace(b"\n", ending.encode())
    parsed = parse_answer(answer_of([body]), api, keep_message=True)
    assert (parsed.error, parsed.output_tokens) == (None, 2)
    assert parsed.message == LiveMessage(" one two", "", ())


@pytest.mark.parametrize("api", APIS)
def test_a_surrogate_pair_in_two_deltas_is_one_character(api: Api) -> None:
    events = events_of(api, Reply(pieces=["LOW", "HIGH", "x"]))
    body = b"".join(events).replace(b"LOW", rb"\ud83d").replace(b"HIGH", rb"\ude42")
    parsed = parse_answer(answer_of([body]), api, keep_message=True)
    assert parsed.error is None
    assert parsed.message is not None
    assert parsed.message.text == "🙂x"


def _chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": " hm"},
        {"reasoning_content": " hm"},
        {"reasoning": " hm", "reasoning_content": " hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": " hm"}, {"type": "reasoning.encrypted"}]},
        {"reasoning": " hm", "reasoning_details": [{"type": "reasoning.summary", "summary": " hm"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " hm"}]}]},
    ],
)
def test_dialects_of_reasoning_in_chat(delta: dict[str, Any]) -> None:
    parsed = _parse("chat", _chat(delta), _chat(delta), _chat({"content": " yes"}, "stop"))
    assert parsed.message == LiveMessage(" yes", " hm hm", ())
    assert parsed.output_tokens == 3


@pytest.mark.parametrize("kind", ["reasoning_text", "reasoning_summary_text"])
def test_dialects_of_reasoning_in_responses(kind: str) -> None:
    delta = {"type": f"response.{kind}.delta", "output_index": 0, "delta": " hm"}
    parsed = _parse("responses", delta, delta, {"type": "response.completed", "response": {}})
    assert parsed.message == LiveMessage("", " hm hm", ())
    assert (parsed.error, parsed.finish_reason) == (None, "completed")


def _call(arguments: str, **more: Any) -> dict[str, Any]:
    name = {"name": more.pop("name")} if "name" in more else {}
    return {"function": {"arguments": arguments, **name}, **more}


@pytest.mark.parametrize(
    "deltas",
    [
        [  # interleaved
            [_call("", index=0, id="a", name="f"), _call("", index=1, id="b", name="g")],
            [_call('{"x"', index=1), _call("{}", index=0)],
            [_call(": 1}", index=1)],
        ],
        [  # all of one index, as some endpoints have it
            [_call("{}", index=0, id="a", name="f")],
            [_call('{"x"', index=0, id="b", name="g")],
            [_call(": 1}", index=0)],
        ],
        [  # no index; id and name repeated
            [_call("{", id="a", name="f")],
            [_call("}", id="a", name="f")],
            [_call('{"x"', id="b", name="g")],
            [_call(": 1}", id="b", name="g")],
        ],
        [  # the name comes late, in parts; arguments whole, or the object itself
            [_call("", index=0, id="a"), _call("", index=3, id="b", name="")],
            [_call("{}", index=0, name="f"), {"index": 3, "function": {"name": "g", "arguments": {"x": 1}}}],
        ],
    ],
)
def test_parallel_calls_in_chat(deltas: list[list[dict[str, Any]]]) -> None:
    parsed = _parse("chat", *(_chat({"tool_calls": delta}) for delta in deltas), _chat({}, "tool_calls"))
    assert parsed.message is not None
    calls = [(call.call_id, call.name, json.loads(call.arguments)) for call in parsed.message.tool_calls]
    assert calls == [("a", "f", {}), ("b", "g", {"x": 1})]


def test_a_call_without_id_or_arguments_can_still_be_answered() -> None:
    parsed = _parse("chat", _chat({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, "stop"))
    assert parsed.message is not None
    assert parsed.message.tool_calls == (LiveToolCall("call_0", "f", "{}"),)


def test_interleaved_calls_in_responses_and_items_that_come_only_when_done() -> None:
    def added(index: int, call_id: str) -> dict[str, Any]:
        item = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": ""}
        return {"type": "response.output_item.added", "output_index": index, "item": item}

    def delta(index: int, text: str) -> dict[str, Any]:
        return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": text}

    late = {"type": "function_call", "call_id": "c", "name": "g", "arguments": '{"z":3}'}
    done = {"type": "response.output_item.done", "output_index": 4, "item": late}
    end = {"type": "response.completed", "response": {"status": "completed", "output": [late]}}
    parsed = _parse(
        "responses",
        added(1, "a"),
        added(2, "b"),
        delta(2, '{"y'),
        delta(1, "{}"),
        delta(2, '":2}'),
        done,
        end,
    )
    assert parsed.message is not None
    assert [call.arguments for call in parsed.message.tool_calls] == ["{}", '{"y":2}', '{"z":3}']
    only_end = _parse("responses", end)
    assert only_end.message is not None
    assert only_end.message.tool_calls == (LiveToolCall("c", "g", '{"z":3}'),)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 2)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, None, 4)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9)),
        (
            {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5},
            Usage(9, None, 4),
        ),
        ({"prompt_tokens": 9, "cached_tokens": 4}, Usage(9, None, 4)),
        ({"prompt_tokens": 9, "cache_read_input_tokens": 4}, Usage(9, None, 4)),
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
            Usage(None, 9, reasoning_tokens=4),
        ),
        ({"completion_tokens": 9, "reasoning_tokens": 4}, Usage(None, 9, reasoning_tokens=4)),
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1}},
            Usage(9, None, 4, 1),
        ),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"prompt_tokens": -1, "completion_tokens": True}, None),
        ([1], None),
    ],
)
def test_usage_of_many_endpoints(usage: Any, expected: Usage | None) -> None:
    """In a chunk of its own, in one with the finish reason, in one before it, in each."""
    text, finish = _chat({"content": " a"}), _chat({}, "stop")
    alone = {"choices": [], "usage": usage}
    for chunks in (
        [text, finish, alone],
        [text, {**finish, "usage": usage}],
        [{**text, "usage": usage}, finish],
        [{**text, "usage": usage}, {**finish, "usage": usage}, {**alone, "usage": None}],
    ):
        parsed = _parse("chat", *chunks)
        assert (parsed.error, parsed.usage) == (None, expected)


@pytest.mark.parametrize(
    ("start", "delta", "expected"),
    [
        ({"input_tokens": 25, "output_tokens": 1}, {"output_tokens": 89}, Usage(25, 89)),
        (
            {
                "input_tokens": 5,
                "cache_read_input_tokens": 90,
                "cache_creation_input_tokens": 5,
                "output_tokens": 1,
            },
            {"output_tokens": 8},
            Usage(100, 8, 90, 5),
        ),
        (
            {"input_tokens": 0, "output_tokens": 0},
            {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 8},
            Usage(100, 8, 90),
        ),
        ({"input_tokens": 25, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 8}, Usage(25, 8)),
        ({"input_tokens": 25}, None, Usage(25)),
        (None, {"output_tokens": 8}, Usage(None, 8)),
    ],
)
def test_anthropics_usage_in_two_events(start: Any, delta: Any, expected: Usage) -> None:
    parsed = _parse(
        "messages",
        {"type": "message_start", "message": {"content": [], "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": " a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta},
        {"type": "message_stop"},
    )
    assert (parsed.error, parsed.usage, parsed.output_tokens) == (None, expected, 1)


def test_tools_that_the_endpoint_runs_itself_are_counted_but_not_called() -> None:
    parsed = _parse(
        "messages",
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "server_tool_use", "name": "web"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": "{}"},
        },
        {"type": "content_block_start", "index": 1, "content_block": {"type": "web_search_tool_result"}},
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}},
    )
    assert parsed.message == LiveMessage("", "", ())
    assert (parsed.error, parsed.output_tokens) == (None, count_tokens("web{}"))


TOLD: list[tuple[Api, Any, str]] = [
    ("chat", {"error": {"message": "died", "code": 500}}, "error in the stream: died"),
    ("chat", {"error": "died"}, "error in the stream: died"),
    ("chat", _chat({}, "error"), "the answer ended with finish reason 'error'"),
    ("completions", {"error": {"message": "died"}}, "error in the stream: died"),
    ("responses", {"type": "error", "code": "server_error", "message": "died"}, "error in the stream: died"),
    ("responses", {"error": {"message": "died"}}, "error in the stream: died"),
    (
        "responses",
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "x", "message": "died"}},
        },
        "the answer has failed: died",
    ),
    ("responses", {"type": "response.cancelled", "response": {}}, "the answer has failed: cancelled"),
    (
        "messages",
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "error in the stream: Overloaded",
    ),
]


@pytest.mark.parametrize(("api", "told", "error"), TOLD)
@pytest.mark.parametrize("cut", [None, "the stream was cut off"])
def test_an_error_that_the_endpoint_tells_goes_before_a_broken_stream(
    api: Api, told: Any, error: str, cut: str | None
) -> None:
    events = events_of(api, Reply(text=" one two"))
    middle = next(number for number, sent in enumerate(events) if b" two" in sent)
    kind = "reset" if cut else None
    parsed = parse_answer(answer_of([*events[:middle], event(told)], error=cut, error_kind=kind), api)
    assert (parsed.error, parsed.error_kind, parsed.output_tokens) == (error, "error_event", 1)


@pytest.mark.parametrize("api", APIS)
def test_an_event_named_error_is_one_whatever_it_holds(api: Api) -> None:
    parsed = parse_answer(answer_of([b'event: error\ndata: {"message": "died", "code": 1}\n\n']), api)
    assert (parsed.error, parsed.error_kind) == ("error in the stream: died", "error_event")


def test_an_incomplete_response_says_why() -> None:
    parsed = parse_answer(answer_of(events_of("responses", Reply(finish="max_output_tokens"))), "responses")
    assert (parsed.error, parsed.finish_reason) == (None, "max_output_tokens")


@pytest.mark.parametrize("api", APIS)
def test_an_answer_without_tokens_has_failed(api: Api) -> None:
    for usage, error in (
        (None, "the answer has no tokens"),
        (FakeUsage(1, 5), "the answer has no tokens, though its usage counts 5"),
    ):
        parsed = parse_answer(answer_of(events_of(api, Reply(text="", usage=usage))), api)
        assert (parsed.error, parsed.error_kind, parsed.arrivals) == (error, "empty", [])


@pytest.mark.parametrize("api", APIS)
def test_wrong_usage_is_kept_and_no_error(api: Api) -> None:
    parsed = parse_answer(answer_of(events_of(api, Reply(text=" a b", usage=FakeUsage(10**6, 999)))), api)
    assert parsed.usage is not None
    assert (parsed.error, parsed.output_tokens, parsed.usage.output_tokens) == (None, 2, 999)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"<html>", "not_a_stream"), (b"{}", "not_a_stream"), (b'{"error": {"message": "x"}}', "error_event")],
)
def test_what_is_no_stream(api: Api, body: bytes, kind: str) -> None:
    assert parse_answer(answer_of([body], content_type="text/html"), api).error_kind == kind


def test_an_identity_encoding_is_none() -> None:
    events = events_of("chat", Reply(text=" a"))
    assert parse_answer(answer_of(events, content_encoding="identity")).error is None


def test_a_block_index_that_is_no_number_is_read_like_any_other() -> None:
    data = (
        b'{"type":"content_block_delta","index":[0],"delta":{"type":"input_json_delta","partial_json":"x"}}'
    )
    odd = b"event: content_block_delta\ndata: %b\n\n" % data
    assert parse_answer(answer_of([odd]), "messages").error_kind == "cut_off"
