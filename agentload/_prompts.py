"""What each prompt of a session consists of, as runs of named text.

Equal keys are equal text, so a prompt's runs say which prefix it shares with which other prompt: with the
agent's previous prompt (from `new_input_tokens`), or with any prompt of the trace (from block ids).
Both the simulator's prefix cache and the text of real requests are made from these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentload_simbackend import PromptRun
from agentload_traces import PrefixBlocks, Session, Turn


class Prompt(NamedTuple):
    """The prompt of one turn.

    runs: pieces in order; their tokens sum to the turn's `input_tokens`.
    shared_tokens: how many leading tokens equal those of the agent's previous prompt and answer.
    """

    runs: tuple[PromptRun, ...]
    shared_tokens: int


class _Context(NamedTuple):
    runs: tuple[PromptRun, ...]
    prompt_tokens: int
    tokens: int
    block_ids: tuple[int, ...]


_EMPTY = _Context((), 0, 0, ())


def _cut(runs: tuple[PromptRun, ...], tokens: int) -> tuple[PromptRun, ...]:
    """The leading `tokens` tokens of `runs`."""
    kept = []
    for run in runs:
        if tokens <= 0:
            break
        kept.append(run if run.tokens <= tokens else PromptRun(run.key, tokens))
        tokens -= run.tokens
    return tuple(kept)


def shared_tokens(a: Sequence[PromptRun], b: Sequence[PromptRun]) -> int:
    """How many leading tokens two prompts share."""
    shared = 0
    for one, other in zip(a, b, strict=False):
        if one.key != other.key:
            break
        shared += min(one.tokens, other.tokens)
        if one.tokens != other.tokens:
            break
    return shared


def _equal_head(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many leading items two tuples share; long equal heads are compared at C speed."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PromptPlanner:
    """Plans the prompts of one session's agents; call `plan` for the turns of an agent in their order.

    salt: prompts under another one share nothing with these.
    """

    def __init__(self, session: Session, salt: str = "") -> None:
        self._salt = f"{salt}\0\0" if salt else ""
        self._session_id = session.session_id
        self._contexts: dict[str | None, _Context] = {}
        self._next_ids: dict[str, tuple[int, ...]] = {}
        latest: dict[str | None, str] = {}
        for turn in session.turns:
            if turn.blocks is not None and turn.agent_id in latest:
                self._next_ids[latest[turn.agent_id]] = turn.blocks.ids
            latest[turn.agent_id] = turn.turn_id

    def plan(self, turn: Turn) -> Prompt:
        """The prompt of `turn`, following the agent's previous one."""
        before = self._contexts.get(turn.agent_id, _EMPTY)
        if turn.blocks is not None and turn.blocks.ids:
            prompt = self._from_blocks(turn, turn.blocks, before)
            ids = turn.blocks.ids
        else:
            prompt = self._from_counts(turn, before)
            ids = ()
        self._contexts[turn.agent_id] = self._extend(turn, prompt, ids)
        return prompt

    def _own_key(self, turn: Turn) -> str:
        return f"{self._salt}{self._session_id}\0{turn.agent_id or ''}\0{turn.turn_id}"

    def _from_counts(self, turn: Turn, before: _Context) -> Prompt:
        total = turn.input_tokens
        if turn.new_input_tokens is not None:
            shared = min(total - turn.new_input_tokens, before.tokens)
        elif total >= before.prompt_tokens:
            shared = min(total, before.tokens)
        else:
            shared = 0
        runs = before.runs if shared == before.tokens else _cut(before.runs, shared)
        new = total - shared
        if not new:
            return Prompt(runs, shared)
        if shared and shared == before.tokens:
            # Appending to the last run keeps a long session at one run, so that a turn costs O(1).
            last = runs[-1]
            return Prompt((*runs[:-1], PromptRun(last.key, last.tokens + new)), shared)
        return Prompt((*runs, PromptRun(self._own_key(turn), new)), shared)

    def _from_blocks(self, turn: Turn, blocks: PrefixBlocks, before: _Context) -> Prompt:
        ids, size = blocks.ids, blocks.block_tokens
        scope = f"session\0{self._session_id}" if blocks.scope == "session" else "trace"
        scope = self._salt + scope
        whole = min(turn.input_tokens // size, len(ids))
        head = min(_equal_head(ids, before.block_ids), whole)
        if head > 1 and before.runs[0].tokens != size:
            head = 0
        runs = list(before.runs[:head])
        if runs:
            # A partial block that had a number may be whole now.
            runs[-1] = PromptRun(runs[-1].key, size)
        runs += [PromptRun(f"{scope}\0block\0{block}", size) for block in ids[head:whole]]
        rest = turn.input_tokens - whole * size
        if rest:
            block = self._block_at(turn, ids, whole, rest, size)
            key = self._own_key(turn) if block is None else f"{scope}\0block\0{block}"
            runs.append(PromptRun(key, rest))
        # All known blocks before the last are whole and equal, so only the end need be compared.
        equal = max(head - 1, 0)
        shared = equal * size + shared_tokens(before.runs[equal:], runs[equal:])
        return Prompt(tuple(runs), shared)

    def _block_at(self, turn: Turn, ids: tuple[int, ...], whole: int, rest: int, size: int) -> int | None:
        """The id of the partial block at the end of a prompt, if the trace gives it one.

        Some formats number it; in others it gets its number when the agent's next prompt fills it up.
        """
        if rest > size:
            return None
        if len(ids) > whole:
            return ids[whole]
        following = self._next_ids.get(turn.turn_id, ())
        return following[whole] if len(following) > whole and following[:whole] == ids[:whole] else None

    def _extend(self, turn: Turn, prompt: Prompt, ids: tuple[int, ...]) -> _Context:
        """The context once the turn is answered: the answer continues the prompt's last run."""
        output = turn.output_tokens or 0
        if ids or not prompt.runs:
            # Where blocks name the text, the next turn's blocks name the answer's text too.
            return _Context(prompt.runs, turn.input_tokens, turn.input_tokens, ids)
        last = prompt.runs[-1]
        runs = (*prompt.runs[:-1], PromptRun(last.key, last.tokens + output))
        return _Context(runs, turn.input_tokens, turn.input_tokens + output, ())
