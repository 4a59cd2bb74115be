"""weka JSON: what each turn waited for and how long, sub-agents, and damaged records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from agentload_traces import ToolCall, TraceError, TraceReader, Turn, open_trace, sample_path


def request(time: float, /, **more: Any) -> dict[str, Any]:
    """A request that ended its turn after 4 s; `tool=True` makes it one that a tool result triggered."""
    types = ["tool_result"] if more.pop("tool", False) else ["text"]
    fields = {"t": time, "type": "n", "in": 64, "out": 58, "hash_ids": [1], "input_types": types}
    return {**fields, "output_types": ["text"], "stop": "end_turn", "api_time": 4.0, **more}


def marker(time: float, duration_s: float, /, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {"t": time, "type": "subagent", "agent_id": "a1", "subagent_type": "Explore"}
    return {**fields, "duration_ms": duration_s * 1000, "requests": list(requests), **more}


def read(tmp_path: Path, *requests: Any, **header: Any) -> tuple[TraceReader, list[Turn]]:
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps({"id": "c", "block_size": 64, "requests": list(requests), **header}))
    reader = open_trace(path)
    return reader, list(reader.turns())


def test_the_time_after_a_user_message_is_think_time(tmp_path: Path) -> None:
    _, (first, second) = read(tmp_path, request(0, ttft=1.75), request(100))
    assert (first.trigger, first.start_ms, first.delay_ms, first.wait_for) == ("user", 0.0, None, ())
    assert (first.duration_ms, first.ttft_ms) == (4000.0, 1750.0)
    assert (second.trigger, second.delay_ms, second.wait_for) == ("user", 96_000.0, ("0",))
    assert first.tool_calls == ()


def test_the_time_before_a_tool_result_is_a_tool_call_of_the_turn_before(tmp_path: Path) -> None:
    """The gap of 16 s holds the turn's own response time of 5 s once (formats' bias rule)."""
    _, (first, second) = read(tmp_path, request(0, stop="tool_use"), request(20, tool=True, api_time=5.0))
    assert first.tool_calls == (ToolCall(duration_ms=11_000.0),)
    assert (second.trigger, second.delay_ms) == ("tool", 0.0)


def test_a_gap_is_never_negative(tmp_path: Path) -> None:
    _, turns = read(
        tmp_path, request(0, stop="tool_use"), request(5, tool=True, api_time=9.0), request(6), request(3)
    )
    assert turns[0].tool_calls == (ToolCall(duration_ms=0.0),)
    assert [turn.delay_ms for turn in turns] == [None, 0.0, 0.0, 0.0]


def test_a_missing_response_time_is_estimated_but_not_recorded(tmp_path: Path) -> None:
    """58 tokens take 2.5 s to the first and 1 s for all."""
    _, (first, second) = read(tmp_path, request(0, api_time=None), request(10))
    assert first.duration_ms is None
    assert second.delay_ms == 6_500.0
    _, (first, second) = read(
        tmp_path, request(0, stop="tool_use"), request(20, tool=True, api_time=None, out=None)
    )
    assert first.tool_calls == (ToolCall(duration_ms=13_500.0),)
    assert second.output_tokens is None


@pytest.mark.parametrize("stop", ["", None])
def test_after_an_answer_with_unknown_end_the_trigger_is_unknown(tmp_path: Path, stop: str | None) -> None:
    _, turns = read(tmp_path, request(0, stop=stop), request(10), request(20, tool=True))
    assert [turn.trigger for turn in turns] == ["user", None, "user"]
    _, turns = read(tmp_path, request(0, stop=stop), request(10, tool=True))
    assert [turn.trigger for turn in turns] == ["user", "tool"]


def test_an_old_tool_result_in_a_rewritten_history_is_no_tool_trigger(tmp_path: Path) -> None:
    types = ["text", "thinking", "tool_result", "tool_use"]
    _, (first, second) = read(tmp_path, request(0), request(10, input_types=types))
    assert first.tool_calls == ()
    assert (second.trigger, second.delay_ms) == ("user", 6_000.0)


def test_think_time_is_not_used(tmp_path: Path) -> None:
    """It accumulates over turns without response time."""
    _, turns = read(tmp_path, request(0), request(10, think_time=500.0))
    assert turns[1].delay_ms == 6_000.0


def test_subagents_start_after_their_turn_and_the_next_turn_joins_them(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        request(0, stop="tool_use"),  # answered at 4 s
        marker(30, 25, request(0, stop="tool_use"), request(16, tool=True, api_time=5.0)),  # 5 s to 26 s
        marker(20, 15.5, request(0), agent_id="a2"),  # 4.5 s to 8.5 s
        request(40, tool=True, api_time=6.0),
        request(60),
    )
    by_id = {turn.turn_id: turn for turn in turns}
    assert [turn.turn_id for turn in turns] == ["0", "a1/0", "a1/1", "a2/0", "3", "4"]
    assert by_id["0"].tool_calls == (
        ToolCall(name="Explore", agent_id="a1"),
        ToolCall(name="Explore", agent_id="a2"),
    )
    assert by_id["a1/0"].parent_turn_id == by_id["a2/0"].parent_turn_id == "0"
    assert (by_id["a1/0"].agent_id, by_id["a2/0"].agent_id) == ("a1", "a2")
    assert (by_id["a1/0"].delay_ms, by_id["a2/0"].delay_ms) == (1_000.0, 500.0)
    assert [by_id[i].start_ms for i in ("a1/0", "a1/1", "a2/0")] == [5_000.0, 21_000.0, 4_500.0]
    assert by_id["a1/0"].tool_calls == (ToolCall(duration_ms=7_000.0),)
    assert by_id["a1/1"].wait_for == ("a1/0",)
    assert by_id["a1/1"].parent_turn_id is None
    joined = by_id["3"]
    assert joined.wait_for == ("0", "a1/1", "a2/0")
    assert joined.trigger == "tool"
    assert joined.delay_ms == 8_000.0  # from 26 s to 40 s, less its own 6 s: the sub-agents' time counts once
    assert by_id["4"].wait_for == ("3",)
    assert (reader.report.lines_read, reader.report.other) == (8, {"sub-agent marker": 2})


def test_times_of_a_subagent_may_be_absolute(tmp_path: Path) -> None:
    _, turns = read(
        tmp_path,
        request(100, stop="tool_use"),
        marker(130, 25, request(105), request(115)),
        request(140, tool=True),
    )
    assert [turn.start_ms for turn in turns] == [100_000.0, 105_000.0, 115_000.0, 140_000.0]


def test_a_marker_may_stand_where_its_subagent_started(tmp_path: Path) -> None:
    """30 s minus 28 s would be long before the turn that started it was answered."""
    _, turns = read(
        tmp_path, request(20, stop="tool_use"), marker(30, 28, request(0)), request(70, tool=True)
    )
    assert turns[1].start_ms == 30_000.0


def test_a_marker_without_times_starts_with_the_answer(tmp_path: Path) -> None:
    _, turns = read(
        tmp_path, request(20), marker(0, 0, request(0), t=None, duration_ms=None), request(70, tool=True)
    )
    assert (turns[1].start_ms, turns[1].delay_ms) == (24_000.0, 0.0)


def test_a_subagent_without_requests_is_a_tool_call_of_its_duration(tmp_path: Path) -> None:
    _, turns = read(tmp_path, request(0, stop="tool_use"), marker(9, 5), request(12))
    assert turns[0].tool_calls == (ToolCall(name="Explore", duration_ms=5_000.0),)
    assert turns[1].wait_for == ("0",)


def test_agents_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    _, turns = read(tmp_path, request(0), marker(9, 5, request(0)), marker(9, 5, request(0)), request(20))
    assert [turn.agent_id for turn in turns] == [None, "a1", "a1#2", None]
    names = ["a#2", "a", "a", "a#2", "a", "a#2#2"]
    reader, turns = read(tmp_path, request(0), *[marker(9, 5, request(0), agent_id=name) for name in names])
    assert [turn.agent_id for turn in turns[1:]] == ["a#2", "a", "a#3", "a#2#2", "a#4", "a#2#2#2"]
    assert reader.report.problem_count == 0


def nested(levels: int) -> str:
    """A file whose only sub-agent starts one that starts one, and so on."""
    inner = json.dumps(request(0))
    for _ in range(levels):
        inner = f'{{"t": 1, "type": "subagent", "agent_id": "a", "duration_ms": 1, "requests": [{inner}]}}'
    return f'{{"block_size": 64, "requests": [{json.dumps(request(0))}, {inner}, {json.dumps(request(50))}]}}'


@pytest.mark.parametrize("levels", [16, 17, 600, 3_000])
def test_nesting_is_read_to_16_levels_and_reported_beyond(tmp_path: Path, levels: int) -> None:
    path = tmp_path / "conversation.json"
    path.write_text(nested(levels))
    reader = open_trace(path)
    turns = list(reader.turns())
    assert [turn.turn_id for turn in turns if turn.agent_id is None] == ["0", "2"]
    assert len(turns) == (3 if levels == 16 else 2)
    report = reader.report
    assert report.lines_accounted == report.lines_read == 19
    assert all("nested too deeply" in problem.message for problem in report.problems)
    assert (report.problem_count > 0) == (levels > 16)


def test_a_subagent_before_any_turn_waits_for_nothing(tmp_path: Path) -> None:
    _, turns = read(tmp_path, marker(9, 5, request(0)), request(20))
    assert (turns[0].parent_turn_id, turns[0].wait_for) == (None, ())


def test_subagents_of_the_sample() -> None:
    """Read off the file: both start within 0.8 s of the answer at 1,100.64 s; the next turn joins both."""
    turns = {turn.turn_id: turn for turn in open_trace(sample_path("weka_trace_0291.json")).turns()}
    assert [turns[i].delay_ms for i in ("agent_001/0", "agent_002/0")] == [717.0, 729.0]
    assert turns["15"].tool_calls == (
        ToolCall(name="Explore", agent_id="agent_001"),
        ToolCall(name="Explore", agent_id="agent_002"),
    )
    assert turns["18"].wait_for == ("15", "agent_001/4", "agent_002/6")
    assert turns["18"].source == "requests[18]"
    assert turns["agent_002/6"].source == "requests[17].requests[6]"


@pytest.mark.parametrize("name", ["weka_trace_0086.json", "weka_trace_0291.json", "weka_trace_0533.json.zst"])
def test_waits_add_up_to_the_recorded_times(name: str) -> None:
    """Response, tool call and delay end by the next send, unless the gap was shorter than a response time."""
    main = [turn for turn in open_trace(sample_path(name)).turns() if turn.agent_id is None]
    for before, turn in itertools.pairwise(main):
        if len(turn.wait_for) > 1 or before.duration_ms is None:
            continue
        assert before.start_ms is not None
        assert turn.start_ms is not None
        assert turn.delay_ms is not None
        tools = max((call.duration_ms or 0.0 for call in before.tool_calls), default=0.0)
        due = before.start_ms + before.duration_ms + tools + turn.delay_ms
        assert due <= max(turn.start_ms, before.start_ms + before.duration_ms) + 0.01


def test_blocks_have_the_size_and_scope_of_the_file(tmp_path: Path) -> None:
    two = request(0, hash_ids=[7, 8], **{"in": 130})
    for header, block_tokens, scope in (
        ({"hash_id_scope": "local"}, 64, "session"),
        ({"hash_id_scope": "global", "block_size": 63}, 63, "trace"),
    ):
        _, (turn,) = read(tmp_path, two, **header)
        assert turn.blocks is not None
        assert (turn.blocks.ids, turn.blocks.block_tokens, turn.blocks.scope) == ((7, 8), block_tokens, scope)


def test_ids_that_do_not_fit_are_dropped_and_the_turn_kept(tmp_path: Path) -> None:
    reader, (turn,) = read(tmp_path, request(0, hash_ids=[1, 2, 3]))
    assert turn.blocks is None
    (problem,) = reader.report.problems
    assert (problem.field, problem.kept) == ("requests[0].hash_ids", True)
    assert problem.message == "has 3 ids, but in 64 makes 1 blocks of 64 tokens; ids dropped"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"in": -1}, "in"),
        ({"in": "many"}, "in"),
        ({"out": 1.5}, "out"),
        ({"t": None}, "t"),
        ({"api_time": -2}, "api_time"),
        ({"hash_ids": [1, "x"]}, "hash_ids[1]"),
        ({"input_types": "text"}, "input_types"),
    ],
)
def test_a_bad_record_is_named_and_its_chain_closed(
    tmp_path: Path, wrong: dict[str, Any], field: str
) -> None:
    reader, turns = read(tmp_path, request(0), request(10, **wrong), request(20))
    assert [(turn.turn_id, turn.wait_for) for turn in turns] == [("0", ()), ("2", ("0",))]
    (problem,) = reader.report.problems
    assert problem.field == f"requests[1].{field}"
    assert problem.line is None
    assert (reader.report.lines_read, reader.report.lines_skipped) == (3, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("in", 2**53 + 1), ("out", 10**400), ("t", 1e308), ("api_time", 1.1e7), ("ttft", 1e300)],
)
def test_a_huge_value_costs_only_its_record(tmp_path: Path, field: str, value: float) -> None:
    reader, turns = read(tmp_path, request(0), {**request(10), field: value}, request(20))
    assert [turn.turn_id for turn in turns] == ["0", "2"]
    (problem,) = reader.report.problems
    assert (problem.field, problem.kept) == (f"requests[1].{field}", False)


def test_a_bad_nested_record_costs_only_itself(tmp_path: Path) -> None:
    reader, turns = read(
        tmp_path,
        request(0),
        marker(30, 25, request(0), request(2, out=-1), request(5)),
        request(40, tool=True),
    )
    assert [turn.turn_id for turn in turns] == ["0", "a1/0", "a1/2", "2"]
    assert turns[3].wait_for == ("0", "a1/2")
    assert [p.field for p in reader.report.problems] == ["requests[1].requests[1].out"]


def test_a_bad_marker_costs_no_request(tmp_path: Path) -> None:
    reader, turns = read(tmp_path, request(0), marker(30, 25, request(0), agent_id=7), request(40, tool=True))
    assert [turn.turn_id for turn in turns] == ["0", "agent/0", "2"]
    assert [p.field for p in reader.report.problems] == ["requests[1].agent_id"]
    assert (reader.report.lines_read, reader.report.turns, reader.report.lines_skipped) == (4, 3, 1)


def test_records_of_another_kind_are_skipped(tmp_path: Path) -> None:
    reader, turns = read(tmp_path, request(0), 5, [], {"type": 3, "t": 1, "in": 1}, request(10))
    assert [turn.turn_id for turn in turns] == ["0", "3", "4"]  # only `type` is odd in the fourth
    assert [(p.field, p.kept) for p in reader.report.problems] == [
        ("requests[1]", False),
        ("requests[2]", False),
        ("requests[3].type", True),
    ]


def test_a_request_of_an_unknown_type_is_read_and_reported(tmp_path: Path) -> None:
    reader, turns = read(tmp_path, request(0, type="s"), request(1, type=None), request(2, type="embedding"))
    assert len(turns) == 3
    assert [str(p).partition(": ")[2] for p in reader.report.problems] == [
        "requests[2].type: unknown type 'embedding'; read as a request"
    ]


def test_a_wrong_header_field_is_replaced_and_reported(tmp_path: Path) -> None:
    reader, (turn,) = read(tmp_path, request(0), id=7, block_size="64")
    assert turn.session_id == "conversation"
    assert turn.blocks is not None
    assert [(p.field, p.kept) for p in reader.report.problems] == [("id", True), ("block_size", True)]


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"block_size": 0}, "block_size: must be 1 to 2^53, is 0; 64 is taken instead"),
        ({"block_size": -64}, "block_size: must be 1 to 2^53, is -64; 64 is taken instead"),
        ({"block_size": 2**63}, f"block_size: must be 1 to 2^53, is {2**63}; 64 is taken instead"),
        (
            {"hash_id_scope": "world"},
            "hash_id_scope: 'world' is neither 'local' nor 'global'; 'local' is taken instead",
        ),
    ],
)
def test_a_header_field_that_makes_no_sense_is_replaced_and_reported(
    tmp_path: Path, header: dict[str, Any], problem: str
) -> None:
    reader, (turn,) = read(tmp_path, request(0), **header)
    assert [str(p).partition(": ")[2] for p in reader.report.problems] == [problem]
    assert turn.blocks is not None
    assert (turn.blocks.block_tokens, turn.blocks.scope) == (64, "session")


def test_unknown_fields_are_counted(tmp_path: Path) -> None:
    reader, _ = read(tmp_path, request(0, cost=1), request(1, cost=2))
    assert reader.report.ignored_fields == {"cost": 2}
    assert reader.report.problem_count == 0


def test_assumptions_are_told() -> None:
    reader = open_trace(sample_path("weka_trace_0086.json"))
    list(reader.turns())
    assert any("one call of the turn before it" in sentence for sentence in reader.report.assumptions)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"t": 10,', '"t": ,'),
        lambda text: text.replace('"hash_ids": [11]', '"hash_ids": [11'),
        lambda text: text.replace('"hash_ids": [11]', '"hash_ids": 11]'),
        lambda text: text.replace('"t": 10,', '"t": "10,'),
    ],
)
def test_broken_syntax_in_one_record_costs_only_that_record(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "conversation.json"
    records = [request(0), request(10, hash_ids=[11]), request(20), request(30)]
    text = json.dumps({"id": "c", "block_size": 64, "requests": records}, indent=1)
    text = text.replace("[\n    11\n   ]", "[11]")
    assert damage(text) != text
    path.write_text(damage(text))
    reader = open_trace(path)
    assert [turn.turn_id for turn in reader.turns()] == ["0", "2", "3"]
    (problem,) = reader.report.problems
    assert problem.field == "requests[1]"
    assert problem.message.startswith("not valid JSON: ")


@pytest.mark.parametrize("damaged", ['"t": 10.0, {', '"t": 10.0, }', '{"t": 10.0,'])
def test_an_object_too_many_or_too_few_does_not_swallow_the_next_records(
    tmp_path: Path, damaged: str
) -> None:
    path = tmp_path / "conversation.json"
    text = json.dumps({"block_size": 64, "requests": [request(t) for t in (0.0, 10.0, 20.0, 30.0)]})
    path.write_text(text.replace('"t": 10.0,', damaged))
    reader = open_trace(path)
    assert [turn.start_ms for turn in reader.turns()] == [0.0, 20_000.0, 30_000.0]
    assert reader.report.problem_count >= 1


def test_damage_after_the_requests_is_reported_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps({"block_size": 64, "requests": [request(0)]})[:-1] + ', "totals": {')
    reader = open_trace(path)
    assert len(list(reader.turns())) == 1
    assert [str(p) for p in reader.report.problems] == [f"{path}: not valid JSON: it ends early"]


def test_a_file_without_a_list_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "conversation.json"
    path.write_text('{"block_size": 64, "requests": {}}')
    with pytest.raises(TraceError, match="a weka trace without a list `requests`"):
        list(open_trace(path).turns())
