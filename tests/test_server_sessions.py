"""Which session, context and turn a request is taken for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload_simbackend import AGENT_HEADER, SESSION_HEADER, TURN_HEADER, decode_id, encode_id
from agentload_simbackend._chat import message_texts
from agentload_simbackend._server_sessions import Conversation, Conversations, header_id
from agentload_traces._filler import block_text

SYSTEM = {"role": "system", "content": "You are one of many."}


def said(*texts: str) -> list[Any]:
    return [SYSTEM, *({"role": "user", "content": text} for text in texts)]


def ask(known: Conversations, messages: list[Any], **headers: str) -> tuple[Conversation, str]:
    """Let a request come and be answered."""
    body = json.dumps(messages).encode()
    conversation = known.find({name.replace("_", "-"): value for name, value in headers.items()}, body)
    for _ in conversation.index.update(body):
        pass
    known.updated(conversation)
    return conversation, conversation.next_turn_id()


def test_headers_name_session_and_context() -> None:
    known = Conversations(message_texts)
    main, turn = ask(known, said("a"), x_session_id="s")
    assert (main.session_id, main.context_id, turn) == ("s", "s", "0")
    again, turn = ask(known, said("quite", "different"), x_session_id="s")
    assert again is main
    assert turn == "1"
    helper, turn = ask(known, said("a"), x_session_id="s", x_agentload_agent_id="helper")
    assert (helper.session_id, helper.context_id, turn) == ("s", "s\0helper", "helper:0")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("plain-id_1.~", "plain-id_1.~"),
        ("with space, slash/ and ü", "with space, slash/ and ü"),
        ("a%0Ab%20%C3%BC%25", "a\nb ü%"),
        ("100% of %zz", "100% of %zz"),
        ("%ff", "\ufffd"),
    ],
)
def test_headers_are_decoded(value: str, name: str) -> None:
    headers = {SESSION_HEADER: value, AGENT_HEADER: value, TURN_HEADER: value}
    conversation = Conversations(message_texts).find(headers, b"[]")
    assert (conversation.session_id, conversation.agent_id) == (name, name)
    assert header_id(headers, TURN_HEADER) == name


@given(st.text())
def test_any_id_goes_through_a_header_whole(text: str) -> None:
    value = encode_id(text)
    assert re.fullmatch(r"[A-Za-z0-9._~%-]*", value)
    assert decode_id(value) == text
    if re.fullmatch(r"[A-Za-z0-9._~-]*", text):
        assert value == text


def test_a_growing_history_is_one_conversation() -> None:
    known = Conversations(message_texts)
    turns = [ask(known, said(*"abcdef"[:length])) for length in (1, 3, 5)]
    assert len({conversation.session_id for conversation, _ in turns}) == 1
    assert [turn for _, turn in turns] == ["0", "1", "2"]


def test_a_history_of_one_message_can_grow() -> None:
    known = Conversations(message_texts)
    first, _ = ask(known, [SYSTEM])
    second, turn = ask(known, said("a", "b"))
    assert second is first
    assert turn == "1"


def test_conversations_that_share_an_opening_are_told_apart() -> None:
    known = Conversations(message_texts)
    first, _ = ask(known, said("a"))
    other, _ = ask(known, said("b"))
    assert other is not first
    assert ask(known, said("a", "x", "y")) == (first, "1")
    assert ask(known, said("b", "x", "y")) == (other, "1")


def test_the_same_opening_again_is_a_new_session_once_the_first_has_gone_on() -> None:
    known = Conversations(message_texts)
    first, _ = ask(known, said("a"))
    ask(known, said("a", "answer one", "b"))
    second, _ = ask(known, said("a"))
    assert second is not first
    assert second.session_id == f"{first.session_id}-2"
    assert ask(known, said("a", "answer two", "b")) == (second, "1")
    assert ask(known, said("a", "answer one", "b", "c", "d")) == (first, "2")


def test_the_same_opening_at_the_same_time_is_a_new_session() -> None:
    known = Conversations(message_texts)
    first, _ = ask(known, said("a"))
    first.running = 1
    second, _ = ask(known, said("a"))
    assert second is not first


def test_a_repeated_request_is_the_next_turn() -> None:
    known = Conversations(message_texts)
    first, _ = ask(known, said("a"))
    assert ask(known, said("a")) == (first, "1")


def test_an_edited_history_goes_on() -> None:
    known = Conversations(message_texts)
    first, _ = ask(known, said("a"))
    ask(known, said("a", "b", "c", "d"))
    assert ask(known, said("a", "b", "other", "e", "f")) == (first, "2")


def test_derived_names_do_not_depend_on_what_came_before() -> None:
    one, two = Conversations(message_texts), Conversations(message_texts)
    ask(two, said("something", "else"))
    assert ask(one, said("a"))[0].session_id == ask(two, said("a"))[0].session_id


def test_old_conversations_are_forgotten_when_memory_is_short() -> None:
    known = Conversations(message_texts, cache_bytes=200_000)
    first, _ = ask(known, said("first"))
    for number in range(20):
        ask(known, said(block_text(0, number, 5_000)))
    again, turn = ask(known, said("first", "b", "c"))
    assert again is not first
    assert turn == "0"
    named, _ = ask(known, said("n"), x_session_id="s")
    assert ask(known, said("n", "m"), x_session_id="s") == (named, "1")
