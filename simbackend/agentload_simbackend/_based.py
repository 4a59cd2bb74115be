"""Deployments that say only in what they differ from another one.

base = "gemma4-31b/pd"
name = "mine"
speculation = false

[router]
kv_policy = "keep"

A base is a built-in deployment; MODEL/MODE, where MODEL may be the path of a TOML file; or a MODE alone: what
every deployment of that mode has, but for model and sizes. With another model than its base's, a file says
summary and speculation itself: what is inherited of them would be the other model's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentload_simbackend._quantity import hints_of
from agentload_simbackend._spec_words import struct_of
from agentload_simbackend._specs import DeploymentSpec
from agentload_traces import SpecError, printable

KEY = "base"

_OF_THE_MODEL = ("summary", "speculation")


def merged(content: dict[str, Any], base: dict[str, Any], where: str) -> dict[str, Any]:
    """`base` with what `content` says in its place; `false` leaves a table or a text of the base out.

    A number is replaced as a whole, with its unit, kind and source. The name stays the file's own.
    """
    if "name" not in content:
        raise SpecError(f"{where}: name: missing; a deployment with a base needs a name of its own")
    if _has_other_model(content, base):
        _check_other_model(content, base, where)
        base = {key: value for key, value in base.items() if key not in _OF_THE_MODEL}
    return _merged(base, {key: value for key, value in content.items() if key != KEY}, DeploymentSpec)


def base_of(content: dict[str, Any], where: str) -> str | None:
    """The name of the deployment that a file starts from, if it does."""
    base = content.get(KEY)
    if base is not None and (not isinstance(base, str) or base.endswith(".toml")):
        raise SpecError(
            f"{where}: base: {printable(repr(base))} is not the name of a deployment, "
            'such as "gemma4-31b/pd", "deepseek-r1/afd" or "my_model.toml/pd"'
        )
    return base


def check_sized_model(content: dict[str, Any], base: dict[str, Any], where: str) -> None:
    """Raise `SpecError` for another model than that by which a base MODEL/MODE was sized."""
    if _has_other_model(content, base):
        said = printable(content["model"])
        raise SpecError(
            f'{where}: model: is "{said}", but the base is sized for "{printable(base["model"])}"; '
            f'write base = "{said}/{base["mode"]}" and leave model out'
        )


def _has_other_model(content: dict[str, Any], base: dict[str, Any]) -> bool:
    model = content.get("model")
    return isinstance(model, str) and "model" in base and model != base["model"]


def _check_other_model(content: dict[str, Any], base: dict[str, Any], where: str) -> None:
    missing = [key for key in _OF_THE_MODEL if key in base and key not in content]
    if missing:
        none = ", or speculation = false" if "speculation" in missing else ""
        raise SpecError(
            f"{where}: {missing[0]}: missing; with another model than the base's, "
            f"{printable(base['model'])}, {' and '.join(missing)} must be said anew{none}"
        )


def _merged(
    base: dict[str, Any], content: dict[str, Any], shape: type[msgspec.Struct] | None
) -> dict[str, Any]:
    """shape: what the table must be in the end, if that is known."""
    hints = hints_of(shape) if shape is not None else {}
    optional = {field.name for field in msgspec.structs.fields(shape) if not field.required} if shape else ()
    result = dict(base)
    for key, value in content.items():
        before = base.get(key)
        # What nothing knows stays, for the check of keys to refuse it.
        if value is False and not isinstance(before, bool) and (key in base or key in optional):
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict) and not _is_other(value, before):
            result[key] = _merged(before, value, struct_of(hints.get(key), before))
        else:
            result[key] = value
    return result


def _is_other(value: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a table takes the place of another: a number, or a side of another type."""
    return "value" in before or value.get("type", before.get("type")) != before.get("type")
