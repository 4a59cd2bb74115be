"""Mooncake's rows, and AIPerf's fields in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentload_traces import TraceReader, Turn, open_trace, sample_path


def read(tmp_path: Path, *rows: dict[str, object]) -> tuple[TraceReader, list[Turn]]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    reader = open_trace(path)
    return reader, list(reader.turns())


def test_a_row_is_a_session_of_one_turn() -> None:
    first = next(open_trace(sample_path("mooncake_conversation_head2000.jsonl.zst")).turns())
    assert (first.session_id, first.turn_id, first.source) == ("line-1", "0", "line 1")
    assert (first.input_tokens, first.output_tokens, first.start_ms) == (6758, 500, 0.0)
    assert first.blocks is not None
    assert (first.blocks.ids, first.blocks.block_tokens, first.blocks.scope) == (
        tuple(range(14)),
        512,
        "trace",
    )
    assert (first.wait_for, first.delay_ms, first.trigger, first.tool_calls) == ((), None, None, ())


def test_rows_of_one_session_are_its_turns_wherever_they_stand(tmp_path: Path) -> None:
    reader, _ = read(
        tmp_path,
        {"session_id": "a", "timestamp": 5, "input_length": 10, "output_length": 1},
        {"session_id": "b", "timestamp": 6, "input_length": 20, "output_length": 1},
        {"timestamp": 7, "input_length": 30, "output_length": 1},
        {"session_id": "a", "delay": 250, "input_length": 11, "output_length": 1},
        {"session_id": 3, "input_length": 40, "output_length": 1},
        {"session_id": "a", "delay": 0.5, "input_length": 12, "output_length": 1},
        {"session_id": "b", "input_length": 21},
    )
    sessions = {session.session_id: session.turns for session in reader.sessions()}
    assert {name: [turn.input_tokens for turn in turns] for name, turns in sessions.items()} == {
        "a": [10, 11, 12],
        "b": [20, 21],
        "line-3": [30],
        "3": [40],
    }
    assert [turn.wait_for for turn in sessions["a"]] == [(), ("0",), ("1",)]
    assert [turn.delay_ms for turn in sessions["a"]] == [None, 250.0, 0.5]
    assert [turn.start_ms for turn in sessions["a"]] == [5.0, None, None]
    assert [turn.source for turn in sessions["a"]] == ["line 1", "line 4", "line 6"]
    assert sessions["b"][1].output_tokens is None
    assert reader.report.problem_count == 0


def test_a_first_row_is_sent_at_its_timestamp_whatever_its_delay(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        {"session_id": "a", "timestamp": 500, "delay": 250, "input_length": 1},
        {"session_id": "a", "timestamp": 900, "delay": 250, "input_length": 2},
        {"session_id": "b", "delay": 250, "input_length": 3},
        {"timestamp": 700, "delay": 250, "input_length": 4},
    )
    assert [(turn.start_ms, turn.delay_ms) for turn in turns] == [
        (500.0, None),
        (900.0, 250.0),
        (None, 250.0),
        (700.0, None),
    ]
    (sentence,) = reader.report.assumptions
    assert sentence == "a session's first row is sent at its timestamp; its delay does not come on top"


def test_a_gap_that_the_file_does_not_tell_is_an_assumption(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"session_id": "a", "timestamp": 0, "input_length": 1},
        {"session_id": "a", "timestamp": 9_000, "input_length": 2},
        {"session_id": "a", "timestamp": 12_000, "input_length": 3},
    ]
    reader, turns = read(tmp_path, *rows)
    assert [(turn.start_ms, turn.delay_ms) for turn in turns] == [
        (0.0, None),
        (9_000.0, None),
        (12_000.0, None),
    ]
    (sentence,) = reader.report.assumptions
    assert "a timestamp and no delay is sent as soon as the row before it" in sentence
    reader, _ = read(tmp_path, rows[0], {"session_id": "a", "delay": 5, "input_length": 2})
    assert reader.report.assumptions == ()


def test_a_made_name_is_no_session_of_the_file(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        {"session_id": "line-2", "input_length": 1},
        {"input_length": 2},
        {"session_id": "line-2", "input_length": 3},
        {"input_length": 4},
    )
    assert {turn.input_tokens: turn.session_id for turn in turns} == {
        1: "line-2",
        2: "line-2'",
        3: "line-2",
        4: "line-4",
    }
    assert reader.report.problem_count == 0


def test_a_session_is_held_no_longer_than_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"session_id": f"s{n // 2}", "input_length": n} for n in range(2_000)]
    path.write_text("\n".join(map(json.dumps, rows)))
    reader = open_trace(path)
    turns = reader.turns()
    assert next(turns).session_id == "s0"
    assert reader.report.lines_read == 2
    assert sum(1 for _ in turns) == 1_999


@pytest.mark.parametrize(
    ("input_length", "ids", "kept"),
    [
        (1024, [1, 2], True),
        (1025, [1, 2, 3], True),
        (1025, [1, 2], True),  # the partial block has no id
        (0, [], True),
        (1024, [1, 2, 3], False),
        (1024, [1], False),
        (1025, [1], False),
        (512, [-1], False),
        (512, [2**64], False),
        (512, [2**64 - 1], True),
    ],
)
def test_ids_that_do_not_fit_are_dropped_and_the_row_kept(
    tmp_path: Path, input_length: int, ids: list[int], kept: bool
) -> None:
    reader, (turn,) = read(tmp_path, {"input_length": input_length, "output_length": 1, "hash_ids": ids})
    assert turn.input_tokens == input_length
    if kept:
        assert turn.blocks is not None
        assert turn.blocks.ids == tuple(ids)
        assert reader.report.problem_count == 0
    else:
        assert turn.blocks is None
        (problem,) = reader.report.problems
        assert (problem.line, problem.field, problem.kept) == (1, "hash_ids", True)
        assert "ids dropped" in problem.message
    assert reader.report.lines_skipped == 0


def test_the_row_of_the_aiperf_template_that_does_not_fit() -> None:
    reader = open_trace(sample_path("mooncake_aiperf_template.jsonl"))
    turns = list(reader.turns())
    (problem,) = reader.report.problems
    assert problem.line == 3
    assert problem.message == ("has 3 ids, but input_length 1024 makes 2 blocks of 512 tokens; ids dropped")
    assert [turn.blocks is not None for turn in turns].count(True) == 3


def test_rows_with_text_in_place_of_a_length_are_reported(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        {"timestamp": 0, "text_input": "hello", "output_length": 5},
        {"timestamp": 0, "input_length": 5, "output_length": 5},
        {"timestamp": 0, "output_length": 5},
    )
    assert len(turns) == 1
    text, missing = reader.report.problems
    assert (text.line, text.field) == (1, "input_length")
    assert text.message == "missing; a row that carries text in place of a length cannot be read"
    assert (missing.line, missing.field, missing.message) == (3, "input_length", "missing")


def test_fields_of_other_dialects_are_counted(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        {"timestamp": 0, "input_length": 5, "output_length": 5, "priority": 1},
        {"timestamp": 0, "input_length": 5, "output_length": 5, "priority": 1, "extra": {}},
    )
    assert len(turns) == 2
    assert reader.report.ignored_fields == {"priority": 2, "extra": 1}
    assert reader.report.problem_count == 0


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"input_length": -1}, "input_length"),
        ({"input_length": 1, "output_length": -1}, "output_length"),
        ({"input_length": 1, "timestamp": -1}, "timestamp"),
        ({"input_length": 1, "delay": "1"}, "delay"),
        ({"input_length": 1, "hash_ids": ["a"]}, "hash_ids[0]"),
        ({"input_length": 1, "session_id": []}, "session_id"),
        ({"input_length": 2**53 + 1}, "input_length"),
        ({"input_length": 1, "output_length": 10**400}, "output_length"),
        ({"input_length": 1, "timestamp": 1.1e14}, "timestamp"),
        ({"input_length": 1, "delay": 1e308}, "delay"),
    ],
)
def test_wrong_values_name_their_field(tmp_path: Path, row: dict[str, object], field: str) -> None:
    reader, turns = read(tmp_path, {"input_length": 1}, row, {"input_length": 2})
    assert [turn.input_tokens for turn in turns] == [1, 2]
    (problem,) = reader.report.problems
    assert (problem.line, problem.field) == (2, field)
