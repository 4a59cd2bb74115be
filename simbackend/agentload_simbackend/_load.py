"""Loads models and deployments: built-in ones by name, a user's own by path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentload_simbackend._based import base_of, check_sized_model, merged
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._deployment_check import check_deployment
from agentload_simbackend._model_specs import Decoder, Drafter
from agentload_simbackend._spec_files import (
    SpecFiles,
    decoders,
    find,
    is_decoder,
    names,
    parse,
    shown,
    without_mode,
)
from agentload_simbackend._specs import (
    MODES,
    DeploymentSpec,
    GpuChip,
    GpuRack,
    Link,
    LpuChip,
    LpuRack,
    LpuSide,
)
from agentload_simbackend._templates import (
    Sizes,
    Template,
    mode_content,
    sizes_of,
    template_of,
    written_name,
)
from agentload_traces import SpecError


def list_deployments() -> list[str]:
    """Names of the written-out deployments, such as `gemma4-31b/pd`.

    Besides, `MODEL/MODE` loads for each model of `list_models` and each of the five modes.
    """
    return list(names("deployments"))


def list_models() -> list[str]:
    """Names of the built-in decoders, such as `gemma-4-31b`."""
    return list(decoders())


def load_model(name_or_path: str | Path) -> Decoder:
    """Load a decoder: a built-in name, or the path of a TOML file. Raises `SpecError`."""
    return SpecFiles().read("model", "models", str(name_or_path), Decoder)[0]


def load_deployment(name_or_path: str | Path) -> Deployment:
    """Load a deployment and all that it rests on.

    A built-in name; `MODEL/MODE`, sized by arithmetic, where MODEL is a built-in decoder or the path of a
    TOML file; or the path of a deployment's TOML file (it ends in `.toml`). A file's own references are
    built-in names, or paths relative to that file. With a `base` it need only say in what it differs from
    that (see `_based`). Raises `SpecError`.
    """
    files = SpecFiles()
    name = written_name(str(name_or_path))
    template = template_of(name)
    if template is not None:
        deployment, where = _from_template(files, template), template.name
    else:
        path = find("deployments", name)
        where = shown(path)
        spec = files.take("deployment", whole_content(path), DeploymentSpec, where)
        model, _ = files.read("model", "models", spec.model, Decoder, path)
        deployment = _resolved(files, spec, model, path)
    check_deployment(deployment, where)
    return deployment


def whole_content(path: Path) -> dict[str, Any]:
    """The content of a deployment's file, with that of what it starts from; not to be changed."""
    content, where = parse(path), shown(path)
    if is_decoder(content):
        raise SpecError(f"{where}: {without_mode(where)}")
    base = base_of(content, where)
    return content if base is None else merged(content, _base_content(base, content, path), where)


def _base_content(base: str, content: dict[str, Any], path: Path) -> dict[str, Any]:
    """What the file at `path` starts from."""
    if base in MODES:
        return mode_content(base)
    name = written_name(base)
    template = template_of(name)
    if template is None:
        return whole_content(find("deployments", name, path, "base"))
    model, _ = SpecFiles().read("model", "models", template.model, Decoder, path, "base")
    sized = _sized(SpecFiles(), template, model)
    check_sized_model(content, sized, shown(path))
    return sized


def _from_template(files: SpecFiles, template: Template) -> Deployment:
    model, _ = files.read("model", "models", template.model, Decoder)
    content = _sized(files, template, model)
    spec = files.take("deployment", content, DeploymentSpec, template.name)
    return _resolved(files, spec, model, None)


def _sized(files: SpecFiles, template: Template, model: Decoder) -> dict[str, Any]:
    """The content of a template's deployment; sizes follow from the rest, so they come in a second round."""
    spec = files.take("deployment", template.filled(model, Sizes()), DeploymentSpec, template.name)
    return template.filled(model, sizes_of(_resolved(files, spec, model, None)))


def _resolved(files: SpecFiles, spec: DeploymentSpec, model: Decoder, path: Path | None) -> Deployment:
    """Read what the spec names; `path` is that of its file, if it has one."""
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
    return Deployment(
        spec=spec,
        model=model,
        drafter=drafter,
        link=_link(files, "link", spec.link, path),
        split_link=_link(files, "split_link", spec.split_link, path),
        prefill_rack=prefill_rack,
        prefill_chip=prefill_chip,
        decode_rack=decode_rack,
        decode_chip=decode_chip,
        draft_rack=draft_rack,
        draft_chip=draft_chip,
        spec_sha256=files.sha256(),
    )


def _link(files: SpecFiles, role: str, name: str | None, referrer: Path | None) -> Link | None:
    return files.read(role, "links", name, Link, referrer)[0] if name is not None else None
