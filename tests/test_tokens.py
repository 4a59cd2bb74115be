"""Token counts and filler text of exact token counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload_traces._filler import WORD_COUNT, _table, block_text, filler
from agentload_traces._tokens import count_tokens, encode

keys = st.one_of(st.text(max_size=20), st.integers(0, 2**64 - 1))


def test_special_tokens_spelled_out_are_ordinary_text() -> None:
    assert encode("<|endoftext|>") == [27, 91, 419, 1440, 919, 91, 29]
    assert count_tokens("<|endoftext|>") == 7


def test_known_counts_of_o200k_base() -> None:
    assert encode("") == []
    assert encode("hello world") == [24912, 2375]


def test_each_filler_word_is_one_token_of_its_own() -> None:
    words = _table()[:WORD_COUNT]
    assert len(set(words)) == WORD_COUNT
    assert [len(encode(word)) for word in words] == [1] * WORD_COUNT
    assert all(word[1:].isascii() and word[1:].islower() for word in words)


def test_all_words_in_one_text_stay_one_token_each() -> None:
    words = _table()[:WORD_COUNT]
    assert encode("".join(words)) == [encode(word)[0] for word in words]


@given(st.lists(st.integers(0, WORD_COUNT - 1), max_size=50))
def test_any_sequence_of_words_has_as_many_tokens(choice: list[int]) -> None:
    assert count_tokens("".join(_table()[index] for index in choice)) == len(choice)


@given(keys, st.integers(0, 300), st.integers(0, 300))
def test_filler_has_exactly_the_tokens_asked_for(key: str | int, start: int, tokens: int) -> None:
    assert count_tokens(filler(7, key, start, tokens)) == tokens


@given(keys, st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_a_token_does_not_depend_on_how_much_is_asked(
    key: str | int, first: int, more: int, rest: int
) -> None:
    whole = block_text(3, key, first + more + rest)
    assert whole == block_text(3, key, first) + filler(3, key, first, more) + filler(
        3, key, first + more, rest
    )


@given(st.integers(0, 10), keys, st.integers(0, 10), keys)
def test_other_seed_or_key_is_other_text(seed: int, key: str | int, seed2: int, key2: str | int) -> None:
    same = (seed, type(key), key) == (seed2, type(key2), key2)
    assert (block_text(seed, key, 64) == block_text(seed2, key2, 64)) == same


def test_filler_is_the_same_on_every_machine() -> None:
    assert block_text(0, "session/turn", 4) == " telling draft guest additionally"
    assert filler(1, 2**64 - 1, 62, 4) == " initiative engagement maybe week"


@pytest.mark.parametrize(("start", "tokens"), [(-1, 3), (0, -1)])
def test_negative_amounts_are_refused(start: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        filler(0, "k", start, tokens)


def test_the_vocabulary_loads_only_when_it_is_used() -> None:
    code = "import sys, agentload_traces._tokens, agentload_traces._filler; print('splintr' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
