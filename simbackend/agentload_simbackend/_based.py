"""Deployments of a user's own that say only in what they differ from a built-in one.

base = "gemma4-31b/pd"
name = "mine"
speculation = false

[router]
kv_policy = "keep"
"""

from __future__ import annotations

from typing import Any

from agentload_traces import SpecError, printable

KEY = "base"


def merged(content: dict[str, Any], base: dict[str, Any], where: str) -> dict[str, Any]:
    """`base` with what `content` says in its place; `false` leaves a table or a text of the base out.

    A number is replaced as a whole, with its unit, kind and source. The name stays the file's own.
    """
    if "name" not in content:
        raise SpecError(f"{where}: name: missing; a deployment with a base needs a name of its own")
    return _merged(base, {key: value for key, value in content.items() if key != KEY})


def base_of(content: dict[str, Any], where: str) -> str | None:
    """The name of the deployment that a file starts from, if it does."""
    base = content.get(KEY)
    if base is not None and (not isinstance(base, str) or base.endswith(".toml")):
        raise SpecError(
            f"{where}: base: {printable(repr(base))} is not the name of a built-in deployment, "
            'such as "gemma4-31b/pd" or "deepseek-r1/afd"'
        )
    return base


def _merged(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in content.items():
        before = base.get(key)
        if value is False and not isinstance(before, bool):
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict) and not _is_other(value, before):
            result[key] = _merged(before, value)
        else:
            result[key] = value
    return result


def _is_other(value: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a table takes the place of another: a number, or a side of another type."""
    return "value" in before or value.get("type", before.get("type")) != before.get("type")
