"""Request bodies in four APIs: legal, of the counts that the trace asks for, growing at their end."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_graphs import sessions

from agentload._answers_types import LiveMessage, LiveToolCall
from agentload._options import Api
from agentload._prompts import PromptPlanner
from agentload._requests import RequestBuilder, ToolResult
from agentload._requests_fields import check_extra_body
from agentload._token_fit import TokenFit
from agentload_traces import AgentloadError, PrefixBlocks, Session, ToolCall, Turn, count_tokens

APIS = get_args(Api)


def builder(session: Session, api: Api = "chat", **options: Any) -> RequestBuilder:
    return RequestBuilder(session, seed=7, model="m", api=api, **options)


def growing(turns: int = 6, calls: int = 1, new: int = 90, output: int = 60) -> Session:
    """A session whose every turn goes on from the one before it."""
    made = []
    context = 0
    for number in range(turns):
        added = 700 if number == 0 else new
        made.append(
            Turn(
                session_id="s",
                turn_id=f"t{number}",
                wait_for=(f"t{number - 1}",) if number else (),
                trigger="tool" if number and calls else "user",
                input_tokens=context + added,
                new_input_tokens=added,
                output_tokens=output,
                tool_calls=tuple(ToolCall(name=f"tool_{call}") for call in range(calls)),
            )
        )
        context += added + output
    return Session("s", tuple(made))


def texts(body: dict[str, Any], api: Api) -> list[str]:
    """All that is prompt in a body, piece by piece."""
    if api == "completions":
        return [body["prompt"]]
    found = [part for tool in body.get("tools", ()) for part in _tool_texts(tool)]
    if api == "messages":
        found += [body["system"]] if "system" in body else []
        for block in (block for message in body["messages"] for block in message["content"]):
            if block["type"] == "tool_use":
                found += [block["name"], json.dumps(block["input"], separators=(",", ":"))]
            else:
                found.append(block.get("text", block.get("content", "")))
        return found
    for item in body["input" if api == "responses" else "messages"]:
        found.append(item.get("content", item.get("output", "")))
        if item.get("type") == "function_call":
            found += [item["name"], item["arguments"]]
        for call in item.get("tool_calls", ()):
            found += [call["function"]["name"], call["function"]["arguments"]]
    return found


def _tool_texts(tool: dict[str, Any]) -> list[str]:
    schema = json.dumps(tool["input_schema"], separators=(",", ":"))
    return [tool["name"], tool.get("description", ""), schema]


def check_legal(body: dict[str, Any], api: Api) -> None:
    """What strict providers ask for."""
    assert body["model"] == "m"
    assert body["stream"] is True
    if api == "messages":
        assert body["max_tokens"] >= 1
        roles = [message["role"] for message in body["messages"]]
        assert roles == [("user", "assistant")[number % 2] for number in range(len(roles))]
        assert roles[-1] == "user"
        named = {tool["name"] for tool in body.get("tools", ())}
        pending: set[str] = set()
        for message in body["messages"]:
            assert message["content"]
            results = [block for block in message["content"] if block["type"] == "tool_result"]
            assert {block["tool_use_id"] for block in results} == pending
            assert message["content"][: len(results)] == results
            assert all(block["text"] for block in message["content"] if block["type"] == "text")
            uses = [block for block in message["content"] if block["type"] == "tool_use"]
            assert {block["name"] for block in uses} <= named
            pending = {block["id"] for block in uses}
        assert not pending
    elif api == "responses":
        assert body["store"] is False
        assert body["max_output_tokens"] >= 16
        calls = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
        outputs = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
        assert calls == outputs
        assert len(set(calls)) == len(calls)
    elif api == "chat":
        assert body["stream_options"] == {"include_usage": True}
        pending_calls: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                pending_calls.remove(message["tool_call_id"])
            else:
                assert not pending_calls
            pending_calls += [call["id"] for call in message.get("tool_calls", ())]
        assert not pending_calls


@settings(max_examples=40)
@given(session=sessions(max_turns=7), api=st.sampled_from(APIS))
def test_bodies_are_legal_and_of_the_counts_that_they_say(session: Session, api: Api) -> None:
    built_by = builder(session, api)
    again = builder(session, api)
    for turn in session.turns:
        built = built_by.build(turn)
        body = json.loads(built.body)
        check_legal(body, api)
        assert built.sent_tokens == sum(count_tokens(text) for text in texts(body, api))
        # A prompt of Anthropic's is longer where tools are declared that it has no room for.
        if api != "messages":
            assert turn.input_tokens <= built.sent_tokens <= turn.input_tokens + 1
        assert again.build(turn) == built


@settings(max_examples=30)
@given(session=sessions(max_turns=6), api=st.sampled_from(APIS), first=st.integers(0, 5))
def test_what_is_skipped_is_built_into_the_history(session: Session, api: Api, first: int) -> None:
    whole, late = builder(session, api), builder(session, api)
    for position, turn in enumerate(session.turns):
        built = whole.build(turn)
        if position < first:
            late.skip(turn)
        else:
            assert late.build(turn) == built


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_history_grows_at_its_end(api: Api, calls: int) -> None:
    session = growing(calls=calls)
    built_by, planner = builder(session, api), PromptPlanner(session)
    before = b""
    for turn in session.turns:
        assert planner.plan(turn).shared_tokens == turn.input_tokens - (turn.new_input_tokens or 0)
        body = built_by.build(turn).body
        kept = before[: before.rfind(b'"max_')]
        # What closes arrays and the last message is not part of the history.
        history = kept.rstrip(b',"]}')
        assert body.startswith(history)
        assert len(history) > len(before) * 0.9 - 200
        before = body


@pytest.mark.parametrize("api", APIS)
def test_another_salt_is_another_text_from_the_first_word_on(api: Api) -> None:
    session = growing()
    bodies = [json.loads(builder(session, api, salt=salt).build(session.turns[0]).body) for salt in ("", "x")]
    one, other = (" ".join(texts(body, api)).split() for body in bodies)
    assert len(one) == len(other)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 0.1 * len(one)
    assert builder(session, api, salt="x").build(session.turns[0]) == builder(session, api, salt="x").build(
        session.turns[0]
    )


anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=60)
@given(
    api=st.sampled_from(APIS),
    said=st.lists(st.tuples(anything, st.lists(anything, max_size=2)), min_size=5, max_size=5),
    gives=st.booleans(),
)
def test_a_live_history_holds_what_really_came(
    api: Api, said: list[tuple[str, list[str]]], gives: bool
) -> None:
    session = growing()
    built_by = builder(session, api, history="live")
    came: list[str] = []
    before = b""
    for turn, (text, arguments) in zip(session.turns, said, strict=False):
        built = built_by.build(turn)
        body = json.loads(built.body)
        check_legal(body, api)
        sent = texts(body, api)
        assert built.sent_tokens <= sum(count_tokens(piece) for piece in sent) + 3 * len(came)
        assert built.sent_tokens >= sum(count_tokens(piece) for piece in sent) - 3 * len(came)
        for piece in came:
            assert piece in "".join(sent) if api == "completions" else piece in sent
        assert built.body.startswith(before[: before.rfind(b'"max_')].rstrip(b',"]}'))
        before = built.body
        calls = tuple(
            LiveToolCall(f"id_{turn.turn_id}_{number}", "tool_0", json.dumps({"path": argument}))
            for number, argument in enumerate(arguments)
        )
        results = [ToolResult(call.call_id, f"got {call.call_id}") for call in calls] if gives else []
        built_by.answered(turn, LiveMessage(text, "thoughts stay out", calls), results)
        if text and not text.isspace():
            came.append(text)
        came += [result.text for result in results]
    assert b"thoughts stay out" not in before


def test_new_text_fills_up_what_real_results_leave() -> None:
    session = growing(new=90)
    built_by = builder(session, history="live")
    built_by.build(session.turns[0])
    short, long = "ok", " word" * 200
    for turn, text in ((session.turns[0], short), (session.turns[1], long)):
        call = LiveToolCall(f"c{turn.turn_id}", "ls", "{}")
        built_by.answered(turn, LiveMessage("done", "", (call,)), [ToolResult(call.call_id, text)])
        following = session.turns[session.turns.index(turn) + 1]
        built = built_by.build(following)
        last = json.loads(built.body)["messages"][-1]
        if text is short:
            assert last["role"] == "user"
            assert count_tokens(last["content"]) == 90 - count_tokens(short)
        else:
            assert last["role"] == "tool"


def test_new_text_is_as_long_as_recorded_where_little_of_the_answer_was_kept() -> None:
    # Of 400 tokens, most of them reasoning, the next prompt holds 10.
    first = Turn(session_id="s", turn_id="a", input_tokens=1_000, output_tokens=400)
    second = Turn(session_id="s", turn_id="b", input_tokens=1_060, new_input_tokens=50, trigger="user")
    built_by = builder(Session("s", (first, second)), history="live")
    built_by.build(first)
    built_by.answered(first, LiveMessage("short", "", ()), [])
    last = json.loads(built_by.build(second).body)["messages"][-1]
    assert count_tokens(last["content"]) == 50


@pytest.mark.parametrize("api", APIS)
def test_a_prompt_that_is_all_system_still_has_a_user(api: Api) -> None:
    turns = [
        Turn(
            session_id="s",
            turn_id=f"t{number}",
            input_tokens=tokens,
            blocks=PrefixBlocks(ids=tuple(range(tokens // 8)), block_tokens=8),
        )
        for number, tokens in enumerate((160, 80))
    ]
    built_by = builder(Session("s", tuple(turns)), api)
    for turn in turns:
        built = built_by.build(turn)
        body = json.loads(built.body)
        check_legal(body, api)
        assert built.sent_tokens == sum(count_tokens(text) for text in texts(body, api))


def test_a_call_of_a_tool_that_is_not_declared_is_left_out() -> None:
    session = growing(turns=2, calls=0)
    built_by = builder(session, "messages", history="live")
    built_by.build(session.turns[0])
    call = LiveToolCall("c", "shell", "{}")
    built_by.answered(session.turns[0], LiveMessage("hm", "", (call,)), [ToolResult("c", "given")])
    body = json.loads(built_by.build(session.turns[1]).body)
    check_legal(body, "messages")
    assert not any(block["type"] != "text" for message in body["messages"] for block in message["content"])


def test_a_failed_turn_leaves_no_answer_in_a_live_history() -> None:
    session = growing(calls=0)
    built_by = builder(session, history="live")
    built_by.build(session.turns[0])
    second = json.loads(built_by.build(session.turns[1]).body)
    assert [message["role"] for message in second["messages"]] == ["system", "user", "user"]
    assert count_tokens(second["messages"][-1]["content"]) == 90


@pytest.mark.parametrize("api", APIS)
def test_prompts_are_fitted_to_what_a_server_counts(api: Api) -> None:
    # A server that counts 1.3 tokens for each of ours and 7 for each message.
    session = growing(turns=30, new=400)
    fit = TokenFit()
    built_by = builder(session, api, fit=fit)
    off = []
    for turn in session.turns:
        built = built_by.build(turn)
        body = json.loads(built.body)
        messages = len(body.get("messages", body.get("input", ["one"])))
        counted = round(1.3 * built.sent_tokens + 7 * messages)
        built_by.reported(turn, counted)
        off.append(abs(counted - turn.input_tokens) / turn.input_tokens)
    assert off[0] > 0.2
    # The first answer and results stand there already; from then on new text makes up for it.
    assert max(off[5:]) < 0.02
    assert max(off[15:]) < 0.005


@given(
    reports=st.lists(
        st.tuples(st.integers(1, 10**6), st.integers(1, 500), st.integers(-10, 10**7)), max_size=20
    ),
    wanted=st.floats(-1e6, 1e7),
)
def test_whatever_a_server_reports_some_words_are_sent(
    reports: list[tuple[int, int, int]], wanted: float
) -> None:
    fit = TokenFit()
    for report in reports:
        fit.learn(*report)
    assert fit.words(wanted, 3) >= 1
    assert 1 / 8 <= fit.per_token <= 8


@pytest.mark.parametrize("api", APIS)
def test_a_users_fields_are_merged_and_lengths_forced(api: Api) -> None:
    turn = growing().turns[0]
    extra = {"temperature": 0, "model": "other"}
    built = builder(Session("s", (turn,)), api, extra_body=extra, force_output=True).build(turn)
    body = json.loads(built.body)
    assert (body["temperature"], body["model"]) == (0, "other")
    assert ("ignore_eos" in body, body.get("min_tokens")) == (
        (False, None) if api == "messages" else (True, turn.output_tokens)
    )
    with pytest.raises(AgentloadError, match="'stream' is set by the replayer itself"):
        check_extra_body(api, {"stream": False})
