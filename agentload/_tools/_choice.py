"""What stands after `--tools`, taken apart."""

from __future__ import annotations

from typing import Literal, NamedTuple

from agentload_traces import AgentloadError

KINDS = "recorded, law:FILE, python:MODULE:FUNCTION or mcp:COMMAND"


class ToolChoice(NamedTuple):
    """kind: what tool calls do. what: the file of laws, MODULE:FUNCTION, or the server's command."""

    kind: Literal["recorded", "law", "python", "mcp"]
    what: str = ""

    @property
    def executed(self) -> bool:
        """Whether tools are really executed."""
        return self.kind in ("python", "mcp")


def chosen_tools(tools: str) -> ToolChoice:
    """Take `--tools` apart; raises `AgentloadError` for what it cannot be."""
    kind, colon, what = tools.partition(":")
    if tools == "recorded":
        return ToolChoice("recorded")
    if kind in ("law", "python", "mcp") and colon:
        if not what.strip():
            raise AgentloadError(f"--tools {tools}: names nothing after the colon; must be {KINDS}")
        return ToolChoice(kind, what)  # type: ignore[arg-type]
    raise AgentloadError(f"--tools {tools}: must be {KINDS}")
