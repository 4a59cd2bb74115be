"""Tools in the loop: the calls of an answer are really executed, so many at a time, and measured."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from agentload._answers_types import LiveMessage
from agentload._requests_fields import made_call_id
from agentload._requests_live import ToolResult
from agentload._tools._executor import ToolContext, ToolExecutor, ToolOutcome, failed
from agentload_traces import ToolCallRow, Turn, count_tokens

if TYPE_CHECKING:
    from agentload._wall_clock import RunClock


class _Call(NamedTuple):
    """A call to be made. agent_id: the sub-agent that it starts, which is played and not executed."""

    call_id: str
    name: str | None
    arguments: str | None
    agent_id: str | None


class ExecutedTools:
    """Executes the tool calls of all sessions; see `LiveTools`.

    slots: how many run at a time, first come, first served; `None` is without limit. A call that has timed
    out gives its slot back, though it may still be running.
    """

    def __init__(self, executor: ToolExecutor, *, slots: int | None, timeout_s: float) -> None:
        self._executor = executor
        self._slots = asyncio.Semaphore(slots) if slots is not None else None
        self._timeout_s = timeout_s

    async def run(
        self, turn: Turn, message: LiveMessage | None, clock: RunClock
    ) -> tuple[list[ToolCallRow], list[ToolResult]]:
        """Execute the calls of an answer, all at once; what they gave, in the order of the calls.

        message: `None` has those of the trace executed, by their recorded names and without arguments.
        """
        came_ns = clock.now_ns()
        calls = _recorded(turn) if message is None else _live(turn, message)
        made = await asyncio.gather(
            *(self._run(turn, index, call, clock, came_ns) for index, call in enumerate(calls))
        )
        rows = [row for row, _ in made]
        results = [
            ToolResult(call.call_id, outcome.text)
            for call, (_, outcome) in zip(calls, made, strict=True)
            if outcome is not None
        ]
        return rows, results

    async def _run(
        self, turn: Turn, index: int, call: _Call, clock: RunClock, came_ns: int
    ) -> tuple[ToolCallRow, ToolOutcome | None]:
        row = ToolCallRow(
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            call_index=index,
            name=call.name,
            agent_id=call.agent_id,
            start_ns=came_ns,
            end_ns=came_ns,
        )
        if call.agent_id is not None:
            return row, None
        async with AsyncExitStack() as held:
            if self._slots is not None:
                await held.enter_async_context(self._slots)
            row.start_ns = clock.now_ns()
            if self._slots is not None:
                row.queue_ns = row.start_ns - came_ns
            outcome = await self._call(turn, call)
            row.end_ns = clock.now_ns()
        # What is no text cannot be sent on.
        outcome = outcome._replace(text=outcome.text.encode("utf-8", "replace").decode())
        row.error = outcome.error
        # Not in the loop, which stamps the arrivals of other sessions' tokens.
        row.result_tokens = await asyncio.to_thread(count_tokens, outcome.text) if outcome.text else 0
        return row, outcome

    async def _call(self, turn: Turn, call: _Call) -> ToolOutcome:
        if not call.name:
            return failed("the call names no tool")
        context = ToolContext(turn.session_id, turn.turn_id, call.call_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._executor.call(call.name, call.arguments, context)
        except TimeoutError:
            return failed(f"{call.name} took longer than {self._timeout_s:g} s")


def _recorded(turn: Turn) -> list[_Call]:
    return [
        _Call(made_call_id(turn.turn_id, index), call.name, None, call.agent_id)
        for index, call in enumerate(turn.tool_calls)
    ]


def _live(turn: Turn, message: LiveMessage) -> list[_Call]:
    """The calls of the answer, then those of recorded sub-agents that it did not call, for they are played.

    A call by the name that started a sub-agent in the recording stands for that one.
    """
    agents = [call for call in turn.tool_calls if call.agent_id is not None]
    calls = []
    for came in message.tool_calls:
        agent = next((each for each in agents if each.name == came.name), None)
        if agent is not None:
            agents.remove(agent)
        calls.append(_Call(came.call_id, came.name, came.arguments, agent.agent_id if agent else None))
    calls += [_Call("", agent.name, None, agent.agent_id) for agent in agents]
    return calls
