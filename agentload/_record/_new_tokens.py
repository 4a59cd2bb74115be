"""Token counts of a recorded turn: the endpoint's own where it tells them, o200k_base counts where not."""

from __future__ import annotations

from typing import NamedTuple

from agentload._options import Api
from agentload._record._answer import Answered
from agentload._record._prompt import Prompt
from agentload._record._sessions import Place


class Counted(NamedTuple):
    """Counts of a turn, as in the trace. reasoned: there was reasoning in the answer."""

    input_tokens: int
    new_tokens: int
    cached_tokens: int | None
    output_tokens: int | None
    reasoned: bool


def new_tokens(api: Api, prompt: Prompt, answered: Answered, place: Place, before: Counted | None) -> Counted:
    """Count a turn; before: the agent's previous one, `None` for its first."""
    counted = prompt.tokens
    if prompt.previous is not None and place.how == "continued" and before is not None:
        # The endpoint has what came before; the request holds only what is new.
        counted += before.input_tokens + (before.output_tokens or 0)
    whole = answered.input_tokens if answered.input_tokens is not None else counted
    cached = None if answered.cached_tokens is None else min(answered.cached_tokens, whole)
    shared = 0
    if before is not None:
        shared = _shared(api, prompt, place, before, whole, counted)
        if cached is not None and prompt.setup != place.context.setup:
            shared = max(shared, cached)  # the system prompt has changed somewhere behind what was cached
        shared = min(shared, before.input_tokens + (before.output_tokens or 0))
    if shared >= whole and place.how == "continued":
        # Endpoints may count an answer higher when they give it than when it comes back in a prompt.
        came = sum(item.tokens for item in prompt.items[place.shared + place.follows :])
        shared = whole - min(whole, came)
    output = answered.output_tokens if answered.output_tokens is not None else answered.counted_tokens
    return Counted(whole, whole - shared, cached, output, answered.reasoned)


def _shared(api: Api, prompt: Prompt, place: Place, before: Counted, whole: int, counted: int) -> int:
    """How many leading tokens of a prompt the agent's previous prompt and answer had."""
    same_start = prompt.setup == place.context.setup
    if prompt.previous is not None and place.how == "continued":
        return before.input_tokens + (before.output_tokens or 0)
    if not same_start:
        return 0
    if place.how == "continued":
        answer = before.output_tokens or 0
        if api == "completions":
            return before.input_tokens + answer
        if not place.follows:
            return before.input_tokens
        follows = prompt.items[place.shared : place.shared + place.follows]
        # Reasoning stands before the answer; where it is not sent again, the answer's cache is of no use.
        lost = before.reasoned and api == "chat" and not any(item.reasons for item in follows)
        return before.input_tokens + (0 if lost else answer)
    if not counted:
        return 0
    tokens = prompt.setup_tokens + sum(item.tokens for item in prompt.items[: place.shared])
    return tokens * whole // counted
