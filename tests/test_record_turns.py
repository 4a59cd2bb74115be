"""From exchanges to turns: gaps, counts, encodings, failures, and what is on disk."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from fake_endpoint import FakeUsage, Reply
from fake_wire import filled, whole_answer
from record_turns import Recorder, call, called, chat, result, user

from agentload._record._journal import partial_path
from agentload_traces import count_tokens, open_trace


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_a_tool_loop_is_one_session_and_its_gaps_are_tool_time(recorder: Recorder) -> None:
    first = [{"role": "system", "content": "be good"}, user("do it")]
    recorder.ask(chat(*first), Reply(text="", tool_calls=[call("c1"), call("c2", "read", "{}")]))
    second = [*first, called(call("c1"), call("c2", "read", "{}")), result("c1", "a"), result("c2", "b c d")]
    recorder.ask(chat(*second), Reply(text="done"), after_ms=250)
    recorder.ask(chat(*second, {"role": "assistant", "content": "done"}, user("more")), after_ms=4_000)
    one, two, three = recorder.turns()
    assert [turn.trigger for turn in (one, two, three)] == ["user", "tool", "user"]
    assert [turn.delay_ms for turn in (one, two, three)] == [None, 0.0, 4_000.0]
    assert [turn.wait_for for turn in (one, two, three)] == [(), ("0",), ("1",)]
    assert [turn.start_ms for turn in (one, two, three)] == [0.0, 260.0, 4_270.0]
    assert [(each.name, each.duration_ms, each.result_tokens) for each in one.tool_calls] == [
        ("look", 250.0, 1),
        ("read", 250.0, 3),
    ]
    assert one.tool_calls[0].arguments_tokens == count_tokens('{"at": "it"}')
    assert (two.ttft_ms, two.duration_ms, two.model) == (4.0, 10.0, "m")
    assert one.messages is None
    assert "do it" not in recorder.path.read_text()


def test_counts_are_the_endpoint_s_and_new_tokens_what_came_after_prompt_and_answer(
    recorder: Recorder,
) -> None:
    first = [user("do it")]
    recorder.ask(chat(*first), Reply(text="yes", usage=FakeUsage(100, 20)))
    second = [*first, {"role": "assistant", "content": "yes"}, user("more")]
    recorder.ask(chat(*second), Reply(text="no", usage=FakeUsage(150, 30, cached_tokens=112)))
    one, two = recorder.turns()
    assert (one.input_tokens, one.new_input_tokens, one.output_tokens) == (100, 100, 20)
    assert (two.input_tokens, two.new_input_tokens, two.cached_input_tokens) == (150, 30, 112)
    assert {one.output_quality, two.output_quality} == {"measured"}


def test_an_answer_that_comes_back_shorter_does_not_hide_what_is_new(recorder: Recorder) -> None:
    recorder.ask(chat(user("do it")), Reply(text="yes", usage=FakeUsage(100, 50)))
    second = [user("do it"), {"role": "assistant", "content": "yes"}, user("some more of it")]
    recorder.ask(chat(*second), Reply(usage=FakeUsage(140, 30)))
    _, two = recorder.turns()
    assert two.new_input_tokens == count_tokens("some more of it")


def test_reasoning_that_is_not_sent_again_is_not_shared(recorder: Recorder) -> None:
    reply = Reply(text="yes", reasoning="let me see", usage=FakeUsage(100, 20, reasoning_tokens=15))
    recorder.ask(chat(user("a")), reply)
    messages = [user("a"), {"role": "assistant", "content": "yes"}, user("b")]
    recorder.ask(chat(*messages), Reply(usage=FakeUsage(110, 5)))
    kept = [
        *messages[:1],
        {"role": "assistant", "content": "yes", "reasoning_content": "let me see"},
        user("b"),
    ]
    recorder.ask(chat(user("z")), reply)
    recorder.ask(chat(user("z"), *kept[1:]), Reply(usage=FakeUsage(125, 5)))
    lost, again = recorder.sessions()
    assert lost.turns[1].new_input_tokens == 10
    assert again.turns[1].new_input_tokens == 5


def test_without_usage_texts_are_counted_and_that_is_told(recorder: Recorder) -> None:
    recorder.ask(chat(user("one two three")), Reply(text="four five", usage=None))
    (turn,) = recorder.turns()
    assert (turn.input_tokens, turn.output_tokens, turn.output_quality) == (3, 2, "estimated")
    assert turn.source == "input_tokens counted in o200k_base"
    totals = recorder.maker.totals()
    assert (totals.counted_inputs, totals.counted_outputs) == (1, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_messages_api(recorder: Recorder, stream: bool) -> None:
    base = {"model": "m", "stream": stream, "max_tokens": 9, "system": [{"type": "text", "text": "be good"}]}
    first = [{"role": "user", "content": "do it"}]
    reply = Reply(text="ok", tool_calls=[call("t1", "Bash")], usage=FakeUsage(40, 9))
    recorder.ask(base | {"messages": first}, reply, api="messages")
    # The same text, spelled in parts and with a cache mark.
    marked = {"type": "text", "text": "do it", "cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"at": "it"}}
    second = [
        {"role": "user", "content": [marked]},
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a b"}]},
    ]
    recorder.ask(base | {"messages": second}, Reply(usage=FakeUsage(60, 1, 40)), api="messages", after_ms=30)
    one, two = recorder.turns()
    assert (one.tool_calls[0].duration_ms, one.tool_calls[0].result_tokens) == (30.0, 2)
    assert (two.trigger, two.wait_for) == ("tool", ("0",))
    assert (one.input_tokens, two.new_input_tokens, two.cached_input_tokens) == (40, 11, 40)


@pytest.mark.parametrize("chained", [True, False])
def test_responses_api_with_the_whole_input_and_with_a_previous_response(
    recorder: Recorder, chained: bool
) -> None:
    base = {"model": "m", "stream": True, "instructions": "be good"}
    recorder.ask(base | {"input": "do it"}, Reply(text="", tool_calls=[call("f1")]), api="responses")
    new = [{"type": "function_call_output", "call_id": "f1", "output": "a b"}]
    if chained:
        (name,) = recorder.maker._finder._by_response
        body = base | {"input": new, "previous_response_id": name}
    else:
        use = {
            "type": "function_call",
            "call_id": "f1",
            "name": "look",
            "arguments": '{"at":"it"}',
            "id": "fc",
        }
        thought = {"type": "reasoning", "id": "rs_1", "summary": []}
        body = base | {"input": [user("do it"), thought, use, *new]}
    recorder.ask(body, Reply(text="so", usage=FakeUsage(40, 2)), api="responses", after_ms=30)
    one, two = recorder.turns()
    assert (one.tool_calls[0].name, one.tool_calls[0].duration_ms) == ("look", 30.0)
    assert one.tool_calls[0].result_tokens == 2
    assert (two.trigger, two.input_tokens) == ("tool", 40)
    assert 40 - (two.new_input_tokens or 0) == one.input_tokens + (one.output_tokens or 0)


def test_a_request_tried_again_is_recorded_once_and_the_gap_ends_at_the_first_try(recorder: Recorder) -> None:
    recorder.ask(chat(user("go")), Reply(text="", tool_calls=[call("c1")]))
    again = chat(user("go"), called(call("c1")), result("c1", "r"))
    recorder.ask(again, Reply(status=429), after_ms=50)
    recorder.ask(again, Reply(), after_ms=900, outcome="reset", status=None, reads=[])
    recorder.ask(again, Reply(), after_ms=900)
    one, two = recorder.turns()
    assert one.tool_calls[0].duration_ms == 50.0
    assert two.duration_ms == 10.0
    totals = recorder.maker.totals()
    assert (totals.turns, totals.retries, totals.failed) == (2, 1, {"rate_limited": 1, "reset": 1})


def test_the_same_request_of_another_session_or_much_later_is_no_retry(recorder: Recorder) -> None:
    recorder.ask(chat(user("go")), Reply(status=429), headers={"x-session-id": "a"})
    recorder.ask(chat(user("go")), headers={"x-session-id": "b"})
    recorder.ask(chat(user("go")), after_ms=3_600_000, headers={"x-session-id": "a"})
    assert [session.turns[0].start_ms for session in recorder.sessions()] == [0.0, 3_600_010.0]
    assert recorder.maker.totals().retries == 0


def test_a_client_that_hangs_up_has_its_answer_only_if_it_was_whole(recorder: Recorder) -> None:
    recorder.ask(chat(user("whole")), Reply(text="all of it"), outcome="cancelled")
    parts = [(1, b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n')]
    recorder.ask(chat(user("half")), outcome="cancelled", reads=parts)
    recorder.ask(chat(user("cut")), outcome="cut_off", reads=parts)
    recorder.ask(chat(user("gone")), outcome="unreachable", status=None, reads=[])
    assert len(recorder.turns()) == 1
    totals = recorder.maker.totals()
    assert (totals.cancelled, totals.failed) == (1, {"cut_off": 1, "connect": 1})


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", _raw_deflate), ("zstd", _zstd)],
)
def test_compressed_bodies_are_read(
    recorder: Recorder, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    body = json.dumps({"model": "m", "messages": [user("one two")]}).encode()
    answer = json.dumps(
        whole_answer("chat", filled(Reply(text="three", usage=None), "chat", {}), {})
    ).encode()
    came = {"content-type": "application/json", "content-encoding": encoding}
    packed = pack(answer)
    recorder.ask(
        pack(body),
        headers={"content-encoding": encoding},
        came_fields=came,
        reads=[(1, packed[:7]), (2, packed[7:])],
    )
    (turn,) = recorder.turns()
    assert (turn.input_tokens, turn.output_tokens) == (2, 1)


def test_an_answer_that_cannot_be_read_is_a_turn_of_unknown_length(recorder: Recorder) -> None:
    recorder.ask(chat(user("one two")), came_fields={"content-encoding": "sdch"})
    recorder.ask(b"not JSON")
    recorder.ask(b'{"messages": 5}')
    (turn,) = recorder.turns()
    assert (turn.input_tokens, turn.output_tokens) == (2, None)
    totals = recorder.maker.totals()
    assert (totals.unreadable, totals.not_requests) == ({"encoded as sdch": 1}, 2)


def test_text_is_kept_when_asked_for_and_each_message_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, keep_text=True)
    first = [{"role": "system", "content": "be good"}, user("do it")]
    recorder.ask(chat(*first), Reply(text="", tool_calls=[call("c1")]))
    recorder.ask(chat(*first, called(call("c1")), result("c1", "a")), Reply(text="done"))
    kept = [[(each.role, each.content) for each in turn.messages or ()] for turn in recorder.turns()]
    assert [role for role, _ in kept[0]] == ["system", "user", "assistant"]
    assert kept[0][1] == ("user", "do it")
    assert json.loads(kept[0][2][1] or "")["tool_calls"][0]["name"] == "look"
    assert [role for role, _ in kept[1]] == ["tool", "assistant"]
    assert kept[1][1] == ("assistant", "done")


def test_the_journal_is_always_a_trace_a_session(recorder: Recorder) -> None:
    for number in range(4):
        history = [
            message for at in range(number) for message in (called(call(f"c{at}")), result(f"c{at}", "r"))
        ]
        for session in ("a", "b"):
            body = chat(user("go"), *history)
            recorder.ask(
                body, Reply(text="", tool_calls=[call(f"c{number}")]), headers={"x-session-id": session}
            )
    files = sorted(partial_path(recorder.path).iterdir())
    joined = recorder.path.with_name("joined.jsonl")
    joined.write_bytes(b"".join(file.read_bytes() for file in files))
    left = [list(session.turns) for session in open_trace(joined, strict=True).sessions()]
    assert [len(turns) for turns in left] == [4, 4]
    # Whole but for what only a later request would have told, and the time that all begin at.
    assert all(turn.tool_calls[0].duration_ms is not None for turns in left for turn in turns[:-1])
    whole = [session.turns for session in recorder.sessions()]
    assert [[turn.tool_calls for turn in turns] for turns in whole] == [
        [turn.tool_calls for turn in turns] for turns in left
    ]
    assert not partial_path(recorder.path).exists()
