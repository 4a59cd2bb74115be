"""What prompts consist of, and the messages made from them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_graphs import sessions

from agentload._prompts import PromptPlanner
from agentload._requests import RequestBuilder
from agentload_traces import PrefixBlocks, Session, ToolCall, Turn, count_tokens


def _tokens(message: dict[str, Any]) -> int:
    calls = message.get("tool_calls", ())
    parts = [text for call in calls for text in (call["function"]["name"], call["function"]["arguments"])]
    return sum(count_tokens(text) for text in [message.get("content") or "", *parts])


def _session(turns: list[Turn]) -> Session:
    return Session(turns[0].session_id, tuple(turns))


def _blocks(ids: list[int], size: int = 8, scope: str = "session") -> PrefixBlocks:
    return PrefixBlocks(ids=tuple(ids), block_tokens=size, scope=scope)  # type: ignore[arg-type]


def _chain(*prompts: tuple[int, list[int]], session_id: str = "s", size: int = 8, output: int = 3) -> Session:
    """A chain of turns given as (input tokens, block ids)."""
    turns = [
        Turn(
            session_id=session_id,
            turn_id=f"t{number}",
            wait_for=(f"t{number - 1}",) if number else (),
            input_tokens=tokens,
            output_tokens=output,
            blocks=_blocks(ids, size),
            tool_calls=(ToolCall(name="read_file"),),
        )
        for number, (tokens, ids) in enumerate(prompts)
    ]
    return _session(turns)


def _bodies(session: Session) -> list[list[dict[str, Any]]]:
    builder = RequestBuilder(session, seed=1, model="m")
    return [json.loads(builder.build(turn).body)["messages"] for turn in session.turns]


def _text(messages: list[dict[str, Any]]) -> str:
    return "".join(message["content"] for message in messages)


@given(session=sessions())
def test_runs_sum_to_the_prompt(session: Session) -> None:
    planner = PromptPlanner(session)
    for turn in session.turns:
        assert sum(run.tokens for run in planner.plan(turn).runs) == turn.input_tokens


@given(session=sessions())
def test_messages_have_exactly_the_tokens_of_the_trace(session: Session) -> None:
    builder = RequestBuilder(session, seed=3, model="m")
    for turn in session.turns:
        built = builder.build(turn)
        body = json.loads(built.body)
        assert sum(map(_tokens, body["messages"])) == built.sent_tokens == turn.input_tokens
        assert body["max_tokens"] == built.output_tokens == turn.output_tokens
        assert body["messages"][-1]["role"] in ("user", "tool")


@given(session=sessions())
def test_every_tool_call_is_answered_before_the_next_message(session: Session) -> None:
    for messages in _bodies(session):
        open_calls: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            else:
                assert open_calls == []
                open_calls = [call["id"] for call in message.get("tool_calls", ())]
        assert open_calls == []


def test_the_history_is_extended_not_rewritten() -> None:
    session = _chain((24, [1, 2, 3]), (40, [1, 2, 3, 4, 5]), (64, [1, 2, 3, 4, 5, 6, 7, 8]), output=6)
    first, second, third = _bodies(session)
    assert second[: len(first)] == first
    assert third[: len(second)] == second


def test_a_partial_block_is_the_head_of_the_block_that_fills_it_up() -> None:
    # weka gives no id to the partial block at the end, but the next turn numbers it.
    session = _chain((21, [1, 2]), (40, [1, 2, 3, 4, 5]))
    first, second = _bodies(session)
    assert second[: len(first)] == first


def test_equal_block_ids_are_equal_text_in_one_scope_only() -> None:
    def first_turn(session_id: str, scope: str) -> str:
        turn = Turn(session_id=session_id, turn_id="t", input_tokens=16, blocks=_blocks([7, 9], scope=scope))
        return _text(_bodies(_session([turn]))[0])

    assert first_turn("a", "trace") == first_turn("b", "trace")
    assert first_turn("a", "session") != first_turn("b", "session")


def test_a_prompt_that_leaves_the_previous_one_shares_what_the_blocks_say() -> None:
    session = _chain((32, [1, 2, 3, 4]), (24, [1, 2, 9]), output=0)
    planner = PromptPlanner(session)
    planner.plan(session.turns[0])
    assert planner.plan(session.turns[1]).shared_tokens == 16
    first, second = map(_text, _bodies(session))
    words_first, words_second = first.split(), second.split()
    assert words_first[:16] == words_second[:16]
    assert words_first[16:] != words_second[16:24]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 12)), min_size=1, max_size=6),
    numbers_partial=st.booleans(),
    output=st.integers(0, 40),
)
def test_blocks_of_any_length_give_exact_messages(
    sizes: list[tuple[int, int]], numbers_partial: bool, output: int
) -> None:
    """Prompts grow, shrink and branch; the partial block at an end has a number or has none."""
    prompts = []
    for tokens, branch in sizes:
        blocks = -(-tokens // 8) if numbers_partial else tokens // 8
        prompts.append(
            (tokens, [block if block < branch else block + 100 * branch for block in range(blocks)])
        )
    session = _chain(*prompts, output=output)
    planner = PromptPlanner(session)
    for turn, messages in zip(session.turns, _bodies(session), strict=True):
        assert sum(run.tokens for run in planner.plan(turn).runs) == turn.input_tokens
        assert sum(map(_tokens, messages)) == turn.input_tokens
        assert messages[-1]["role"] in ("user", "tool")


def test_a_numbered_partial_block_that_fills_up_is_whole() -> None:
    session = _chain((12, [1, 2]), (32, [1, 2, 3, 4]))
    planner = PromptPlanner(session)
    planner.plan(session.turns[0])
    prompt = planner.plan(session.turns[1])
    assert ([run.tokens for run in prompt.runs], prompt.shared_tokens) == ([8] * 4, 12)


@pytest.mark.parametrize(("total", "ids"), [(30, [1, 2, 3, 4]), (32, [1, 2, 3, 4]), (40, [1, 2])])
def test_block_counts_need_not_fit_the_length(total: int, ids: list[int]) -> None:
    session = _chain((total, ids))
    prompt = PromptPlanner(session).plan(session.turns[0])
    assert sum(run.tokens for run in prompt.runs) == total


def test_a_long_session_without_blocks_stays_one_run() -> None:
    turns = [
        Turn(
            session_id="s", turn_id=f"t{n}", input_tokens=100 * (n + 1), new_input_tokens=90, output_tokens=10
        )
        for n in range(50)
    ]
    turns[0] = Turn(session_id="s", turn_id="t0", input_tokens=100, new_input_tokens=100, output_tokens=10)
    planner = PromptPlanner(_session(turns))
    for turn in turns:
        prompt = planner.plan(turn)
    assert len(prompt.runs) == 1
    assert prompt.shared_tokens == 100 * 50 - 90


@given(session=sessions(), seed=st.integers(0, 2**32))
def test_bodies_are_a_function_of_seed_and_session(session: Session, seed: int) -> None:
    def bodies() -> list[bytes]:
        builder = RequestBuilder(session, seed=seed, model="m")
        return [builder.build(turn).body for turn in session.turns]

    assert bodies() == bodies()


def test_tool_results_and_user_messages() -> None:
    calls = (ToolCall(name="read_file"), ToolCall(name="shell"))
    first = Turn(session_id="s", turn_id="a", input_tokens=50, output_tokens=60, tool_calls=calls)
    by_tool = Turn(session_id="s", turn_id="b", input_tokens=200, trigger="tool", output_tokens=1)
    by_user = Turn(session_id="s", turn_id="b", input_tokens=200, trigger="user", output_tokens=1)
    roles = [[m["role"] for m in _bodies(_session([first, second]))[1]] for second in (by_tool, by_user)]
    assert roles == [
        ["system", "user", "assistant", "tool", "tool"],
        ["system", "user", "assistant", "tool", "tool", "user"],
    ]
    assistant = _bodies(_session([first, by_tool]))[1][2]
    assert _tokens(assistant) == 60
    assert [json.loads(call["function"]["arguments"]).keys() for call in assistant["tool_calls"]] == [
        {"input"}
    ] * 2
