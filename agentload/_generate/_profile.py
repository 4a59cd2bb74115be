"""Profiles: what a kind of agent session looks like, as quantile tables with their sources.

A profile is a TOML file (see `agentload/profiles/coding.toml`). Units stand in the names of its tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from agentload._toml_file import from_toml
from agentload_traces import AgentloadError

Kind = Literal["fact", "vendor_claim", "estimate", "fitted"]

_Points = tuple[tuple[float, float], ...]


class ProfileError(AgentloadError):
    """A profile is unknown or wrong; the message names the file and the field."""


class _Sourced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Kind
    source: str


class Quantiles(_Sourced, frozen=True, kw_only=True):
    """A distribution: (percent, value) points of its quantile function, linear between them."""

    points: _Points


class Constant(_Sourced, frozen=True, kw_only=True):
    """One number."""

    value: float


class Weights(_Sourced, frozen=True, kw_only=True):
    """A distribution over small integers, by weight."""

    weights: dict[int, int]


class Tool(_Sourced, frozen=True, kw_only=True):
    """A class of tools: its share of all calls (a weight) and how long a call takes, in seconds."""

    share: int
    latency_s: _Points


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sessions to generate.

    first_prompt_tokens: prompt of the first turn; its first `fixed_prefix_tokens` are tool definitions and
        system prompt, which survive a compaction.
    new_tokens: what tool results or the user's message add to a prompt.
    turns_per_user_message: mean number of turns from one user message to the next.
    compaction_at_tokens: the context at which the agent compacts, drawn once a session.
    compacted_tokens: the prompt after it. summary_tokens: output of the compacting turn.
    """

    name: str
    summary: str
    first_prompt_tokens: Quantiles
    fixed_prefix_tokens: Constant
    new_tokens: Quantiles
    output_tokens: Quantiles
    turns_per_user_message: Constant
    tool_calls_per_turn: Weights
    think_time_s: Quantiles
    compaction_at_tokens: Quantiles
    compacted_tokens: Quantiles
    summary_tokens: Constant
    tools: dict[str, Tool]

    def not_measured(self) -> Iterator[tuple[str, str]]:
        """The figures that are not plain facts, as (name, kind)."""
        for name in self.__struct_fields__:
            figure = getattr(self, name)
            if isinstance(figure, _Sourced) and figure.kind != "fact":
                yield name, figure.kind
        for name, tool in self.tools.items():
            if tool.kind != "fact":
                yield f"tools.{name}", tool.kind


def profile_names() -> list[str]:
    """Names of the bundled profiles."""
    folder = resources.files("agentload") / "profiles"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a bundled profile by name, or a TOML file by path (a name that ends in `.toml`).

    Raises `ProfileError` when there is no such profile or a field of it is wrong.
    """
    where = str(name_or_path)
    if where.endswith(".toml"):
        file: Path | Traversable = Path(where)
    elif where in profile_names():
        file = resources.files("agentload") / "profiles" / f"{where}.toml"
    else:
        known = ", ".join(profile_names())
        raise ProfileError(f"no profile named {where!r}: take one of {known}, or the path of a .toml file")
    profile = from_toml(lambda: file.read_text(encoding="utf-8"), where, Profile, ProfileError)
    for problem in _problems(profile):
        raise ProfileError(f"{where}: {problem}")
    return profile


def _problems(profile: Profile) -> Iterator[str]:
    """What the types do not say."""
    for name in profile.__struct_fields__:
        figure = getattr(profile, name)
        if isinstance(figure, Quantiles):
            yield from _point_problems(f"{name}.points", figure.points, least=0)
    yield from _point_problems("output_tokens.points", profile.output_tokens.points, least=1)
    yield from _point_problems("first_prompt_tokens.points", profile.first_prompt_tokens.points, least=1)
    for name, tool in profile.tools.items():
        yield from _point_problems(f"tools.{name}.latency_s", tool.latency_s, least=0)
    yield from _weight_problems("tools.*.share", [tool.share for tool in profile.tools.values()])
    yield from _weight_problems(
        "tool_calls_per_turn.weights", list(profile.tool_calls_per_turn.weights.values())
    )
    if min(profile.tool_calls_per_turn.weights) < 1:
        yield "tool_calls_per_turn.weights: numbers of calls must be at least 1"
    if not profile.turns_per_user_message.value >= 1:
        yield f"turns_per_user_message.value: {profile.turns_per_user_message.value:g} should be at least 1"
    fixed, summary = profile.fixed_prefix_tokens.value, profile.summary_tokens.value
    if not (fixed >= 0 and summary >= 1):
        yield "fixed_prefix_tokens.value must be at least 0 and summary_tokens.value at least 1"
    least_compacted = profile.compacted_tokens.points[0][1]
    if least_compacted < fixed + summary:
        yield (
            f"compacted_tokens.points: {least_compacted:g} is less than what a compacted prompt holds, "
            f"fixed_prefix_tokens + summary_tokens = {fixed + summary:g}"
        )


def _point_problems(where: str, points: _Points, *, least: float) -> Iterator[str]:
    if len(points) < 2 or points[0][0] != 0 or points[-1][0] != 100:
        yield f"{where}: must go from percent 0 to percent 100"
    elif not all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(points)):
        yield f"{where}: percents must increase and values must not decrease"
    elif not points[0][1] >= least or not points[-1][1] < 2**31:
        yield f"{where}: values must lie between {least:g} and 2^31"


def _weight_problems(where: str, weights: Sequence[int]) -> Iterator[str]:
    if not weights or min(weights) < 0 or sum(weights) == 0:
        yield f"{where}: needs at least one positive weight and none below 0"
