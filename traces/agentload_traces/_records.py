"""The trace on disk: one `Turn` a line, the turns of one session together.

A turn is one LLM request. Unknown is `None`, never 0. Units stand in the names.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Trigger = Literal["user", "tool", "compaction"]
"""Why a turn was sent: a person wrote, tool results came back, or the agent compacts its context."""

CountQuality = Literal["measured", "max_of_lines", "estimated", "placeholder"]
"""How an output token count is known; see `Turn.output_quality`."""

BlockScope = Literal["session", "trace"]
"""Where equal block ids mean equal text: within one session, or in the whole trace."""

UINT64_MAX = 2**64 - 1

BlockId = Annotated[int, "unsigned 64-bit"]
"""Identity of a prefix block, 0 to `UINT64_MAX`."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One tool call made by a turn's response.

    `duration_ms` is the time from the end of the response to the result; `None` is unknown.
    The calls of one turn run in parallel. A call that starts a sub-agent names it in `agent_id`;
    its duration is the sub-agent's, which the graph of turns gives, so `duration_ms` is `None`.
    """

    name: str | None = None
    duration_ms: float | None = None
    arguments_tokens: int | None = None
    result_tokens: int | None = None
    agent_id: str | None = None


class PrefixBlocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identity of the leading tokens of a prompt, in blocks of `block_tokens` tokens.

    `ids` are unsigned 64-bit; two prompts whose first k ids are equal share their first k blocks.
    A trailing partial block may or may not have an id (Mooncake gives one, weka none).
    """

    ids: tuple[BlockId, ...]
    block_tokens: int
    scope: BlockScope = "session"


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A recorded message; only in traces made with text kept."""

    role: str
    content: str | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One LLM request of a session; one line of a native trace.

    session_id: the session; its turns stand together in a trace.
    turn_id: unique in the session.
    wait_for: turn ids of this session, all on earlier lines. The turn may be sent when each of them has
        been answered and its tool calls have ended, `delay_ms` later. Empty for the first turn.
    parent_turn_id: for the first turn of a sub-agent, the turn whose response started it. The turn
        waits for that response, not for its tool calls; `delay_ms` counts from there.
    agent_id: the sub-agent that sends the turn; `None` is the main agent.
    start_ms: recorded send time from the start of the trace, with all delay in it. A session begins at the
        `start_ms` of its first turn; that turn waits for nothing, and a `delay_ms` of it would come on top.
    delay_ms: think time between the last thing waited for and the send; `None` is unknown. It decides when a
        later turn is sent, whose `start_ms` only says when it was sent in the recording.
    trigger: what caused the turn.
    input_tokens: the whole prompt, cached part included.
    new_input_tokens: those of them that the previous turn of this agent did not hold in its prompt or output.
    cached_input_tokens: those that the recorded endpoint read from its cache.
    blocks: identity of the prompt's leading blocks.
    output_tokens: tokens of the answer, and how that count is known.
    tool_calls: the calls that the answer made.
    ttft_ms, duration_ms: recorded time to first token and to the end of the answer.
    source: provenance in the imported file ("line 12", "requests[3]").
    """

    session_id: str
    turn_id: str
    input_tokens: int
    output_tokens: int | None = None
    output_quality: CountQuality = "measured"
    wait_for: tuple[str, ...] = ()
    parent_turn_id: str | None = None
    agent_id: str | None = None
    start_ms: float | None = None
    delay_ms: float | None = None
    trigger: Trigger | None = None
    new_input_tokens: int | None = None
    cached_input_tokens: int | None = None
    blocks: PrefixBlocks | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    model: str | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    messages: tuple[Message, ...] | None = None
    source: str | None = None


class Session(msgspec.Struct, frozen=True):
    """The turns of one session, in the order of the trace (a turn stands after all that it waits for)."""

    session_id: str
    turns: tuple[Turn, ...]

    @property
    def start_ms(self) -> float | None:
        """Recorded start: the send time of the first turn; `None` if unknown."""
        return self.turns[0].start_ms if self.turns else None
