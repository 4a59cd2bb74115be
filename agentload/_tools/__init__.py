"""What tool calls do: take their recorded time, one that is drawn, or really run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentload._options import ToolOptions
from agentload._player import CallTime
from agentload._tools._choice import chosen_tools
from agentload._tools._executor import ToolContext, ToolExecutor, ToolOutcome
from agentload_traces import AgentloadError, counted, decodable

if TYPE_CHECKING:
    from agentload._wall_turns import LiveTools

__all__ = [
    "ToolContext",
    "ToolExecutor",
    "ToolOutcome",
    "call_times",
    "check_tools",
    "laws_file",
    "live_tools",
    "tool_conditions",
]


def check_tools(options: ToolOptions, clock: Literal["virtual", "wall"]) -> None:
    """Raise `AgentloadError` for tools that there are not, or not on this clock."""
    choice = chosen_tools(options.tools)
    if choice.executed and clock == "virtual":
        raise AgentloadError(
            f"--tools {options.tools}: really executes tools, which takes real time: add --clock wall"
        )
    if options.tool_slots is not None and options.tool_slots < 0:
        raise AgentloadError(f"tool_slots {options.tool_slots}: must be 0 or more")
    if not options.tool_timeout_s > 0:
        raise AgentloadError(f"tool_timeout_s {options.tool_timeout_s:g}: must be more than 0")
    if choice.kind == "law":
        from agentload._tools._laws import load_laws

        load_laws(Path(choice.what))
    elif choice.kind == "python":
        from agentload._tools._python import load_function

        load_function(choice.what)
    elif choice.kind == "mcp":
        from agentload._tools._mcp import server_command

        server_command(choice.what)


def laws_file(options: ToolOptions) -> Path | None:
    """The file of laws that tool times are drawn from, if they are."""
    choice = chosen_tools(options.tools)
    return Path(choice.what) if choice.kind == "law" else None


def call_times(options: ToolOptions, seed: int) -> CallTime | None:
    """How long tool calls take; `None` is as recorded. Raises `AgentloadError` for wrong laws."""
    choice = chosen_tools(options.tools)
    if choice.kind != "law":
        return None
    from agentload._tools._laws import ToolLaws, load_laws

    default, tools = load_laws(Path(choice.what))
    return ToolLaws(default, tools, seed).duration_ns


def tool_conditions(options: ToolOptions) -> list[str]:
    """What the numbers of a run hold for, a sentence each; none for recorded times."""
    choice = chosen_tools(options.tools)
    if choice.kind == "recorded":
        return []
    if choice.kind == "law":
        from agentload._tools._laws import load_laws

        named = len(load_laws(Path(choice.what))[1])
        which = f"{counted(named, 'tool')} by name, one law for all others" if named else "one for all tools"
        return [
            "Tool calls do not take their recorded times: theirs are drawn from the laws in"
            f" {decodable(choice.what)} ({which})."
        ]
    by = "a Python callable" if choice.kind == "python" else "an MCP server"
    return [
        f"Tools were really executed by {by} ({decodable(choice.what)}) and took the time that they took,"
        " whatever the speed of the replay."
    ]


@asynccontextmanager
async def live_tools(
    options: ToolOptions, slots: int | None, key_env: str
) -> AsyncIterator[LiveTools | None]:
    """What really executes tool calls, ready; `None` where nothing does. Ends what it started.

    slots: how many calls run at a time; `None` is without limit. key_env: see `McpServer`.
    Raises `AgentloadError` if it cannot be started.
    """
    choice = chosen_tools(options.tools)
    if not choice.executed:
        yield None
        return
    from agentload._tools._executing import ExecutedTools
    from agentload._tools._mcp import McpServer
    from agentload._tools._python import PythonTools

    tools = PythonTools(choice.what) if choice.kind == "python" else McpServer(choice.what, key_env)
    async with tools as executor:
        yield ExecutedTools(executor, slots=slots, timeout_s=options.tool_timeout_s)
