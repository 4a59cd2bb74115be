"""What runs a tool, whatever kind it is of."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from agentload._one_line import one_line


class ToolContext(NamedTuple):
    """Which call a tool is run for. call_id: the model's, or made up where the call is a recorded one."""

    session_id: str
    turn_id: str
    call_id: str


class ToolOutcome(NamedTuple):
    """What a call gave. text: for the model. error: why it failed, in one line; `None` if it did not."""

    text: str
    error: str | None = None


class ToolExecutor(Protocol):
    """Runs tools."""

    async def call(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
        """Run a tool; raises nothing but `CancelledError`.

        arguments: JSON text as the model wrote it, valid or not; `None` if they are not known.
        """
        ...


def failed(error: str) -> ToolOutcome:
    """A call that failed, which the model is told in the same words."""
    line = one_line(error)
    return ToolOutcome(f"error: {line}", line)
