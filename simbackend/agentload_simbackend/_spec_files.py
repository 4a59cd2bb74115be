"""Reads single spec files: built-in ones by name, a user's own by path."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentload_simbackend._hardware_check import check_chip, check_rack
from agentload_simbackend._model_check import check_model
from agentload_simbackend._model_specs import Decoder
from agentload_simbackend._quantity import check_units
from agentload_simbackend._spec_words import words_of
from agentload_simbackend._specs import MODES, GpuChip, GpuRack, LpuChip, LpuRack
from agentload_traces import SpecError, decodable, printable

_SPECS = Path(__file__).parent / "specs"

_SHOWN = ("name", "summary")

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
        if _is(path, Path.is_file):
            return path
        if _is(path, Path.is_dir):
            raise SpecError(f"{where}{printable(path)}: is a directory, must be a file")
        raise SpecError(f"{where}no such file: {printable(path)}")
    if name in names(folder):
        return _SPECS / folder / f"{name}.toml"
    if folder == "deployments" and name in decoders():
        raise SpecError(f"{where}{name} {without_mode(name)}")
    raise SpecError(
        f"{where}no {folder.removesuffix('s')} named {printable(repr(decodable(name)))}; {_known(folder)}"
    )


def _known(folder: str) -> str:
    if folder != "deployments":
        return f"there are {', '.join(names(folder))}, or the path of a .toml file"
    return (
        f"there are {', '.join(names(folder))}; MODEL/MODE, with MODEL one of {', '.join(decoders())} or the "
        f"path of a model's .toml file, and MODE one of {', '.join(MODES)}; or the path of a .toml file"
    )


@cache
def decoders() -> tuple[str, ...]:
    """Names of the built-in models that are no drafters."""
    return tuple(name for name in names("models") if is_decoder(parse(built_in("models", name))))


def is_decoder(content: dict[str, Any]) -> bool:
    """Whether the content of a file is a model's."""
    return content.get("type") == "decoder"


def is_decoder_file(path: Path) -> bool:
    """Whether there is a file, and it is a model's. Raises `SpecError` if it is not TOML."""
    return _is(path, Path.is_file) and is_decoder(parse(path))


def without_mode(model: str) -> str:
    """What to say of a model (its name, or its path) that stands where a deployment must."""
    return f"is a model, not a deployment: write {model}/MODE, with MODE one of {', '.join(MODES)}"


def built_in(folder: str, name: str) -> Path:
    """The path of a built-in spec that may not be there."""
    return _SPECS / folder / f"{name}.toml"


def parse(path: Path) -> dict[str, Any]:
    """The content of a TOML file, each source in full; not to be changed."""
    return _parse_built_in(path) if path.is_relative_to(_SPECS) else _parse(path)


def shown(path: Path) -> str:
    """A built-in file by its place among the specs, another by its path."""
    return path.relative_to(_SPECS).as_posix() if path.is_relative_to(_SPECS) else printable(path)


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except (OSError, ValueError):  # Too long a name, a zero byte.
        return False


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return _with_sources(content, content.pop("sources", {}), shown(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{shown(path)}: cannot be read: {printable(error)}") from error
    except RecursionError:
        raise SpecError(f"{shown(path)}: tables or lists are nested too deeply") from None
    except ValueError as error:  # An integer may have too many digits.
        raise SpecError(f"{shown(path)}: not TOML: {printable(error)}") from error


@cache
def _parse_built_in(path: Path) -> dict[str, Any]:
    return _parse(path)


def _convert(content: dict[str, Any], shape: type[_T], where: str) -> _T:
    try:
        spec = msgspec.convert(content, shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {printable(words_of(error, content, shape))}") from error
    except (OverflowError, RecursionError) as error:
        raise SpecError(f"{where}: cannot be taken as numbers: {printable(error)}") from error
    assert isinstance(spec, msgspec.Struct)
    for field in _SHOWN:
        _check_shown(getattr(spec, field, None), f"{where}: {field}")
    check_units(spec, where)
    return spec


def _check_shown(text: str | None, where: str) -> None:
    """Names and summaries are shown in tables and on lines, and told apart by what they say."""
    if text is None:
        return
    if not text.strip():
        raise SpecError(f"{where}: is empty, must say something")
    if text != printable(text):
        raise SpecError(f'{where}: is "{printable(text)}", must be one line without control characters')


def _with_sources(content: dict[str, Any], sources: Any, where: str) -> dict[str, Any]:
    """Put the whole text of each source in the place of its short name, which only its own file knows."""
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise SpecError(f"{where}: sources: must be a table of texts")
    return {key: _sourced(value, sources) for key, value in content.items()}


def _sourced(value: Any, sources: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_sourced(item, sources) for item in value]
    if isinstance(value, dict):
        return {
            key: sources.get(item, item)
            if key == "source" and isinstance(item, str)
            else _sourced(item, sources)
            for key, item in value.items()
        }
    return value
