"""From the times of a weka conversation to what each turn waited for, and how long.

What the files hold, found from the published samples:

- `t` is the send time, after the first in whole seconds. `think_time` is no gap: it grows over turns that
  lack `api_time`, and after a tool call it contains the turn's own response time about once. So the gap is
  worked out from `t`, and a tool's duration is the gap less the turn's own response time, never below 0.
- Streamed turns may lack `api_time`. The estimate, `TTFT_S` + output / `TOKENS_PER_S`, has both figures
  from the turns of the published 710 files that do have it (medians: first token after 2.5 s, then 58
  tokens/s).
- A sub-agent marker's `t` is when the sub-agent ended (its `t - duration_ms` falls within a second of the
  end of the turn before it). `t` of nested requests starts at 0 there; other sets of this format count it
  from the start of the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentload_traces._records import ToolCall, Trigger

TTFT_S = 2.5
TOKENS_PER_S = 58.0
ROUNDING_S = 2.0
"""How far two times that belong together lie apart: both are rounded to whole seconds."""


@dataclass(kw_only=True)
class Draft:
    """A turn whose place in the graph is being worked out. Times count from the start of the conversation.

    answer_s: recorded or estimated response time. stop: why the answer ended; "" or `None` is unknown.
    has_tool_result: a tool result is among what is new in the prompt.
    """

    turn_id: str
    agent_id: str | None
    start_s: float
    answer_s: float
    stop: str | None
    has_tool_result: bool
    wait_for: tuple[str, ...] = ()
    parent_turn_id: str | None = None
    trigger: Trigger | None = None
    delay_s: float | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        """When the answer was whole."""
        return self.start_s + self.answer_s


def estimated_answer_s(output_tokens: int | None) -> float:
    """Return the response time of a turn that lacks one."""
    return TTFT_S + (output_tokens or 0) / TOKENS_PER_S


def milliseconds(seconds: float) -> float:
    """Return milliseconds, rounded to whole microseconds."""
    return round(seconds * 1000.0, 3)


def link_first(draft: Draft, parent: Draft | None) -> None:
    """Place the first turn of an agent: at the start of the session, or after the turn that started it."""
    if parent is None:
        draft.trigger = "tool" if draft.has_tool_result else "user"
        return
    draft.parent_turn_id = parent.turn_id
    draft.delay_s = max(0.0, draft.start_s - parent.end_s)


def link_next(draft: Draft, before: Draft, subagents: Sequence[Draft]) -> None:
    """Place a turn after the one before it and after the last turns of the sub-agents which that one started.

    A tool's duration becomes a tool call of the turn before. After sub-agents, which are that turn's calls,
    what is left of the gap is the turn's own delay, counted from the last sub-agent's end, so that nothing
    counts twice.
    """
    released_s = max(gate.end_s for gate in (before, *subagents))
    gap_s = max(0.0, draft.start_s - released_s)
    draft.wait_for = tuple(dict.fromkeys(gate.turn_id for gate in (before, *subagents)))
    draft.trigger = _trigger(draft, before)
    if draft.trigger != "tool":
        draft.delay_s = gap_s
        return
    wait_s = max(0.0, gap_s - draft.answer_s)
    if subagents:
        draft.delay_s = wait_s
    else:
        before.tool_calls.append(ToolCall(duration_ms=milliseconds(wait_s)))
        draft.delay_s = 0.0


def _trigger(draft: Draft, before: Draft) -> Trigger | None:
    if draft.has_tool_result and before.stop != "end_turn":
        return "tool"
    # A tool result after an answer that called no tool is an old one, sent again with a rewritten history.
    return "user" if before.stop else None


def subagent_offset_s(
    first_nested_s: float, marker_s: float | None, duration_s: float | None, parent_end_s: float | None
) -> float:
    """Return what to add to the times of a sub-agent's requests.

    first_nested_s: `t` of the first of them. marker_s, duration_s: `t` and duration of the marker.
    parent_end_s: when the turn that started the sub-agent was answered.
    """
    floor_s = parent_end_s or 0.0
    if first_nested_s > 0.0 and first_nested_s >= floor_s - ROUNDING_S:
        return 0.0  # counted from the start of the conversation already
    start_s = marker_s
    if marker_s is not None and duration_s is not None and marker_s - duration_s >= floor_s - ROUNDING_S:
        start_s = marker_s - duration_s  # the marker stands where the sub-agent ended
    return floor_s if start_s is None else max(floor_s, start_s)
