"""What is published of the speculation of a model, for deployments made from a template."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from agentload_simbackend._spec_files import built_in, names, parse
from agentload_simbackend._specs import Mode

_EXTERNAL = "external"
"""A drafter beside any model, with the acceptance lengths of another model: none of its own are published."""

_BORROWED = "; tokens a step borrowed from Gemma 4 31B"


class KnownSpeculation(NamedTuple):
    """The table `speculation` of a deployment's file, and what its summary must say of it."""

    content: dict[str, Any]
    said: str

    @property
    def keeps_kv(self) -> bool:
        """Whether its drafter has a KV cache of its own, and so reads none of the target's."""
        drafter = parse(built_in("models", self.content["drafter"]))
        return bool(drafter["kv_elements_per_token"]["value"])


def speculation_of(model: str, mode: Mode) -> KnownSpeculation | None:
    """Of a model's own drafter; in mode drafter of one that reads nothing of its target.

    Such a drafter is taken to do as well as the model's own and no better, with the same K.
    """
    own = copy.deepcopy(parse(built_in("speculation", model))) if model in names("speculation") else None
    if mode != "drafter":
        return KnownSpeculation(own, "") if own is not None else None
    external = copy.deepcopy(parse(built_in("speculation", _EXTERNAL)))
    if own is None:
        return KnownSpeculation(external, _BORROWED)
    drafter, own["drafter"] = own["drafter"], external["drafter"]
    for length in own["acceptance_length"].values():
        said = f"of the model's own drafter, {drafter}, taken over for one beside it"
        length["note"] = f"{length['note']}; {said}" if "note" in length else said
        length["kind"] = "estimate"
    return KnownSpeculation(own, "")
