"""What a turn must satisfy beyond its types, line by line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentload_traces import TraceReader, Turn, open_trace

GOOD: dict[str, Any] = {"session_id": "s", "turn_id": "0", "input_tokens": 130}


def read(tmp_path: Path, *rows: dict[str, Any]) -> tuple[TraceReader, list[Turn]]:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    reader = open_trace(path)
    return reader, list(reader.turns())


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"session_id": ""}, "session_id", "must not be empty"),
        ({"turn_id": ""}, "turn_id", "must not be empty"),
        ({"input_tokens": -1}, "input_tokens", "must be 0 or more, is -1"),
        ({"output_tokens": -5}, "output_tokens", "must be 0 or more, is -5"),
        ({"output_tokens": 2**53 + 1}, "output_tokens", "is 9007199254740993, more than 2^53"),
        ({"new_input_tokens": -1}, "new_input_tokens", "must be 0 or more, is -1"),
        ({"new_input_tokens": 131}, "new_input_tokens", "is 131, more than input_tokens (130)"),
        ({"cached_input_tokens": 131}, "cached_input_tokens", "is 131, more than input_tokens (130)"),
        ({"start_ms": -0.5}, "start_ms", "must be 0 to 100,000,000,000,000 ms, is -0.5"),
        ({"delay_ms": -1}, "delay_ms", "must be 0 to 10,000,000,000 ms (116 days), is -1.0"),
        ({"ttft_ms": -1}, "ttft_ms", "must be 0 to 10,000,000,000 ms (116 days), is -1.0"),
        ({"duration_ms": -1}, "duration_ms", "must be 0 to 10,000,000,000 ms (116 days), is -1.0"),
        ({"start_ms": 1.1e14}, "start_ms", "must be 0 to 100,000,000,000,000 ms, is 110000000000000.0"),
        ({"delay_ms": 1e308}, "delay_ms", "must be 0 to 10,000,000,000 ms (116 days), is 1e+308"),
        ({"ttft_ms": 1.1e10}, "ttft_ms", "must be 0 to 10,000,000,000 ms (116 days), is 11000000000.0"),
        ({"duration_ms": 1e300}, "duration_ms", "must be 0 to 10,000,000,000 ms (116 days), is 1e+300"),
        (
            {"tool_calls": [{"duration_ms": 1e308}]},
            "tool_calls[0].duration_ms",
            "must be 0 to 10,000,000,000 ms (116 days), is 1e+308",
        ),
        (
            {"tool_calls": [{"result_tokens": 2**63}]},
            "tool_calls[0].result_tokens",
            f"is {2**63}, more than 2^53",
        ),
        (
            {"blocks": {"ids": [], "block_tokens": 2**63}},
            "blocks.block_tokens",
            f"must be 1 to 2^53, is {2**63}",
        ),
        ({"blocks": {"ids": [], "block_tokens": 0}}, "blocks.block_tokens", "must be 1 to 2^53, is 0"),
        ({"blocks": {"ids": [-1], "block_tokens": 64}}, "blocks.ids", "must be 0 to 2^64 - 1, one is -1"),
        (
            {"blocks": {"ids": [1, 2**64], "block_tokens": 64}},
            "blocks.ids",
            "must be 0 to 2^64 - 1, one is 18446744073709551616",
        ),
        (
            {"blocks": {"ids": [1, 2, 3, 4], "block_tokens": 64}},
            "blocks.ids",
            "has 4 ids, but input_tokens 130 makes 3 blocks of 64 tokens",
        ),
        (
            {"tool_calls": [{}, {"duration_ms": -1}]},
            "tool_calls[1].duration_ms",
            "must be 0 to 10,000,000,000 ms (116 days), is -1.0",
        ),
        ({"tool_calls": [{"result_tokens": -1}]}, "tool_calls[0].result_tokens", "must be 0 or more, is -1"),
        (
            {"tool_calls": [{"arguments_tokens": -1}]},
            "tool_calls[0].arguments_tokens",
            "must be 0 or more, is -1",
        ),
    ],
)
def test_a_wrong_value_skips_its_line(
    tmp_path: Path, wrong: dict[str, Any], field: str, message: str
) -> None:
    reader, turns = read(tmp_path, GOOD, {**GOOD, "turn_id": "1", **wrong}, {**GOOD, "turn_id": "2"})
    assert [turn.turn_id for turn in turns] == ["0", "2"]
    (problem,) = reader.report.problems
    assert str(problem) == f"{tmp_path}/trace.jsonl:2: {field}: {message}"
    assert not problem.kept


@pytest.mark.parametrize(
    "right",
    [
        {"input_tokens": 2**53},
        {"new_input_tokens": 130, "cached_input_tokens": 130},
        {"blocks": {"ids": [0, 2**64 - 1, 5], "block_tokens": 64}},
        {"blocks": {"ids": [1, 2], "block_tokens": 64}},
        {"tool_calls": [{"duration_ms": 0, "result_tokens": 0}]},
        {"start_ms": 1e14, "delay_ms": 1e10, "ttft_ms": 1e10, "duration_ms": 1e10},
        {"tool_calls": [{"duration_ms": 1e10, "result_tokens": 2**53}]},
    ],
)
def test_values_at_their_limit_are_right(tmp_path: Path, right: dict[str, Any]) -> None:
    reader, turns = read(tmp_path, {**GOOD, **right})
    assert len(turns) == 1
    assert reader.report.problem_count == 0


def test_turn_ids_differ_within_a_session_only(tmp_path: Path) -> None:
    reader, turns = read(tmp_path, GOOD, GOOD, {**GOOD, "session_id": "t"})
    assert [(turn.session_id, turn.turn_id) for turn in turns] == [("s", "0"), ("t", "0")]
    (problem,) = reader.report.problems
    assert (problem.line, problem.field) == (2, "turn_id")


def test_a_reference_to_a_lost_turn_is_mended_with_the_turn_before(tmp_path: Path) -> None:
    """One bad line must not take the rest of its session with it."""
    chain = [{**GOOD, "turn_id": str(n), "wait_for": [str(n - 1)] if n else []} for n in range(5)]
    chain[2]["input_tokens"] = -1
    reader, turns = read(tmp_path, *chain)
    assert [(turn.turn_id, turn.wait_for) for turn in turns] == [
        ("0", ()),
        ("1", ("0",)),
        ("3", ("1",)),
        ("4", ("3",)),
    ]
    lost, mended = reader.report.problems
    assert (lost.line, lost.field, lost.kept) == (3, "input_tokens", False)
    assert (mended.line, mended.field, mended.kept) == (4, "wait_for", True)
    assert mended.message == "'2' is no earlier turn of this session; '1' is taken instead"
    assert (reader.report.turns, reader.report.lines_skipped) == (4, 1)


def test_references_point_backwards_within_the_session(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        {**GOOD, "session_id": "r"},
        {**GOOD, "wait_for": ["0"]},  # itself; the other session's "0" does not count
        {**GOOD, "turn_id": "1", "agent_id": "a", "parent_turn_id": "9"},
        {**GOOD, "turn_id": "2", "wait_for": ["0", "8"]},
    )
    assert [(turn.wait_for, turn.parent_turn_id) for turn in turns] == [
        ((), None),
        ((), None),
        ((), "0"),
        (("0",), None),
    ]
    assert [(p.line, p.field) for p in reader.report.problems] == [
        (2, "wait_for"),
        (3, "parent_turn_id"),
        (4, "wait_for"),
    ]
