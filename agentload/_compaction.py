"""What an agent does whose context is full: it is compacted, and goes on shorter.

The rule, by which a recording that outgrows a model is played on it nevertheless: where a turn's prompt and
answer exceed the limit, the prompt keeps as many of its first tokens as `SYSTEM_PERCENT` of the limit (system
prompt and tools), and is new text from there to `RESTART_PERCENT` of the limit. All later prompts of that
agent are shorter by as many tokens as this one. Where that would leave less than the system part, the agent
started over in the recording itself, and its prompts are played as recorded again; of the context that it
leaves only the system part can be shared.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from agentload._requests import asked_tokens
from agentload_traces import Turn

SYSTEM_PERCENT = 10
RESTART_PERCENT = 25


class _Agent(NamedTuple):
    """cut_tokens: by how much the prompts of an agent are shorter. latest: its latest turn, as recorded."""

    cut_tokens: int
    latest: Turn


class Compactor:
    """Compacts the turns of a trace to `limit_tokens` of prompt and answer; `take` them in its order.

    compactions, sessions: how many contexts were compacted so far, and in how many sessions.
    """

    def __init__(self, limit_tokens: int) -> None:
        self._limit = limit_tokens
        self._agents: dict[str | None, _Agent] = {}
        self._session_id: str | None = None
        self._counted = False
        self.system_tokens = limit_tokens * SYSTEM_PERCENT // 100
        self.restart_tokens = limit_tokens * RESTART_PERCENT // 100
        self.compactions = 0
        self.sessions = 0

    def take(self, turn: Turn) -> Turn:
        """The turn as it is to be played. One whose answer alone exceeds the limit stays too long."""
        if turn.session_id != self._session_id:
            self._session_id, self._agents, self._counted = turn.session_id, {}, False
        before = self._agents.get(turn.agent_id)
        cut = before.cut_tokens if before else 0
        starts_over = cut > 0 and turn.input_tokens - cut < self.system_tokens
        if starts_over:
            cut = 0
        prompt, output = turn.input_tokens - cut, asked_tokens(turn)
        full = prompt + output > self._limit > output
        if full:
            prompt = min(self.restart_tokens, self._limit - output)
            cut = turn.input_tokens - prompt
            self._count()
        self._agents[turn.agent_id] = _Agent(cut, turn)
        if not cut:
            return self._started_over(turn) if starts_over else turn
        beyond_system = prompt - min(self.system_tokens, prompt)
        new = beyond_system if full else _new_tokens(turn, before)
        return structs.replace(
            turn,
            input_tokens=prompt,
            new_input_tokens=None if new is None else min(new, beyond_system),
            trigger="compaction" if full else turn.trigger,
            # What was recorded of the whole prompt says nothing of the short one.
            cached_input_tokens=None,
            blocks=None,
            messages=None,
        )

    def _started_over(self, turn: Turn) -> Turn:
        """A turn as recorded, but for what it shares with the text that took the place of the recorded."""
        if turn.blocks is not None and turn.blocks.ids:
            return turn  # they name its text, and no text of a compacted prompt
        # Without a count a prompt goes on from the one before unless it is shorter, and the recorded one was.
        recorded = turn.input_tokens if turn.new_input_tokens is None else turn.new_input_tokens
        new = max(recorded, turn.input_tokens - self.system_tokens)
        return structs.replace(turn, new_input_tokens=new)

    def _count(self) -> None:
        self.compactions += 1
        self.sessions += not self._counted
        self._counted = True


def _new_tokens(turn: Turn, before: _Agent | None) -> int | None:
    """How much of a recorded prompt is new to its agent; `None` if it just goes on, or that is unknown."""
    if turn.new_input_tokens is not None:
        return turn.new_input_tokens
    blocks, others = turn.blocks, before.latest.blocks if before else None
    if blocks is None or others is None or blocks.block_tokens != others.block_tokens:
        return None
    equal = 0
    for one, other in zip(blocks.ids, others.ids, strict=False):
        if one != other:
            break
        equal += 1
    return None if equal == len(others.ids) else turn.input_tokens - equal * blocks.block_tokens
