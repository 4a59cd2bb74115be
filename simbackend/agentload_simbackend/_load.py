"""Reads spec files: built-in ones by name, a user's own by path."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentload_simbackend._deployment import Deployment, check_deployment
from agentload_simbackend._model_specs import Decoder, Drafter
from agentload_simbackend._quantity import check_units
from agentload_simbackend._specs import (
    DeploymentSpec,
    GpuChip,
    GpuRack,
    Link,
    LpuChip,
    LpuRack,
    LpuSide,
)
from agentload_traces import SpecError

_SPECS = Path(__file__).parent / "specs"

_T = TypeVar("_T")
_RackT = TypeVar("_RackT", LpuRack, GpuRack)


def list_deployments() -> list[str]:
    """Names of the built-in deployments, such as `gemma4-31b/pd`."""
    return _names("deployments")


def list_models() -> list[str]:
    """Names of the built-in decoders, such as `gemma-4-31b`."""
    return [
        name
        for name in _names("models")
        if _parse(_SPECS / "models" / f"{name}.toml").get("type") == "decoder"
    ]


def load_model(name_or_path: str | Path) -> Decoder:
    """Load a decoder: a built-in name, or the path of a TOML file. Raises `SpecError`."""
    return _Files().read("model", "models", str(name_or_path), Decoder)[0]


def load_deployment(name_or_path: str | Path) -> Deployment:
    """Load a deployment and all that it rests on.

    A built-in name, or the path of a TOML file (it ends in `.toml`). A file's own references are
    built-in names, or paths relative to that file. Raises `SpecError`.
    """
    files = _Files()
    spec, path = files.read("deployment", "deployments", str(name_or_path), DeploymentSpec)
    prefill_rack: GpuRack | None = None
    prefill_chip: GpuChip | None = None
    draft_rack: LpuRack | None = None
    draft_chip: LpuChip | None = None
    if spec.prefill is not None:
        prefill_rack, prefill_chip = files.rack("prefill", spec.prefill.rack, GpuRack, GpuChip, path)
    decode_rack: LpuRack | GpuRack
    decode_chip: LpuChip | GpuChip
    if isinstance(spec.decode, LpuSide):
        decode_rack, decode_chip = files.rack("decode", spec.decode.rack, LpuRack, LpuChip, path)
    else:
        decode_rack, decode_chip = files.rack("decode", spec.decode.rack, GpuRack, GpuChip, path)
    if spec.draft is not None:
        draft_rack, draft_chip = files.rack("draft", spec.draft.lpus.rack, LpuRack, LpuChip, path)
    drafter = None
    if spec.speculation is not None:
        name = spec.speculation.drafter
        drafter, _ = files.read("speculation.drafter", "models", name, Drafter, path)
    model, _ = files.read("model", "models", spec.model, Decoder, path)
    link = files.read("link", "links", spec.link, Link, path)[0] if spec.link else None
    split_link = (
        files.read("split_link", "links", spec.split_link, Link, path)[0] if spec.split_link else None
    )
    deployment = Deployment(
        spec=spec,
        model=model,
        drafter=drafter,
        link=link,
        split_link=split_link,
        prefill_rack=prefill_rack,
        prefill_chip=prefill_chip,
        decode_rack=decode_rack,
        decode_chip=decode_chip,
        draft_rack=draft_rack,
        draft_chip=draft_chip,
        spec_sha256=files.sha256(),
    )
    check_deployment(deployment, _shown(path))
    return deployment


class _Files:
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
        path = _find(folder, name, referrer, field or role)
        content = _parse(path)
        self._contents[role] = content
        return _convert(content, shape, _shown(path)), path

    def rack(
        self, side: str, name: str, rack_shape: type[_RackT], chip_shape: type[_T], referrer: Path
    ) -> tuple[_RackT, _T]:
        """Read the rack of a side and its chip."""
        rack, path = self.read(f"{side}.rack", "racks", name, rack_shape, referrer)
        return rack, self.read(f"{side}.chip", "chips", rack.chip, chip_shape, path, "chip")[0]

    def sha256(self) -> str:
        """Hash of the contents, wherever the files stand: comments and layout do not change it."""
        text = json.dumps(self._contents, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def _find(folder: str, name: str, referrer: Path | None, field: str) -> Path:
    where = f"{_shown(referrer)}: {field}: " if referrer else ""
    if name.endswith(".toml"):
        path = referrer.parent / name if referrer else Path(name)
        if path.is_file():
            return path
        raise SpecError(f"{where}no such file: {path}")
    root = _SPECS / folder
    path = root / f"{name}.toml"
    if path.is_file() and ".." not in name:
        return path
    known = _names(folder)
    raise SpecError(
        f"{where}no {folder.removesuffix('s')} named {name!r}; there are {', '.join(known)}, "
        "or the path of a .toml file"
    )


def _names(folder: str) -> list[str]:
    root = _SPECS / folder
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.toml"))


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{_shown(path)}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{_shown(path)}: not TOML: {error}") from error


def _convert(content: dict[str, Any], shape: type[_T], where: str) -> _T:
    fields = dict(content)
    sources = fields.pop("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise SpecError(f"{where}: sources: must be a table of texts")
    try:
        spec = msgspec.convert(_with_sources(fields, sources), shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {_field_first(str(error))}") from error
    assert isinstance(spec, msgspec.Struct)
    check_units(spec, where)
    return spec


def _with_sources(value: Any, sources: dict[str, str]) -> Any:
    """Put the whole text of each source in the place of its short name."""
    if isinstance(value, dict):
        return {
            key: sources.get(item, item)
            if key == "source" and isinstance(item, str)
            else _with_sources(item, sources)
            for key, item in value.items()
        }
    return value


def _field_first(message: str) -> str:
    """Turn msgspec's `text - at `$.a.b`` into `a.b: text`."""
    text, separator, place = message.partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{field}: {text}" if separator and field else text


def _shown(path: Path) -> str:
    """A built-in file by its place among the specs, another by its path."""
    return path.relative_to(_SPECS).as_posix() if path.is_relative_to(_SPECS) else str(path)
