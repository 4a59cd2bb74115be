"""Which session and agent a recorded request belongs to."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeUsage, Reply
from hypothesis import given
from hypothesis import strategies as st
from record_turns import Recorder, call, called, chat, result, user

from agentload_traces import count_tokens


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_completions_continue_by_their_text(recorder: Recorder) -> None:
    recorder.ask({"model": "m", "prompt": "once upon"}, Reply(text=" a time"), api="completions")
    recorder.ask({"model": "m", "prompt": "once upon a time there"}, api="completions", after_ms=5)
    recorder.ask({"model": "m", "prompt": [1, 2, 3, 4]}, Reply(usage=None), api="completions")
    story, ids = recorder.sessions()
    assert [turn.wait_for for turn in story.turns] == [(), ("0",)]
    assert ids.turns[0].input_tokens == 4


def test_conversations_that_begin_alike_are_told_apart_by_their_answers(recorder: Recorder) -> None:
    for text in ("x", "y", "z"):
        recorder.ask(chat(user("go")), Reply(text=f"answer {text}"))
    for text in ("z", "x", "y"):
        recorder.ask(
            chat(user("go"), {"role": "assistant", "content": f"answer {text}"}, user(f"and {text}"))
        )
    sessions = recorder.sessions()
    assert [len(session.turns) for session in sessions] == [2, 2, 2]
    assert [session.turns[1].start_ms for session in sessions] == [40.0, 50.0, 30.0]


def test_a_history_that_was_changed_on_the_way_stays_in_its_session(recorder: Recorder) -> None:
    messages = [user("go")]
    for number in range(3):
        recorder.ask(chat(*messages), Reply(text=f"word{number}", usage=None))
        messages += [{"role": "assistant", "content": f"word{number}"}, user(f"long text number {number}")]
    cut = [*messages[:5], {"role": "assistant", "content": "(shortened)"}, user("next")]
    recorder.ask(chat(*cut), Reply(usage=None))
    *_, last = recorder.turns()
    shared = sum(count_tokens(message["content"]) for message in messages[:5])
    assert last.trigger == "user"
    assert last.input_tokens - (last.new_input_tokens or 0) == shared


def test_a_session_header_goes_before_the_messages_and_a_new_history_is_a_compaction(
    recorder: Recorder,
) -> None:
    headers = {"x-claude-code-session-id": "s%201"}
    setup = {"role": "system", "content": "be good and kind"}
    recorder.ask(chat(setup, user("go")), Reply(text="long", usage=FakeUsage(900, 10)), headers=headers)
    recorder.ask(chat(setup, user("summary")), Reply(usage=FakeUsage(100, 10)), headers=headers, after_ms=7)
    one, two = recorder.turns()
    assert (one.session_id, one.trigger, two.trigger) == ("s 1", "user", "compaction")
    assert (two.wait_for, two.delay_ms) == ((one.turn_id,), 7.0)
    assert 0 < 100 - (two.new_input_tokens or 0) < 100  # the system prompt
    totals = recorder.maker.totals()
    assert (totals.sessions_by_header, totals.compactions) == (1, 1)


def test_another_system_prompt_in_a_session_is_another_agent(recorder: Recorder) -> None:
    headers = {"x-session-id": "s"}
    main = [{"role": "system", "content": "be good"}, user("go")]
    recorder.ask(chat(*main), Reply(text="yes"), headers=headers)
    recorder.ask(chat({"role": "system", "content": "make a title"}, user("go")), headers=headers)
    recorder.ask(
        chat(*main, {"role": "assistant", "content": "yes"}, user("on")), headers=headers, after_ms=5
    )
    assert [(turn.agent_id, turn.trigger) for turn in recorder.turns()] == [
        (None, "user"),
        ("agent-1", "user"),
        (None, "user"),
    ]


def test_sub_agents_are_found_by_header_and_linked_to_their_call(recorder: Recorder) -> None:
    main = {"x-claude-code-session-id": "s"}
    sub = main | {"x-claude-code-agent-id": "a7"}
    calls = (call("c1", "Read"), call("c2", "Task"))
    recorder.ask(chat(user("go")), Reply(text="", tool_calls=calls), headers=main)
    recorder.ask(chat(user("part")), Reply(text="", tool_calls=[call("d1")]), headers=sub, after_ms=3)
    recorder.ask(chat(user("part"), called(call("d1")), result("d1", "r")), headers=sub, after_ms=20)
    after = [user("go"), called(*calls), result("c1", "r"), result("c2", "s")]
    recorder.ask(chat(*after), headers=main, after_ms=6)
    start, one, two, end = recorder.turns()
    assert (one.parent_turn_id, one.wait_for, one.delay_ms, one.agent_id) == (start.turn_id, (), 3.0, "a7")
    assert two.wait_for == (one.turn_id,)
    assert end.wait_for == (start.turn_id, two.turn_id)
    assert [(each.agent_id, each.duration_ms) for each in start.tool_calls] == [(None, 49.0), ("a7", None)]
    assert (end.trigger, end.delay_ms) == ("tool", 0.0)


def test_a_session_of_a_session_is_its_sub_agent(recorder: Recorder) -> None:
    recorder.ask(
        chat(user("go")), Reply(text="", tool_calls=[call("c1", "task")]), headers={"x-session-id": "p"}
    )
    child = {"x-session-id": "c", "x-parent-session-id": "p"}
    recorder.ask(chat(user("part")), headers=child)
    parent, one = recorder.turns()
    assert (one.session_id, one.agent_id, one.parent_turn_id) == ("p", "c", parent.turn_id)


def _steps() -> st.SearchStrategy[list[tuple[int, str, int]]]:
    step = st.tuples(st.integers(0, 3), st.sampled_from(["tool", "user", "fail", "end"]), st.integers(0, 500))
    return st.lists(step, max_size=25)


@given(steps=_steps())
def test_interleaved_agents_come_apart_again(
    steps: list[tuple[int, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Four agents with equal first prompts, in any order: each conversation is a session of its own."""
    recorder = Recorder(tmp_path_factory.mktemp("laws"))
    histories: dict[int, list[dict[str, Any]]] = {}
    told: dict[int, list[int]] = {}
    turns: list[list[int]] = []
    for number, (agent, what, gap) in enumerate(steps):
        history = histories.setdefault(agent, [user("go")])
        if what == "fail":
            recorder.ask(chat(*history, seed=number), Reply(status=503), after_ms=gap)
            continue
        made = call(f"id-{number}") if what == "tool" else None
        reply = Reply(text=f"answer {number}", tool_calls=[made] if made else [])
        recorder.ask(chat(*history), reply, after_ms=gap)
        told.setdefault(agent, []).append(number)
        if made is not None:
            history += [called(made, text=f"answer {number}"), result(f"id-{number}", f"r{number}")]
        else:
            history += [{"role": "assistant", "content": f"answer {number}"}, user(f"u{number}")]
        if what == "end":
            turns.append(told.pop(agent))
            del histories[agent]
    turns += told.values()
    sessions = recorder.sessions() if turns else []
    assert sorted(len(session.turns) for session in sessions) == sorted(map(len, turns))
    for session in sessions:
        for before, turn in pairwise(session.turns):
            assert turn.wait_for == (before.turn_id,)
            gaps = [each.duration_ms for each in before.tool_calls] or [turn.delay_ms]
            assert (turn.start_ms or 0.0) == pytest.approx(
                (before.start_ms or 0.0) + (before.duration_ms or 0.0) + (gaps[0] or 0.0)
            )
