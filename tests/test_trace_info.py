"""Right totals of the samples, counted by a program that shares no code with the importers.

A turn is a request of a main agent; sub-agent requests are counted apart. Weka: a turn is a request of the
top list that is no sub-agent marker. Mooncake: one line is one request, and the published
files know no sessions.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from agentload_traces import TraceError, Turn, list_samples, open_trace, sample_path, trace_info, write_trace

NONE = {
    "subagents": 0,
    "subagent_turns": 0,
    "subagent_input_tokens": 0,
    "subagent_output_tokens": 0,
    "lines_skipped": 0,
    "lines_other": {},
}
TOTALS: dict[str, dict[str, Any]] = {
    "weka_trace_0086.json": {
        "format": "weka",
        "sessions": 1,
        "turns": 24,
        "input_tokens": 627_951,
        "output_tokens": 9_340,
        "lines_read": 24,
        "last_start_ms": 861_000.0,
        "tool_calls_known": "inferred",
        **NONE,
    },
    "weka_trace_0291.json": {
        "format": "weka",
        "sessions": 1,
        "turns": 20,
        "input_tokens": 1_576_322,
        "output_tokens": 12_771,
        "subagents": 2,
        "subagent_turns": 12,
        "subagent_input_tokens": 677_797,
        "subagent_output_tokens": 6_733,
        "lines_read": 34,  # 20 turns, 2 markers, 12 nested requests
        "lines_skipped": 0,
        "lines_other": {"sub-agent marker": 2},
        "last_start_ms": 1_363_000.0,
        "tool_calls_known": "inferred",
    },
    "weka_trace_0533.json.zst": {
        "format": "weka",
        "sessions": 1,
        "turns": 201,
        "input_tokens": 13_355_353,
        "output_tokens": 183_168,
        "lines_read": 201,
        "last_start_ms": 6_314_000.0,
        "tool_calls_known": "inferred",
        **NONE,
    },
    "mooncake_conversation_head2000.jsonl.zst": {
        "format": "mooncake",
        "sessions": 2_000,
        "turns": 2_000,
        "input_tokens": 27_441_774,
        "output_tokens": 704_602,
        "turns_with_blocks": 2_000,
        "tool_calls": 0,
        "tool_calls_known": "not in the file",
        "lines_read": 2_000,
        "last_start_ms": 669_000.0,
        **NONE,
    },
    "mooncake_synthetic_head1000.jsonl.zst": {
        "format": "mooncake",
        "sessions": 1_000,
        "turns": 1_000,
        "input_tokens": 11_851_558,
        "output_tokens": 196_039,
        "turns_with_blocks": 1_000,
        "tool_calls": 0,
        "tool_calls_known": "not in the file",
        "lines_read": 1_000,
        "last_start_ms": 272_653.0,
        **NONE,
    },
    "mooncake_aiperf_template.jsonl": {
        "format": "mooncake",
        "sessions": 10,
        "turns": 10,
        "input_tokens": 7_680,
        "output_tokens": 1_856,
        "turns_with_blocks": 3,  # 6 rows have no ids, 1 has a number of them that does not fit
        "problems": 1,
        "tool_calls": 0,
        "tool_calls_known": "not in the file",
        "lines_read": 10,
        "last_start_ms": 1_500.0,
        **NONE,
    },
}
DISTINCT_BLOCK_IDS = {
    "weka_trace_0086.json": 585,
    "weka_trace_0291.json": 3_606,
    "weka_trace_0533.json.zst": 7_270,
    "mooncake_conversation_head2000.jsonl.zst": 38_788,
    "mooncake_synthetic_head1000.jsonl.zst": 19_780,
}
PREFIX_OVERLAP_TOKENS = {
    "weka_trace_0086.json": 589_696,
    "weka_trace_0291.json": 1_474_560,
    "weka_trace_0533.json.zst": 12_717_248,
}


def test_every_sample_has_its_totals() -> None:
    assert sorted(TOTALS) == list_samples()


@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_right(name: str) -> None:
    info = trace_info(sample_path(name))
    assert {key: getattr(info, key) for key in TOTALS[name]} == TOTALS[name]


@pytest.mark.parametrize("name", TOTALS)
def test_totals_survive_conversion(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(path, open_trace(sample_path(name)).turns())
    before, after = trace_info(sample_path(name)), trace_info(path)
    kept = ("sessions", "turns", "input_tokens", "output_tokens", "subagent_turns", "subagent_input_tokens")
    for key in (*kept, "subagent_output_tokens", "tool_calls", "turns_with_blocks", "last_start_ms"):
        assert getattr(after, key) == getattr(before, key)


@pytest.mark.parametrize(("name", "distinct"), DISTINCT_BLOCK_IDS.items())
def test_block_ids_are_all_there(name: str, distinct: int) -> None:
    turns = open_trace(sample_path(name)).turns()
    assert len({i for turn in turns if turn.blocks for i in turn.blocks.ids}) == distinct


@pytest.mark.parametrize(("name", "overlap_tokens"), PREFIX_OVERLAP_TOKENS.items())
def test_prefixes_are_shared_as_recorded(name: str, overlap_tokens: int) -> None:
    """Leading blocks that a main turn has in common with the one before it, times 64 tokens."""
    main = [turn for turn in open_trace(sample_path(name)).turns() if turn.agent_id is None]
    assert sum(common_tokens(a, b) for a, b in itertools.pairwise(main)) == overlap_tokens


def common_tokens(before: Turn, turn: Turn) -> int:
    assert before.blocks is not None
    assert turn.blocks is not None
    common = 0
    for a, b in zip(before.blocks.ids, turn.blocks.ids, strict=False):
        if a != b:
            break
        common += turn.blocks.block_tokens
    return common


def test_totals_count_each_kind_of_turn_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(
        path,
        [
            Turn(session_id="a", turn_id="0", input_tokens=5, output_tokens=2, model="x", start_ms=3.0),
            Turn(session_id="a", turn_id="1", input_tokens=7, agent_id="sub", parent_turn_id="0"),
            Turn(session_id="b", turn_id="0", input_tokens=11, agent_id="sub", output_tokens=1, start_ms=2.0),
        ],
    )
    info = trace_info(path)
    assert (info.sessions, info.turns, info.input_tokens, info.output_tokens) == (2, 1, 5, 2)
    assert (info.subagents, info.subagent_turns, info.subagent_input_tokens) == (2, 2, 18)
    assert (info.subagent_output_tokens, info.turns_without_output_tokens) == (1, 1)
    assert (info.max_input_tokens, info.last_start_ms, info.models) == (11, 3.0, ["x"])
    assert info.tool_calls_known == "recorded"


def test_an_unknown_sample_is_named_with_those_there_are() -> None:
    with pytest.raises(TraceError, match=r"no sample trace 'x'; there are mooncake_aiperf_template\.jsonl, "):
        sample_path("x")
