"""What endpoints tell of their own token counts and times, in each provider's field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec.structs

from agentload._answers_json import converted
from agentload._answers_types import Usage
from agentload_simbackend import ServerTimes

_MOST = 2**53
"""What an endpoint tells of itself is believed only up to here: no count of tokens or nanoseconds is more."""

_Names = tuple[tuple[str, ...], ...]

_INPUT: _Names = (("prompt_tokens",), ("input_tokens",))
_OUTPUT: _Names = (("completion_tokens",), ("output_tokens",))
_CACHED: _Names = (
    ("prompt_tokens_details", "cached_tokens"),  # OpenAI, vLLM, SGLang
    ("input_tokens_details", "cached_tokens"),  # OpenAI's responses
    ("cache_read_input_tokens",),  # Anthropic
    ("prompt_cache_hit_tokens",),  # DeepSeek
    ("cached_tokens",),  # Moonshot
)
_WRITTEN: _Names = (
    ("cache_creation_input_tokens",),
    ("prompt_tokens_details", "cache_write_tokens"),
    ("input_tokens_details", "cache_write_tokens"),
)
_REASONING: _Names = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("reasoning_tokens",),  # SGLang
)


def usage_of(value: Any) -> Usage | None:
    """OpenAI's `usage` of any of its APIs, whose input includes cached tokens; `None` without a count."""
    if not isinstance(value, dict):
        return None
    usage = Usage(*(_count(value, names) for names in (_INPUT, _OUTPUT, _CACHED, _WRITTEN, _REASONING)))
    return usage if any(count is not None for count in usage) else None


def fresh_usage_of(value: Any) -> Usage | None:
    """Anthropic's `usage`, whose input leaves out the cached tokens; they are added."""
    usage = usage_of(value)
    if usage is None or usage.input_tokens is None:
        return usage
    whole = usage.input_tokens + (usage.cached_tokens or 0) + (usage.cache_written_tokens or 0)
    return usage._replace(input_tokens=whole)


def merged(first: dict[str, Any], second: Any) -> dict[str, Any]:
    """Anthropic's `usage` of two events of a stream, before it is read.

    The counts run on, so the larger is the later one; gateways send 0 where they do not know yet, or again.
    """
    if not isinstance(second, dict):
        return first
    both = dict(first)
    for name, value in second.items():
        known = both.get(name)
        if not (_is_count(known) and _is_count(value)) or value > known:
            both[name] = known if value is None else value
    return both


def times_of(value: Any) -> ServerTimes | None:
    """The object `agentload` of a simulated endpoint; `None` where it makes no sense."""
    times = converted(value, ServerTimes)
    if times is None:
        return None
    numbers = msgspec.structs.astuple(times)
    return times if all(number is None or 0 <= number <= _MOST for number in numbers) else None


def _count(usage: Mapping[str, Any], names: _Names) -> int | None:
    """The first count that stands under one of `names`, each a way down into the object."""
    for way in names:
        value: Any = usage
        for name in way:
            value = value.get(name) if isinstance(value, dict) else None
        if _is_count(value):
            return int(value)
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
