"""Which numbers a derived figure rests on: its kind is the weakest of theirs, so none may be left out."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import msgspec
import pytest

from agentload_simbackend import Deployment, list_deployments, load_deployment
from agentload_simbackend._figures import derived
from agentload_simbackend._quantity import Number, Quantity
from agentload_traces import SpecError

FACTORS = (0.75, 0.98, 1.02, 2.0)
"""Large ones too: what comes in whole streams or racks moves in steps."""

PARTS = {
    "model": "model",
    "drafter": "drafter",
    "link": "link",
    "split_link": "split_link",
    **{
        f"{side}.{part}": f"{side}_{part}"
        for side in ("prefill", "decode", "draft")
        for part in ("rack", "chip")
    },
}
"""Fields of a deployment by the first part of the paths of their numbers; all else is in its spec."""


@pytest.mark.parametrize(
    "name", [*list_deployments(), "gpt-oss-120b/afd", "nemotron-3-super-120b-a12b/rubin"]
)
def test_a_figure_moves_only_with_the_numbers_that_it_names(name: str) -> None:
    deployment = load_deployment(name)
    before = list(derived(deployment))
    unnamed = set()
    for number in deployment.numbers():
        tried = 0
        for factor in FACTORS:
            try:
                after = list(derived(changed(deployment, number, factor)))
            except SpecError:
                continue  # Some do not fit with more, or have no reach for it.
            tried += 1
            if len(after) < len(before):
                continue  # The model's context is too short for some.
            for old, new in zip(before, after, strict=True):
                if new.value != old.value and not re.match(old.paths, number.path):
                    unnamed.add(f"{old.name}: {number.path}")
        assert tried, number.path
    assert sorted(unnamed) == []


def changed(deployment: Deployment, number: Number, factor: float) -> Deployment:
    """The deployment with more or less of one number."""
    for prefix, field in PARTS.items():
        spec = getattr(deployment, field)
        if spec is not None and number.path.startswith(f"{prefix}."):
            rest = number.path.removeprefix(f"{prefix}.").split(".")
            parts: dict[str, Any] = {field: replaced(spec, rest, number.quantity, factor)}
            return dataclasses.replace(deployment, **parts)
    return dataclasses.replace(
        deployment, spec=replaced(deployment.spec, number.path.split("."), number.quantity, factor)
    )


def replaced(part: Any, path: list[str], quantity: Quantity, factor: float) -> Any:
    """`part` with another number at `path`; indices in paths begin at 1."""
    if not path:
        value = quantity.value * factor
        if quantity.whole == quantity.value:
            value = float(round(value) or 1)
        return msgspec.structs.replace(quantity, value=value)
    key, *rest = path
    if isinstance(part, dict):
        found: Any = next(each for each in part if str(each) == key)
        return {**part, found: replaced(part[found], rest, quantity, factor)}
    if isinstance(part, tuple):
        index = int(key) - 1
        return (*part[:index], replaced(part[index], rest, quantity, factor), *part[index + 1 :])
    return msgspec.structs.replace(part, **{key: replaced(getattr(part, key), rest, quantity, factor)})
