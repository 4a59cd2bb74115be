"""Write a trace of an agent whose tools take 30 s, among twenty others whose tools take 5 s.

Example: python examples/crowd.py crowd.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from agentload_traces import ToolCall, Turn, write_trace


def agent(name: str, *, turns: int, tokens: int, tool_s: float) -> Iterator[Turn]:
    """The turns of a session: a first prompt of so many tokens, and 150 more with each turn."""
    for index in range(turns):
        yield Turn(
            session_id=name,
            turn_id=f"turn {index}",
            wait_for=(f"turn {index - 1}",) if index else (),
            start_ms=0.0 if index == 0 else None,
            input_tokens=tokens + 150 * index,
            output_tokens=100,
            tool_calls=(ToolCall(name="tool", duration_ms=tool_s * 1e3),),
        )


def crowd() -> Iterator[Turn]:
    """All of them, from the same moment on."""
    yield from agent("slow tools", turns=5, tokens=100_000, tool_s=30)
    for number in range(20):
        yield from agent(f"other {number}", turns=25, tokens=53_000, tool_s=5)


if __name__ == "__main__":
    write_trace(sys.argv[1], crowd())
