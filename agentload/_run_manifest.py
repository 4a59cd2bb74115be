"""The manifest of a replay: what it records of the options, and these read back to finish the run."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from agentload._endpoint_options import PROXY_VARIABLE, extra_body_of, secrets_given
from agentload._options import GROUPS, EndpointOptions, ReplayOptions
from agentload._tools import laws_file
from agentload_simbackend import Deployment, SimulatedModel
from agentload_traces import AgentloadError, Manifest, OptionValue, RunReader, decodable

_UNRECORDED = ("trace", "out", "target", "clock", "seed", "resume", *GROUPS)
"""Fields of `ReplayOptions` that the manifest has elsewhere, or that are no option."""


def new_manifest(
    options: ReplayOptions,
    deployment: Deployment | SimulatedModel | None,
    conditions: Sequence[str] = (),
) -> Manifest:
    """The manifest of a run that starts now; `deployment` is `None` for an endpoint that is no simulator.

    conditions: what the run's numbers hold for besides those of the deployment.
    """
    simulated = deployment.about() if isinstance(deployment, Deployment) else deployment
    return Manifest(
        status="running",
        clock=options.clock,
        seed=options.seed,
        target=decodable(options.target),
        mode=simulated.mode if simulated else "endpoint",
        trace=decodable(options.trace),
        trace_sha256=file_sha256(options.trace),
        spec_sha256=simulated.spec_sha256 if simulated else None,
        faults_sha256=file_sha256(options.faults) if options.faults else None,
        conditions=(*(simulated.conditions if simulated else ()), *conditions),
        options=recorded_options(options),
        versions=_versions(),
        host={"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count() or 0},
        started_at=utc_now(),
    )


def _versions() -> dict[str, str]:
    """Of what times and results may hang on."""
    versions = {name: version(name) for name in ("agentload", "aiohttp", "polars")}
    with suppress(PackageNotFoundError):  # runs fall back to the event loop of asyncio
        versions["uvloop"] = version("uvloop")
    return versions | {"python": platform.python_version()}


def recorded_options(options: ReplayOptions) -> dict[str, OptionValue]:
    """What a manifest records of the options, those of all groups by their names."""
    recorded = {name: value for name, value in structs.asdict(options).items() if name not in _UNRECORDED}
    for group in GROUPS:
        recorded |= structs.asdict(getattr(options, group))
    # Their values may be secrets.
    recorded |= {name: names or None for name, names in _names_of(options.endpoint).items()}
    if options.target_is_url:
        recorded["secrets"] = secrets_given(options.endpoint)
    if (laws := laws_file(options.tooling)) is not None:
        recorded["laws_sha256"] = file_sha256(laws)
    return {name: _plain(value) for name, value in recorded.items()}


def _names_of(options: EndpointOptions) -> dict[str, tuple[str, ...]]:
    """Of what is given once more when a run is resumed, the names."""
    return {
        "headers": tuple(name for name, _ in options.headers),
        "query": tuple(each.partition("=")[0] for each in options.query),
        "extra_body": tuple(extra_body_of(options)),
    }


def resumed_options(
    run: Path,
    trace: Path | None,
    *,
    target: str | None = None,
    faults: Path | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    query: tuple[str, ...] = (),
    extra_body: str | None = None,
    key_file: Path | None = None,
) -> ReplayOptions:
    """The options that an interrupted run was started with.

    trace, target, faults, key_file: where these files now are, if moved, or if the paths that the run has of
    them are relative to another directory. What they hold is checked when the run goes on.
    headers, query, extra_body: those of the run once more, for their values are not recorded.
    Raises `AgentloadError` if the run or one of its files is not there any more, or is of another kind.
    """
    manifest = RunReader(run).manifest
    path = trace or Path(manifest.trace)
    if not path.is_file():
        raise AgentloadError(f"{path}: the trace of {run} is not there; name it: --resume {run} TRACE")
    # What is `None` was not given, or does not hold for the target.
    values = {name: value for name, value in manifest.options.items() if value is not None}
    used_faults = _faults_of(run, values.pop("faults", None), faults)
    used = _target_of(run, manifest, target)
    again = EndpointOptions(headers=headers, query=query, extra_body=extra_body)
    _check_names(run, values, again)
    secrets: Any = values.pop("secrets", ())
    laws_sha256 = values.pop("laws_sha256", None)
    if key_file is not None:
        values["key_file"] = str(key_file)
    grouped: dict[str, Any] = {
        group: {name: values.pop(name) for name in kind.__struct_fields__ if name in values}
        for group, kind in GROUPS.items()
    }
    grouped["endpoint"] |= {"headers": headers, "query": query, "extra_body": extra_body}
    known = {**values, **grouped, "clock": manifest.clock, "seed": manifest.seed, "resume": True}
    # Paths stay what they are, which may be no text.
    try:
        options = msgspec.convert({**known, "trace": "", "out": ""}, ReplayOptions, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise AgentloadError(f"{run}/manifest.json: options: {error}") from None
    _check_secrets(run, secrets, options.endpoint)
    laws = laws_file(options.tooling)
    if laws is not None and laws.is_file() and file_sha256(laws) != laws_sha256:
        raise AgentloadError(f"{laws}: {run} cannot be finished, for the laws changed since it was started")
    return structs.replace(options, trace=path, out=run, target=used, faults=used_faults)


_AGAIN = {"headers": "--header {}:VALUE", "query": "--query {}=VALUE", "extra_body": "--extra-body with {}"}


def _check_names(run: Path, values: dict[str, Any], given: EndpointOptions) -> None:
    """Take out what is recorded by name only, and see that it is given once more."""
    for option, names in _names_of(given).items():
        needed = [str(name) for name in values.pop(option, ())]
        if sorted(map(str.lower, names)) != sorted(map(str.lower, needed)):
            wanted = " ".join(_AGAIN[option].format(name) for name in needed) or "none"
            raise AgentloadError(
                f"--resume {run}: give the {option.replace('_', ' ')} that it was started with, for values"
                f" are not recorded: {wanted}"
            )


def _check_secrets(run: Path, needed: Sequence[str], given: EndpointOptions) -> None:
    missing = sorted(set(needed) - set(secrets_given(given)))
    if missing:
        where = {
            "key": f"set {given.key_env} or give --key-file FILE",
            "proxy password": f"set {PROXY_VARIABLE}",
        }
        wanted = "; ".join(f"{name}: {where[name]}" for name in missing if name in where)
        raise AgentloadError(f"--resume {run}: was started with secrets that are not there now: {wanted}")


def _faults_of(run: Path, recorded: object, given: Path | None) -> Path | None:
    if recorded is None:
        if given is not None:
            raise AgentloadError(f"--faults: {run} was started without; leave it out")
        return None
    path = given or Path(str(recorded))
    if not path.is_file():
        raise AgentloadError(
            f"{path}: the file of faults of {run} is not there; name it: --resume {run} --faults FILE"
        )
    return path


def _target_of(run: Path, manifest: Manifest, given: str | None) -> str:
    recorded = manifest.target
    if not recorded.endswith(".toml"):
        if given is not None and given != recorded:
            raise AgentloadError(f"--target: {run} was started on {recorded}, which is no file; leave it out")
        return recorded
    target = given or recorded
    if not Path(target).is_file():
        raise AgentloadError(
            f"{target}: the deployment of {run} is not there; name it: --resume {run} --target FILE"
        )
    return target


def check_same_run(path: Path, before: Manifest, now: Manifest) -> None:
    """Raise `AgentloadError` if what a run rests on has changed since it was interrupted."""
    for name, what in (
        ("trace_sha256", "trace"),
        ("spec_sha256", "deployment's specs"),
        ("faults_sha256", "file of faults"),
    ):
        if getattr(before, name) != getattr(now, name):
            raise AgentloadError(f"{path}: cannot be finished, for the {what} changed since it was started")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def utc_now() -> str:
    """The time as the manifest gives it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: Any) -> OptionValue:
    if isinstance(value, tuple):
        return tuple(decodable(each) for each in value)
    recorded: OptionValue = decodable(value) if isinstance(value, Path | str) else value
    return recorded


def _path(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value
