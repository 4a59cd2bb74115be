"""A session replayed against a real engine, llama.cpp's server with a random model made on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

_TURNS = 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("xllamacpp", "gguf")),
        reason="no real engine here: pip install xllamacpp gguf (0.2 GB, no model is downloaded)",
    ),
]


@pytest.fixture(scope="module")
def plays() -> dict[str, Any]:
    program = Path(__file__).parents[1] / "benchmarks" / "real_engine.py"
    done = subprocess.run(
        [sys.executable, str(program), "--turns", str(_TURNS), "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["recorded", "live", "fitted"])
def test_every_turn_is_answered_whole_and_as_long_as_asked(plays: dict[str, Any], name: str) -> None:
    rows = plays[name]["turns"]
    assert [row["turn_id"] for row in rows] == [f"t{number}" for number in range(_TURNS)]
    assert {(row["status"], row["finish_reason"]) for row in rows} == {("ok", "length")}
    assert all(row["reported_output_tokens"] == row["output_tokens_asked"] for row in rows)
    assert all(0 < row["output_tokens"] <= row["output_tokens_asked"] for row in rows)


def test_recorded_prompts_have_exactly_the_tokens_of_the_trace(plays: dict[str, Any]) -> None:
    for row in plays["recorded"]["turns"]:
        assert row["sent_tokens"] == row["input_tokens"]
        # A token of this engine is a byte, and filler has about six of them to a word.
        assert row["reported_input_tokens"] > 4 * row["input_tokens"]


@pytest.mark.parametrize("name", ["recorded", "live", "fitted"])
def test_the_engine_finds_each_prompt_but_what_is_new_in_its_cache(plays: dict[str, Any], name: str) -> None:
    rows = plays[name]["turns"]
    assert rows[0]["cached_tokens"] < rows[0]["reported_input_tokens"] / 10
    for previous, row in pairwise(rows):
        # The answer's first token follows on the prompt's last.
        assert row["cached_tokens"] >= previous["reported_input_tokens"] - 1
        assert row["cached_tokens"] < row["reported_input_tokens"]


def test_prompts_can_be_fitted_to_the_count_of_the_engine(plays: dict[str, Any]) -> None:
    def off(name: str) -> int:
        """By how many tokens what a turn adds differs from the trace, over all turns but the first two."""
        rows = plays[name]["turns"][1:]
        return sum(
            abs(
                (row["reported_input_tokens"] - previous["reported_input_tokens"])
                - (row["input_tokens"] - previous["input_tokens"])
            )
            for previous, row in pairwise(rows)
        )

    assert off("fitted") < off("recorded") / 4
