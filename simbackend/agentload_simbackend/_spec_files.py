"""Reads single spec files: built-in ones by name, a user's own by path."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentload_simbackend._hardware_check import check_chip, check_rack
from agentload_simbackend._model_check import check_model
from agentload_simbackend._model_specs import Decoder
from agentload_simbackend._quantity import check_units
from agentload_simbackend._specs import GpuChip, GpuRack, LpuChip, LpuRack
from agentload_traces import SpecError, printable

_SPECS = Path(__file__).parent / "specs"

_T = TypeVar("_T")
_RackT = TypeVar("_RackT", LpuRack, GpuRack)


class SpecFiles:
    """The files read for one deployment, for the hash over all of them."""

    def __init__(self) -> None:
        self._contents: dict[str, Any] = {}

    def read(
        self,
        role: str,
        folder: str,
        name: str,
        shape: type[_T],
        referrer: Path | None = None,
        field: str | None = None,
    ) -> tuple[_T, Path]:
        """Read one spec, which has a `role` in the deployment. Returns it and its path.

        referrer, field: the file that names it, and where in it (the role, unless said).
        """
        path = find(folder, name, referrer, field or role)
        return self.take(role, parse(path), shape, shown(path)), path

    def take(self, role: str, content: dict[str, Any], shape: type[_T], where: str) -> _T:
        """Make the content of a file into a spec and check it; `where` is what errors name."""
        self._contents[role] = content
        spec = _convert(content, shape, where)
        if isinstance(spec, Decoder):
            check_model(spec, where)
        elif isinstance(spec, LpuRack | GpuRack):
            check_rack(spec, where)
        elif isinstance(spec, LpuChip | GpuChip):
            check_chip(spec, where)
        return spec

    def rack(
        self, side: str, name: str, rack_shape: type[_RackT], chip_shape: type[_T], referrer: Path | None
    ) -> tuple[_RackT, _T]:
        """Read the rack of a side and its chip."""
        rack, path = self.read(f"{side}.rack", "racks", name, rack_shape, referrer)
        return rack, self.read(f"{side}.chip", "chips", rack.chip, chip_shape, path, "chip")[0]

    def sha256(self) -> str:
        """Hash of the contents, wherever the files stand: comments and layout do not change it."""
        text = json.dumps(self._contents, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


@cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the built-in specs in a folder, such as `gemma4-31b/pd` in `deployments`."""
    root = _SPECS / folder
    return tuple(sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.toml")))


def find(folder: str, name: str, referrer: Path | None = None, field: str = "") -> Path:
    """The path of a spec by its name or path; raises `SpecError` if there is none."""
    where = f"{shown(referrer)}: {field}: " if referrer else f"{field}: " if field else ""
    if name.endswith(".toml"):
        path = referrer.parent / name if referrer else Path(name)
        if _is_file(path):
            return path
        raise SpecError(f"{where}no such file: {printable(path)}")
    if name in names(folder):
        return _SPECS / folder / f"{name}.toml"
    known = ", ".join(names(folder))
    if folder == "deployments":
        known += ", any MODEL/MODE (see `agentload backends`)"
    raise SpecError(
        f"{where}no {folder.removesuffix('s')} named {printable(repr(name))}; "
        f"there are {known}, or the path of a .toml file"
    )


def built_in(folder: str, name: str) -> Path:
    """The path of a built-in spec that may not be there."""
    return _SPECS / folder / f"{name}.toml"


def parse(path: Path) -> dict[str, Any]:
    """The content of a TOML file; not to be changed."""
    return _parse_built_in(path) if path.is_relative_to(_SPECS) else _parse(path)


def shown(path: Path) -> str:
    """A built-in file by its place among the specs, another by its path."""
    return path.relative_to(_SPECS).as_posix() if path.is_relative_to(_SPECS) else printable(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # Too long a name, a zero byte.
        return False


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{shown(path)}: cannot be read: {printable(error)}") from error
    except (ValueError, RecursionError) as error:  # An integer may have too many digits.
        raise SpecError(f"{shown(path)}: not TOML: {printable(error)}") from error


@cache
def _parse_built_in(path: Path) -> dict[str, Any]:
    return _parse(path)


def _convert(content: dict[str, Any], shape: type[_T], where: str) -> _T:
    fields = dict(content)
    sources = fields.pop("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise SpecError(f"{where}: sources: must be a table of texts")
    whole = _with_sources(fields, sources)
    try:
        spec = msgspec.convert(whole, shape, str_keys=True)
    except msgspec.ValidationError as error:
        said = _with_key(whole, shape, _field_first(str(error)))
        raise SpecError(f"{where}: {printable(said)}") from error
    except (OverflowError, RecursionError) as error:
        raise SpecError(f"{where}: cannot be taken as numbers: {printable(error)}") from error
    assert isinstance(spec, msgspec.Struct)
    check_units(spec, where)
    return spec


def _with_sources(value: Any, sources: dict[str, str]) -> Any:
    """Put the whole text of each source in the place of its short name."""
    if isinstance(value, list):
        return [_with_sources(item, sources) for item in value]
    if isinstance(value, dict):
        return {
            key: sources.get(item, item)
            if key == "source" and isinstance(item, str)
            else _with_sources(item, sources)
            for key, item in value.items()
        }
    return value


_AT = re.compile(r"(.*) - at `(key` in `)?\$\.?(.+)`", re.DOTALL)


def _field_first(message: str) -> str:
    """Turn msgspec's `text - at `$.a[0].b`` into `a.1.b: text`."""
    found = _AT.fullmatch(message)
    if found is None:
        return message.removesuffix(" - at `$`")
    text, key, field = found.groups()
    field = re.sub(r"\[(\d+)\]", lambda index: f".{int(index[1]) + 1}", field)
    return f"{field}: a key: {text}" if key else f"{field}: {text}"


def _with_key(content: dict[str, Any], shape: type, said: str) -> str:
    """Name the key that msgspec calls `[...]`: the first with which alone the table is wrong too."""
    place, separator, _ = said.partition("[...]")
    if not separator:
        return said
    *parents, leaf = place.split(".")
    alone = table = dict(content)
    for parent in parents:
        table[parent] = table = dict(table[parent])
    entries = table[leaf]
    for key, value in entries.items():
        table[leaf] = {key: value}
        try:
            msgspec.convert(alone, shape, str_keys=True)
        except msgspec.ValidationError:
            return said.replace("[...]", f".{key}", 1)
    return said
