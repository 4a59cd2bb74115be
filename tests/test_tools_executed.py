"""Tools in the loop: whose calls are executed, how many at a time, what is measured, how they fail."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import textwrap
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tool_pool import most_at_once

from agentload._answers_types import LiveMessage, LiveToolCall
from agentload._options import ToolOptions
from agentload._tools import ToolContext, ToolOutcome, check_tools, live_tools, tool_conditions
from agentload._tools._executing import ExecutedTools
from agentload._tools._executor import failed
from agentload._tools._python import PythonTools
from agentload._wall_clock import RunClock
from agentload_traces import AgentloadError, ToolCall, ToolCallRow, Turn, count_tokens

CONTEXT = ToolContext("s", "t", "c")
_numbers = count()


def turn(*calls: ToolCall) -> Turn:
    return Turn(session_id="s", turn_id="t", input_tokens=1, tool_calls=calls)


def message(*calls: tuple[str, str, str]) -> LiveMessage:
    return LiveMessage("", "", tuple(LiveToolCall(*call) for call in calls))


def started() -> RunClock:
    clock = RunClock()
    clock.start(1_000)
    return clock


class Echo:
    """Gives back what it was called with; `gate` holds calls until it is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None, ToolContext]] = []
        self.running = self.most = 0
        self.gate: asyncio.Event | None = None
        self.began = asyncio.Event()

    async def call(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
        self.calls.append((name, arguments, context))
        self.began.set()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        finally:
            self.running -= 1
        return ToolOutcome(f"{name} of {context.call_id}")


def tools(executor: Any, slots: int | None = None, timeout_s: float = 30.0) -> ExecutedTools:
    return ExecutedTools(executor, slots=slots, timeout_s=timeout_s)


async def test_the_calls_of_an_answer_are_executed_with_their_arguments() -> None:
    echo = Echo()
    came = message(("c1", "bash", '{"a":1}'), ("c2", "read", "not json"))
    rows, results = await tools(echo).run(turn(ToolCall(name="recorded")), came, started())
    assert echo.calls == [
        ("bash", '{"a":1}', ToolContext("s", "t", "c1")),
        ("read", "not json", ToolContext("s", "t", "c2")),
    ]
    assert [tuple(each) for each in results] == [("c1", "bash of c1"), ("c2", "read of c2")]
    assert [(row.call_index, row.name, row.error) for row in rows] == [(0, "bash", None), (1, "read", None)]
    assert [row.result_tokens for row in rows] == [count_tokens(each.text) for each in results]


async def test_without_a_message_the_recorded_calls_are_executed_by_name() -> None:
    echo = Echo()
    recorded = turn(ToolCall(name="bash", duration_ms=9e9), ToolCall(name=None), ToolCall(agent_id="a"))
    rows, results = await tools(echo).run(recorded, None, started())
    assert [(name, arguments) for name, arguments, _ in echo.calls] == [("bash", None)]
    assert [row.error for row in rows] == [None, "the call names no tool", None]
    assert rows[2].agent_id == "a"
    assert rows[2].start_ns == rows[2].end_ns, "its turns take the time"
    assert len(results) == 2


async def test_a_call_that_starts_a_recorded_sub_agent_is_not_executed() -> None:
    echo = Echo()
    recorded = turn(ToolCall(name="task", agent_id="a"), ToolCall(name="task", agent_id="b"))
    came = message(("c1", "task", "{}"), ("c2", "bash", "{}"))
    rows, results = await tools(echo).run(recorded, came, started())
    assert [name for name, _, _ in echo.calls] == ["bash"]
    assert [(row.name, row.agent_id) for row in rows] == [("task", "a"), ("bash", None), ("task", "b")]
    assert [row.call_index for row in rows] == [0, 1, 2]
    assert [each.call_id for each in results] == ["c2"]


async def test_no_calls_take_no_time() -> None:
    assert await tools(Echo()).run(turn(), message(), started()) == ([], [])


@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=6), slots=st.integers(1, 4))
def test_never_more_at_a_time_than_there_are_slots_and_all_are_measured(
    counts: list[int], slots: int
) -> None:
    async def run() -> None:
        echo, clock = Echo(), started()
        executed = tools(echo, slots)
        before_ns = clock.now_ns()
        turns = [
            executed.run(turn(), message(*((f"c{k}", "x", "{}") for k in range(calls))), clock)
            for calls in counts
        ]
        made = [row for rows, _ in await asyncio.gather(*turns) for row in rows]
        assert len(made) == sum(counts)
        assert echo.most == min(slots, sum(counts))
        assert most_at_once([(row.start_ns, row.end_ns) for row in made]) <= slots
        for row in made:
            assert before_ns <= row.start_ns - row.queue_ns
            assert row.queue_ns >= 0
            assert row.start_ns <= row.end_ns <= clock.now_ns()

    asyncio.run(run())


async def test_calls_wait_for_a_slot_and_their_wait_is_told() -> None:
    echo, clock = Echo(), started()
    echo.gate = asyncio.Event()
    running = asyncio.create_task(
        tools(echo, 1).run(turn(), message(("c1", "x", ""), ("c2", "x", "")), clock)
    )
    await echo.began.wait()
    assert len(echo.calls) == 1
    echo.gate.set()
    (first, second), _ = await running
    assert second.start_ns - second.queue_ns == first.start_ns - first.queue_ns
    assert second.start_ns >= first.end_ns


async def test_a_call_that_takes_too_long_has_failed_and_gives_its_slot_back() -> None:
    echo = Echo()
    echo.gate = asyncio.Event()
    executed = tools(echo, 1, timeout_s=0.01)
    rows, results = await executed.run(turn(), message(("c1", "x", ""), ("c2", "x", "")), started())
    assert [row.error for row in rows] == ["x took longer than 0.01 s"] * 2
    assert results[0].text == "error: x took longer than 0.01 s"
    assert rows[1].start_ns >= rows[0].end_ns
    assert echo.running == 0


async def test_what_cannot_be_encoded_is_made_to() -> None:
    class Half:
        async def call(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
            return ToolOutcome("a\ud800b")

    _, (result,) = await tools(Half()).run(turn(), message(("c", "x", "")), started())
    assert result.text == "a?b"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of tools in the working directory."""
    name = f"tools_of_a_test_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(PYTHON_TOOLS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield name
    sys.modules.pop(name, None)


PYTHON_TOOLS = """
    import asyncio, json, threading

    def plain(name, arguments, context):
        if name == "fail":
            raise ValueError("no\\nluck")
        if name == "exit":
            raise SystemExit(3)
        if name == "number":
            return 5
        return json.dumps([name, arguments, context.session_id, context.turn_id, context.call_id])

    async def later(name, arguments, context):
        await asyncio.sleep(0)
        return plain(name, arguments, context)

    class Tools:
        async def __call__(self, name, arguments, context):
            return threading.current_thread().name

        def method(self, name, arguments, context):
            return threading.current_thread().name

    tools = Tools()
    held, cancelled = threading.Event(), threading.Event()

    def hang(name, arguments, context):
        held.wait()

    async def hang_later(name, arguments, context):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def too_few(name):
        return ""

    nothing = 3
"""


@pytest.mark.parametrize("function", ["plain", "later"])
async def test_a_python_callable_gets_name_arguments_and_context(module: str, function: str) -> None:
    async with PythonTools(f"{module}:{function}") as executor:
        outcome = await executor.call("bash", '{"a": 1}', CONTEXT)
        assert json.loads(outcome.text) == ["bash", '{"a": 1}', "s", "t", "c"]
        assert outcome.error is None
        assert json.loads((await executor.call("bash", None, CONTEXT)).text)[1] is None


@pytest.mark.parametrize("function", ["plain", "later"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fail", "ValueError: no luck"),
        ("number", "the callable returned int, not str"),
    ],
)
async def test_an_exception_is_a_failed_call(module: str, function: str, name: str, why: str) -> None:
    async with PythonTools(f"{module}:{function}") as executor:
        assert await executor.call(name, None, CONTEXT) == ToolOutcome(f"error: {why}", why)


async def test_even_one_that_would_end_the_process(module: str) -> None:
    async with PythonTools(f"{module}:plain") as executor:
        assert (await executor.call("exit", None, CONTEXT)).error == "SystemExit: 3"


@pytest.mark.parametrize("function", ["tools", "tools.method"])
async def test_callables_run_outside_the_loop_that_stamps(module: str, function: str) -> None:
    async with PythonTools(f"{module}:{function}") as executor:
        outcome = await executor.call("x", None, CONTEXT)
    assert outcome.error is None
    assert outcome.text not in ("MainThread", threading.current_thread().name)


async def test_a_callable_that_hangs_keeps_nobody(module: str) -> None:
    async with PythonTools(f"{module}:hang") as executor:
        (row,), _ = await tools(executor, timeout_s=0.01).run(turn(), message(("c", "x", "")), started())
        assert row.error == "x took longer than 0.01 s"
    sys.modules[module].held.set()


async def test_a_coroutine_that_hangs_is_cancelled(module: str) -> None:
    async with PythonTools(f"{module}:hang_later") as executor:
        (row,), _ = await tools(executor, timeout_s=0.01).run(turn(), message(("c", "x", "")), started())
        assert row.error == "x took longer than 0.01 s"
    assert sys.modules[module].cancelled.is_set()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("{module}", "must be python:MODULE:FUNCTION"),
        ("{module}:", "must be python:MODULE:FUNCTION"),
        ("{module}:absent", "has no absent"),
        ("{module}:nothing", "is no function but int"),
        ("{module}:too_few", r"must take \(name, arguments, context\)"),
        ("no.such.module:f", "cannot import no.such.module: ModuleNotFoundError"),
    ],
)
def test_callables_that_there_are_not(module: str, function: str, why: str) -> None:
    options = ToolOptions(tools=f"python:{function.format(module=module)}")
    with pytest.raises(AgentloadError, match=why) as failure:
        check_tools(options, "wall")
    assert "\n" not in str(failure.value)


def test_what_a_tool_says_of_its_failure_is_one_printable_line() -> None:
    outcome = failed("no\x1b[2J\r\nluck " + "!" * 1_000)
    assert outcome.error is not None
    assert outcome.error.startswith("no [2J luck !!!")
    assert (outcome.error.isprintable(), len(outcome.error)) == (True, 200)
    assert outcome.text == f"error: {outcome.error}"


def test_slots_and_limits_that_cannot_be() -> None:
    with pytest.raises(AgentloadError, match="tool_slots"):
        check_tools(ToolOptions(tool_slots=-1), "wall")
    with pytest.raises(AgentloadError, match="tool_timeout_s"):
        check_tools(ToolOptions(tool_timeout_s=float("nan")), "wall")


async def test_the_options_choose_the_executor(module: str, tmp_path: Path) -> None:
    server = shlex.join(
        [sys.executable, str(Path(__file__).with_name("mcp_server.py")), str(tmp_path / "log")]
    )
    rows: list[ToolCallRow] = []
    for given_tools, name in ((f"python:{module}:plain", "bash"), (f"mcp:{server}", "echo")):
        options = ToolOptions(tools=given_tools, tool_timeout_s=20)
        check_tools(options, "wall")
        assert "really executed" in tool_conditions(options)[0]
        async with live_tools(options, 1, "KEY") as executed:
            assert executed is not None
            made, _ = await executed.run(turn(), message(("c", name, "{}")), started())
            rows += made
    assert [(row.name, row.error) for row in rows] == [("bash", None), ("echo", None)]
