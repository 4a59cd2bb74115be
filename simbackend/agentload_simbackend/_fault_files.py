"""Reads a timeline of faults: TOML with `[[faults]]`, or JSON, an object with `faults` or the list itself."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec

from agentload_simbackend._faults import Fault, KvLoss, PowerCap, Refuse, Reset, Stall
from agentload_simbackend._spec_words import words_of
from agentload_traces import SpecError, decodable, printable

MOST_S = 1e9
"""The latest time of a fault, 31 years: what a run's clock holds, with room to spare."""

LEAST_CLOCK = 1e-3
"""The lowest clock of a power cap: far below any chip's, and a run's clock still holds its steps."""

_TYPES: dict[str, type[Fault]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Fault)}

_TIMES = ("at_s", "for_s", "replan_s", "retry_after_s")

_TOLD = 8
"""How many faults a condition names."""

_WITHOUT_END = "happens at once: leave out for_s"
_WITHOUT_REPLICA = "is of the whole deployment: leave out replica"


def load_faults(path: str | Path) -> tuple[Fault, ...]:
    """Read the faults of a file (`.toml` or `.json`), in order of time.

    Raises `SpecError`, one line: file, which fault (`faults[0]` is the first), field, what would be right.
    """
    shown = decodable(path)
    faults = []
    for number, item in enumerate(_listed(_parsed(Path(path), shown), shown)):
        where = f"{shown}: faults[{number}]"
        fault = _fault(item, where)
        if wrong := fault_problem(fault):
            raise SpecError(f"{where}.{wrong}")
        faults.append(fault)
    # A stable sort: those of one time stay in the order of the file.
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def fault_problem(fault: Fault) -> str | None:
    """What is wrong with a fault by itself, `field: what, and what would be right`; `None` if nothing is."""
    return _wrong_time(fault) or _wrong_share(fault) or _wrong_place(fault)


def _wrong_time(fault: Fault) -> str | None:
    for field in _TIMES:
        value = getattr(fault, field, None)
        # NaN is no more than infinity, and no less than 0.
        if value is not None and not 0 <= value <= MOST_S:
            return f"{field}: is {value:g}, must be 0 to {MOST_S:.0e} s"
    if fault.for_s == 0:
        return "for_s: is 0, must be more than 0 s; without it a fault lasts to the end"
    if isinstance(fault, Stall) and fault.for_s is None:
        return "for_s: missing; a stall must end, say after how many seconds"
    if isinstance(fault, Reset | KvLoss) and fault.for_s is not None:
        return f"for_s: {fault_type(fault)} {_WITHOUT_END}"
    return None


def _wrong_share(fault: Fault) -> str | None:
    if isinstance(fault, Refuse | Reset) and not 0 <= fault.share <= 1:
        return f"share: is {fault.share:g}, must be 0 to 1"
    if isinstance(fault, PowerCap) and not LEAST_CLOCK <= fault.clock_fraction <= 1:
        return f"clock_fraction: is {fault.clock_fraction:g}, must be {LEAST_CLOCK:g} to 1"
    return None


def _wrong_place(fault: Fault) -> str | None:
    chips = getattr(fault, "chips", 1)
    if chips < 1:
        return f"chips: is {chips}, must be 1 or more"
    if fault.replica is None:
        return None
    if fault.replica < 0:
        return f"replica: is {fault.replica}, must be 0 or more (replicas count from 0)"
    if isinstance(fault, Refuse) or (isinstance(fault, KvLoss) and fault.store == "prefix_cache"):
        return f"replica: {fault_type(fault)} {_WITHOUT_REPLICA}"
    return None


def faults_sentence(path: str | Path, faults: tuple[Fault, ...]) -> str:
    """The condition that a run with these faults holds under, such as `With the faults of x.toml: ...`."""
    told = ", ".join(f"{fault_type(fault)} at {fault.at_s:g} s" for fault in faults[:_TOLD])
    more = f" and {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
    return f"With the faults of {decodable(path)}: {told or 'none'}{more}."


def fault_type(fault: Fault) -> str:
    """Its `type` in a file, such as `link_down`."""
    return str(fault.__struct_config__.tag)


def _parsed(path: Path, shown: str) -> Any:
    if path.suffix not in (".toml", ".json"):
        raise SpecError(f"{shown}: a file of faults must end in .toml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"{shown}: cannot be read: {reason}") from None
    kind = path.suffix.removeprefix(".").upper()
    try:
        return tomllib.loads(text) if kind == "TOML" else json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{shown}: not {kind}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key stands twice: JSON would take the last without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return found


def _listed(content: Any, shown: str) -> list[Any]:
    if isinstance(content, dict):
        if others := sorted(content.keys() - {"faults"}):
            raise SpecError(f"{shown}: {others[0]}: unknown; such a file holds `faults` and nothing else")
        content = content.get("faults")
    if not isinstance(content, list):
        raise SpecError(f"{shown}: faults: must be a list, such as [[faults]] in TOML")
    return content


def _fault(item: Any, where: str) -> Fault:
    if not isinstance(item, dict):
        raise SpecError(f'{where}: must be a table, such as {{type = "drain", at_s = 10}}')
    name = item.get("type")
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        wrong = "missing" if "type" not in item else f"no fault is named {name!r}"
        raise SpecError(f"{where}.type: {wrong}; there are {', '.join(sorted(_TYPES))}")
    try:
        return msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}.{printable(words_of(error, item, kind))}") from None
