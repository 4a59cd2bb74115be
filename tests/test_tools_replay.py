"""Tools of a whole run: by law on both clocks, and really executed by a callable or an MCP server."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fake_endpoint import Reply, ToolUse, fake_endpoint_thread

from agentload._options import EndpointOptions, LoadOptions, ReplayOptions, ToolOptions
from agentload._replay import replay
from agentload_traces import RunReader, ToolCall, Turn, write_trace

LAWS = """
[default]
law = "constant"
value_s = 0.25

[tools.bash]
law = "gamma"
shape = 2.0
mean_s = 0.01
"""

TOOLS = """
def run_tool(name, arguments, context):
    if name == "broken":
        raise ValueError("no luck")
    return f"{name} got {arguments} for {context.call_id}"
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A session of two turns; the first calls two tools, whose recorded times are very long."""
    calls = (ToolCall(name="bash", duration_ms=9e6), ToolCall(name="broken", duration_ms=9e6))
    turns = [
        Turn(
            session_id="s", turn_id="0", input_tokens=200, output_tokens=60, trigger="user", tool_calls=calls
        ),
        Turn(
            session_id="s",
            turn_id="1",
            wait_for=("0",),
            input_tokens=320,
            new_input_tokens=60,
            output_tokens=10,
            trigger="tool",
        ),
    ]
    path = tmp_path / "trace.jsonl"
    write_trace(path, turns)
    return path


def calls_of(run: Path) -> list[dict[str, Any]]:
    return RunReader(run).tool_calls().sort("call_index").collect().to_dicts()


def check_the_gate(run: Path) -> None:
    """The second turn waited for the last of the calls, whatever they were."""
    rows = {row["turn_id"]: row for row in RunReader(run).requests().collect().to_dicts()}
    ends = [call["end_ns"] for call in calls_of(run)]
    assert rows["1"]["scheduled_ns"] == max(ends)
    assert rows["1"]["tool_ns"] == max(ends) - rows["0"]["end_ns"]


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_by_law_calls_take_the_same_drawn_times_on_both_clocks(
    tmp_path: Path, trace: Path, clock: Any
) -> None:
    laws = tmp_path / "laws.toml"
    laws.write_text(LAWS, encoding="utf-8")
    run = tmp_path / "run"
    result = replay(
        ReplayOptions(trace=trace, out=run, clock=clock, seed=5, tooling=ToolOptions(tools=f"law:{laws}"))
    )
    assert (result.turns, result.failed) == (2, 0)
    bash, broken = (call["end_ns"] - call["start_ns"] for call in calls_of(run))
    assert (bash, broken) == (DRAWN_NS, 250_000_000)
    check_the_gate(run)
    assert any(str(laws) in sentence for sentence in RunReader(run).manifest.conditions)


DRAWN_NS = 27_847_811
"""Pinned, as in the tests of laws."""


def executed(tmp_path: Path, trace: Path, tools: str, script: Any, **endpoint: Any) -> tuple[Path, list[Any]]:
    """Replay against a fake endpoint; the run, and the bodies that came."""
    run = tmp_path / "run"
    with fake_endpoint_thread(script) as fake:
        result = replay(
            ReplayOptions(
                trace=trace,
                out=run,
                target=fake.url,
                clock="wall",
                load=LoadOptions(concurrency=1),
                endpoint=EndpointOptions(**endpoint),
                tooling=ToolOptions(tools=tools, tool_timeout_s=60),
            )
        )
        assert (result.turns, result.failed) == (2, 0), result.first_error
        return run, [seen.body for seen in fake.requests]


@pytest.fixture
def callable_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tools_of_a_replay.py").write_text(TOOLS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "tools_of_a_replay", raising=False)
    return "python:tools_of_a_replay:run_tool"


def test_with_recorded_history_the_recorded_calls_are_executed(
    tmp_path: Path, trace: Path, callable_tools: str
) -> None:
    run, _ = executed(tmp_path, trace, callable_tools, lambda number, body: Reply())
    assert [(call["name"], call["error"]) for call in calls_of(run)] == [
        ("bash", None),
        ("broken", "ValueError: no luck"),
    ]
    check_the_gate(run)


def answers_with_calls(number: int, body: dict[str, Any]) -> Reply:
    if number:
        return Reply()
    return Reply(
        text="let me see", tool_calls=[ToolUse("echo", '{"a": 1}', "c1"), ToolUse("broken", "{}", "c2")]
    )


def results_in(body: dict[str, Any]) -> dict[str, str]:
    return {each["tool_call_id"]: each["content"] for each in body["messages"] if each["role"] == "tool"}


def test_with_live_history_the_model_gets_what_its_calls_really_gave(
    tmp_path: Path, trace: Path, callable_tools: str
) -> None:
    run, bodies = executed(tmp_path, trace, callable_tools, answers_with_calls, history="live")
    given = results_in(bodies[1])
    assert given["c1"].startswith('echo got {"a": 1} for c1')
    assert given["c2"].startswith("error: ValueError: no luck")
    calls = calls_of(run)
    assert [(call["name"], call["error"]) for call in calls] == [
        ("echo", None),
        ("broken", "ValueError: no luck"),
    ]
    assert all(call["result_tokens"] > 3 for call in calls)
    check_the_gate(run)


def test_an_mcp_server_is_in_the_loop(tmp_path: Path, trace: Path) -> None:
    log = tmp_path / "log"
    server = shlex.join([sys.executable, str(Path(__file__).with_name("mcp_server.py")), str(log)])
    run, bodies = executed(tmp_path, trace, f"mcp:{server}", answers_with_calls, history="live")
    assert results_in(bodies[1])["c1"].startswith('{"a": 1}')
    assert [call["error"] for call in calls_of(run)] == [None, "it is broken"]
    assert RunReader(run).requests().filter(pl.col("status") == "ok").collect().height == 2
    assert log.read_text(encoding="utf-8").endswith("end\n")
    check_the_gate(run)
