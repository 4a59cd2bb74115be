"""The identity of prompts: token counts, block keys, and that what is cached changes neither."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload_simbackend import PromptRun
from agentload_simbackend._chat import message_texts
from agentload_simbackend._server_errors import ApiError
from agentload_simbackend._server_prompt import PromptIndex
from agentload_traces._filler import block_text
from agentload_traces._tokens import count_tokens

contents = st.one_of(
    st.text(max_size=30),
    st.integers(0, 200).map(lambda tokens: block_text(1, tokens, tokens)),
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=10)}), max_size=3),
    st.none(),
)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.text(), "arguments": st.text()})}
)
messages_of_a_chat = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": contents},
        optional={"tool_calls": st.lists(calls, max_size=2)},
    ),
    min_size=1,
    max_size=6,
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


def text_tokens(messages: list[dict[str, Any]]) -> int:
    total = 0
    for message in messages:
        content = message["content"] or []
        total += count_tokens(content) if isinstance(content, str) else 0
        total += sum(count_tokens(part["text"]) for part in content if isinstance(part, dict))
        for call in message.get("tool_calls", []):
            total += count_tokens(call["function"]["name"]) + count_tokens(call["function"]["arguments"])
    return total


def read(index: PromptIndex, messages: bytes) -> list[PromptRun]:
    for _ in index.update(messages):
        pass
    return list(index.runs())


def fresh(messages: bytes, block_tokens: int = 64) -> list[PromptRun]:
    return read(PromptIndex(message_texts, block_tokens), messages)


@given(messages_of_a_chat, separators, st.sampled_from([1, 16, 64, 100]))
def test_a_prompt_has_the_tokens_of_its_texts(messages: Any, separator: Any, block_tokens: int) -> None:
    runs = fresh(json.dumps(messages, separators=separator).encode(), block_tokens)
    assert sum(run.tokens for run in runs) == text_tokens(messages)
    assert all(run.tokens == block_tokens for run in runs[:-1])
    assert all(0 < run.tokens <= block_tokens for run in runs[-1:])


@given(st.lists(messages_of_a_chat, min_size=2, max_size=4), st.data())
def test_a_cached_conversation_has_the_identity_of_one_read_from_scratch(histories: Any, data: Any) -> None:
    """Each next prompt keeps some messages of the last one: it grows, is cut, edited or replaced."""
    index = PromptIndex(message_texts)
    messages: list[Any] = []
    for new in histories:
        messages = messages[: data.draw(st.integers(0, len(messages)))] + new
        body = json.dumps(messages, separators=data.draw(separators)).encode()
        assert read(index, body) == fresh(body)
        assert index.message_count == len(messages)


@given(messages_of_a_chat, messages_of_a_chat)
def test_shared_messages_are_those_that_are_equal_bytes(first: Any, second: Any) -> None:
    index = PromptIndex(message_texts)
    read(index, json.dumps(first).encode())
    equal = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    expected = min(len(first), len(second)) if equal is None else equal
    assert index.shared_messages(json.dumps(second).encode()) == expected


def test_prompts_share_keys_up_to_the_block_that_differs() -> None:
    def runs(last: str) -> list[PromptRun]:
        return fresh(json.dumps([{"role": "user", "content": block_text(0, "k", 130) + last}]).encode())

    one, two = runs(" one"), runs(" two")
    assert one[:2] == two[:2]
    assert one[2].key != two[2].key
    assert [run.tokens for run in one] == [64, 64, 3]


@given(st.integers(15_000, 40_000), st.integers(0, 5), st.text(max_size=40))
def test_long_texts_are_cut_where_tokens_cannot_join(size: int, word: int, odd: str) -> None:
    text = (" some wordy 'text' we're 12 reading" + odd)[word:]
    text = (text * (size // len(text) + 1))[:size]
    runs = fresh(json.dumps([{"role": "user", "content": text}]).encode())
    assert sum(run.tokens for run in runs) == count_tokens(text)


def test_a_wrong_message_leaves_those_before_it() -> None:
    good = {"role": "user", "content": "a good message"}
    index = PromptIndex(message_texts)
    with pytest.raises(ApiError) as caught:
        read(index, json.dumps([good, {"role": "user", "content": 7}]).encode())
    assert caught.value.param == "messages[1].content"
    body = json.dumps([good, good]).encode()
    assert index.shared_messages(body) == 1
    assert read(index, body) == fresh(body)


@given(messages_of_a_chat, messages_of_a_chat, st.integers(0, 8))
def test_an_abandoned_update_does_no_harm(first: Any, second: Any, pieces: int) -> None:
    index = PromptIndex(message_texts)
    read(index, json.dumps(first).encode())
    update = index.update(json.dumps(second).encode())
    for _ in zip(range(pieces), update, strict=False):
        pass
    update.close()  # type: ignore[attr-defined]
    body = json.dumps(first + second).encode()
    assert read(index, body) == fresh(body)
