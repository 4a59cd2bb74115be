"""A number with its unit, its source and what kind of knowledge it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from agentload_traces import SpecError, printable

Kind = Literal["fact", "vendor_claim", "estimate", "fitted"]
"""fact: read from a configuration or measured independently. vendor_claim: the maker says so.
estimate: analysts' or ours. fitted: chosen so that a published result comes out."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the strongest to the weakest: what rests on a fitted number cannot predict what it was fitted to."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One number of a spec file; `range` is what is plausible, where that is known."""

    value: float
    unit: str
    kind: Kind
    source: str
    note: str | None = None
    range: tuple[float, float] | None = None

    @property
    def whole(self) -> int:
        """The value as an integer (counts, tokens, bytes)."""
        return int(self.value)


class Unit(NamedTuple):
    """What a field of a spec expects: the unit and the bounds of its value.

    The bounds leave room for anything that may be built, and none for times or sizes that no clock can count.
    """

    name: str
    low: float = 0.0
    high: float = math.inf
    low_allowed: bool = False
    whole: bool = False


Bytes = Annotated[Quantity, Unit("B", high=1e18)]
BytesPerSecond = Annotated[Quantity, Unit("B/s", high=1e18)]
Flops = Annotated[Quantity, Unit("FLOP/s", high=1e21)]
PerSecond = Annotated[Quantity, Unit("1/s", high=1e15)]
Seconds = Annotated[Quantity, Unit("s", high=1e7, low_allowed=True)]
Fraction = Annotated[Quantity, Unit("fraction", high=1.0)]
Spread = Annotated[Quantity, Unit("fraction", high=1.0, low_allowed=True)]
Count = Annotated[Quantity, Unit("count", high=1e15, whole=True)]
CountOrZero = Annotated[Quantity, Unit("count", high=1e15, low_allowed=True, whole=True)]
DraftTokens = Annotated[Quantity, Unit("count", high=64, whole=True)]
Tokens = Annotated[Quantity, Unit("tokens", high=1e9, whole=True)]
TokensPerStep = Annotated[Quantity, Unit("tokens/step", low=1.0, high=65.0, low_allowed=True)]
BytesPerParameter = Annotated[Quantity, Unit("B/parameter", high=8.0)]
BytesPerElement = Annotated[Quantity, Unit("B/element", high=8.0, whole=True)]

_LEAST = 1e-6
"""Of a value that must be more than 0: less would make times overflow."""


class Number(NamedTuple):
    """A quantity with the place it has in a deployment, such as `decode.chip.sram`."""

    path: str
    quantity: Quantity


def numbers_of(spec: msgspec.Struct, prefix: str) -> Iterator[Number]:
    """Every quantity inside `spec`, in the order of its fields."""
    for name, value, _unit in _quantities(spec, prefix):
        yield Number(name, value)


def check_units(spec: msgspec.Struct, where: str) -> None:
    """Raise `SpecError` for the first quantity whose unit or value is not what its field expects."""
    for path, quantity, unit in _quantities(spec, ""):
        field = f"{where}: {printable(path)}"
        if quantity.unit != unit.name:
            raise SpecError(f'{field}: unit is "{printable(quantity.unit)}", must be "{unit.name}"')
        if not quantity.source.strip():
            raise SpecError(f"{field}: source is empty, must say where the number comes from")
        if not _inside(quantity.value, unit):
            raise SpecError(
                f"{field}: value is {quantity.value:g} {unit.name}, must be {_bounds(quantity.value, unit)}"
            )
        if quantity.range is not None and not -math.inf < quantity.range[0] <= quantity.range[1] < math.inf:
            raise SpecError(f"{field}: range is {list(quantity.range)}, must be [low, high]")


def weakest(kinds: Iterable[Kind]) -> Kind:
    """The weakest of some kinds of knowledge: what a number derived from all of them is."""
    return max(kinds, key=KINDS.index)


def shown_number(value: float, unit: str) -> str:
    """A number for people: `7.09 us`, `30.7 GB`, `2`."""
    if unit in ("count", "fraction"):
        return f"{value:.12g}"
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if unit in ("B", "B/s", "FLOP/s") and value >= scale:
            return f"{value / scale:.6g} {prefix}{unit}"
    if unit == "s" and 0 < value < 0.1:
        return f"{value * 1e3:.6g} ms" if value >= 1e-3 else f"{value * 1e6:.6g} us"
    return f"{value:.6g} {unit}"


@cache
def hints_of(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """The annotations of a struct's fields, units too."""
    return get_type_hints(shape, include_extras=True)


def unit_of(hint: Any) -> Unit | None:
    """The unit of an annotated field, optional ones too; `None` for one that has none."""
    for part in getattr(hint, "__metadata__", ()):
        if isinstance(part, Unit):
            return part
    for choice in get_args(hint):
        if get_origin(choice) is Annotated:
            return unit_of(choice)
    return None


def _inside(value: float, unit: Unit) -> bool:
    above = value >= (unit.low if unit.low_allowed else max(unit.low, _LEAST))
    whole = not unit.whole or value.is_integer()
    return math.isfinite(value) and above and value <= unit.high and whole


def _bounds(value: float, unit: Unit) -> str:
    low = _LEAST if 0 < value < _LEAST and not (unit.low_allowed or unit.whole) else unit.low
    text = f"{'at least' if unit.low_allowed or low > unit.low else 'more than'} {low:g}"
    if unit.high < math.inf:
        text += f" and at most {unit.high:g}"
    return text + (", a whole number" if unit.whole else "")


def _quantities(spec: msgspec.Struct, prefix: str) -> Iterator[tuple[str, Quantity, Unit]]:
    """Walk the struct's fields: quantities, tables of them by size or class, structs, lists of these."""
    hints = hints_of(type(spec))
    for field in spec.__struct_fields__:
        value = getattr(spec, field)
        path = f"{prefix}.{field}" if prefix else field
        if isinstance(value, Quantity):
            yield path, value, _stated_unit(hints[field])
        elif isinstance(value, dict):
            element = get_args(hints[field])[1]
            if get_origin(element) is Annotated:
                for key, item in value.items():
                    yield f"{path}.{key}", item, _stated_unit(element)
        elif isinstance(value, msgspec.Struct):
            yield from _quantities(value, path)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, msgspec.Struct):
                    yield from _quantities(item, f"{path}.{index + 1}")


def _stated_unit(hint: Any) -> Unit:
    unit = unit_of(hint)
    if unit is None:
        raise TypeError(f"{hint} has no unit")
    return unit
