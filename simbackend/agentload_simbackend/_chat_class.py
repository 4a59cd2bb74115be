"""Whom a request wants to be served before, and what it is about.

The latency class is the first of these that says one: the header `x-agentload-class`, Dynamo's
`nvext.agent_hints` (docs.nvidia.com/dynamo, "Priority Scheduling": higher is sooner) and vLLM's `priority`
(lower is sooner). None of them: standard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import get_args

from agentload_simbackend._api import LatencyClass
from agentload_simbackend._chat import AgentHints, ChatRequest
from agentload_simbackend._server_errors import ApiError
from agentload_simbackend._wire import CLASS_HEADER, CONTENT_HEADER

LATENCY_CLASSES: tuple[LatencyClass, ...] = get_args(LatencyClass)


def latency_class(headers: Mapping[str, str], chat: ChatRequest) -> LatencyClass:
    """The class of a request. Raises `ApiError` (400) if the header names none."""
    named = headers.get(CLASS_HEADER)
    if named is not None:
        for known in LATENCY_CLASSES:
            if named == known:
                return known
        raise ApiError(f"Invalid header {CLASS_HEADER}: {named!r}; must be {_either(LATENCY_CLASSES)}.")
    hints = chat.nvext.agent_hints if chat.nvext else None
    sooner = (hints and _hinted(hints)) or -(chat.priority or 0)
    return "interactive" if sooner > 0 else "batch" if sooner < 0 else "standard"


def _hinted(hints: AgentHints) -> float:
    """More than 0 for sooner than others, less for later, 0 if it says neither."""
    return hints.strict_priority or hints.priority or hints.latency_sensitivity or 0


def content_class(headers: Mapping[str, str], known: Collection[str] | None) -> str | None:
    """The content class of a request; `None` if it names none.

    known: those that the deployment has (`None`: any). Raises `ApiError` (400) for another.
    """
    named = headers.get(CONTENT_HEADER)
    if named is not None and known is not None and named not in known:
        choice = (
            f"must be {_either(sorted(known))}"
            if known
            else "this deployment does not speculate, leave it out"
        )
        raise ApiError(f"Invalid header {CONTENT_HEADER}: {named!r}; {choice}.")
    return named


def _either(words: Collection[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} or {last}" if some else last
