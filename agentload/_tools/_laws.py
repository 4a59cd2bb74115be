"""How long tool calls take, by law: read from a TOML file, drawn the same on every machine.

    [default]                       # of every tool that has no law of its own
    law = "lognormal"
    median_s = 0.4
    p90_s = 3.0

    [tools.web_search]
    law = "gamma"
    shape = 2.0
    mean_s = 1.5

    [tools.pytest]                  # mostly short, now and then very long
    law = "mixture"
    parts = [
      { share = 95, of = { law = "quantiles", points_s = [[0, 0.2], [50, 1.0], [100, 4.0]] } },
      { share = 5, of = { law = "pareto", least_s = 10.0, shape = 1.5 } },
    ]

    [tools.read_file]
    law = "constant"
    value_s = 0.02

A draw is a pure function of seed, session, turn and the call's place in it, in integers and portable floats.
"""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec

from agentload._generate._draws import choice_function, quantile_function
from agentload._portable_math import exp, ln
from agentload._random_laws import Draw, Uniforms, gamma, normal, uniforms
from agentload._toml_file import from_toml
from agentload_traces import AgentloadError, ToolCall, decodable

LONGEST_S = 86_400.0
"""No tool takes longer than a day; what is drawn beyond counts as one."""

_NS_PER_S = 1_000_000_000
_Z90 = 1.2815515655446004
"""The standard normal law's quantile of 0.9."""

_WORD_BITS = 32
_number = Struct("<Q")
"""A draw of a law, in seconds."""


class _Law(msgspec.Struct, tag_field="law", forbid_unknown_fields=True, frozen=True):
    def problem(self) -> str | None:
        """What is wrong with a value, after the name of its field."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not (isfinite(value) and value > 0):
                return f"{name}: {value:g} should be more than 0"
        return None

    def draw(self) -> Draw:
        """What draws from the law."""
        raise NotImplementedError


class Constant(_Law, tag="constant", frozen=True):
    """The same time for each call."""

    value_s: float

    def problem(self) -> str | None:
        """See `_Law`; 0 may be."""
        return None if self.value_s == 0 else super().problem()

    def draw(self) -> Draw:
        """See `_Law`."""
        return lambda numbers: self.value_s


class Quantiles(_Law, tag="quantiles", frozen=True):
    """A table: (percent, seconds) points of the quantile function, straight between them."""

    points_s: tuple[tuple[float, float], ...]

    def problem(self) -> str | None:
        """See `_Law`."""
        points = self.points_s
        if len(points) < 2 or points[0][0] != 0 or points[-1][0] != 100:
            return "points_s: must go from percent 0 to percent 100"
        if not all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(points)):
            return "points_s: percents must increase and seconds must not decrease"
        if not (points[0][1] >= 0 and points[-1][1] <= LONGEST_S):
            return f"points_s: seconds must lie between 0 and {LONGEST_S:g}"
        return None

    def draw(self) -> Draw:
        """See `_Law`."""
        value_at = quantile_function(self.points_s, _NS_PER_S)
        return lambda numbers: value_at(int(next(numbers) * 2**_WORD_BITS)) / _NS_PER_S


class LogNormal(_Law, tag="lognormal", frozen=True):
    """The logarithm is normal, with this median and this 90th percentile."""

    median_s: float
    p90_s: float

    def problem(self) -> str | None:
        """See `_Law`."""
        if (wrong := super().problem()) is not None:
            return wrong
        return None if self.p90_s >= self.median_s else f"p90_s: {self.p90_s:g} is less than median_s"

    def draw(self) -> Draw:
        """See `_Law`."""
        median_s, sigma = self.median_s, ln(self.p90_s / self.median_s) / _Z90
        return lambda numbers: _times_e_to(median_s, sigma * normal(numbers))


class Gamma(_Law, tag="gamma", frozen=True):
    """shape 1 is the exponential law; more is narrower, less is burstier."""

    shape: float
    mean_s: float

    def draw(self) -> Draw:
        """See `_Law`."""
        scale_s = self.mean_s / self.shape
        return lambda numbers: gamma(self.shape, numbers) * scale_s


class Pareto(_Law, tag="pareto", frozen=True):
    """A heavy tail: the share of calls longer than x is (least / x) to the power of `shape`."""

    least_s: float
    shape: float

    def draw(self) -> Draw:
        """See `_Law`."""
        return lambda numbers: _times_e_to(self.least_s, -ln(next(numbers)) / self.shape)


class Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """share: weight among the parts. of: a law that is no mixture."""

    share: int
    of: Constant | Quantiles | LogNormal | Gamma | Pareto


class Mixture(_Law, tag="mixture", frozen=True):
    """Each call follows one of the parts."""

    parts: tuple[Part, ...]

    def problem(self) -> str | None:
        """See `_Law`."""
        if not self.parts:
            return "parts: must hold at least one part"
        for number, part in enumerate(self.parts):
            if not 1 <= part.share < 2**31:
                return f"parts[{number}].share: {part.share} should be 1 or more"
            if (wrong := part.of.problem()) is not None:
                return f"parts[{number}].of.{wrong}"
        return None

    def draw(self) -> Draw:
        """See `_Law`."""
        draws = [part.of.draw() for part in self.parts]
        which = choice_function({number: part.share for number, part in enumerate(self.parts)})
        return lambda numbers: draws[which(int(next(numbers) * 2**_WORD_BITS))](numbers)


Law = Constant | Quantiles | LogNormal | Gamma | Pareto | Mixture


class _File(msgspec.Struct, forbid_unknown_fields=True):
    default: Any
    tools: dict[str, Any] = {}


class ToolLaws:
    """The laws of a file; `duration_ns` draws from them."""

    def __init__(self, default: Law, tools: dict[str, Law], seed: int) -> None:
        self._default = default.draw()
        self._tools = {name: law.draw() for name, law in tools.items()}
        self._seed = seed

    def duration_ns(self, session_id: str, turn_id: str, index: int, call: ToolCall) -> int:
        """How long a call takes: call `index` of a turn."""
        draw = self._tools.get(call.name, self._default) if call.name is not None else self._default
        seconds = draw(_uniforms(self._seed, session_id, turn_id, index))
        return round(min(seconds, LONGEST_S) * _NS_PER_S)


def load_laws(path: Path) -> tuple[Law, dict[str, Law]]:
    """The default law of a file, and those of tools by name.

    Raises `AgentloadError`, with the file and the field, if it cannot be read or a field of it is wrong.
    """
    where = decodable(path)
    file = from_toml(lambda: path.read_text(encoding="utf-8"), where, _File)
    default = _law(where, "default", file.default)
    return default, {name: _law(where, f"tools.{name}", value) for name, value in file.tools.items()}


def _law(where: str, field: str, value: Any) -> Law:
    try:
        law: Law = msgspec.convert(value, Law)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise AgentloadError(f"{where}: {field}{path.rstrip('`')}: {what}") from None
    if (wrong := law.problem()) is not None:
        raise AgentloadError(f"{where}: {field}.{wrong}")
    return law


def _uniforms(seed: int, session_id: str, turn_id: str, index: int) -> Uniforms:
    """The numbers of one call, whoever asks and whatever was drawn before."""
    session, turn = (text.encode("utf-8", "surrogatepass") for text in (session_id, turn_id))
    head = _number.pack(seed) + _number.pack(len(session))
    return uniforms(head + session + turn + _number.pack(index), b"tool call law")


def _times_e_to(value: float, power: float) -> float:
    """`value` times e to the power, at most `LONGEST_S`."""
    if power <= 0:
        return value * exp(power)
    inverse = exp(-power)
    return LONGEST_S if inverse * LONGEST_S <= value else value / inverse
