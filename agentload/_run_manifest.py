"""A replay's options, and the manifest that records them so that the run can be told apart and finished."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec

from agentload._context_limit import OverflowPolicy
from agentload_simbackend import Deployment, LatencyClass, SimulatedModel
from agentload_traces import AgentloadError, Manifest, RunReader, decodable

_RECORDED = (
    "concurrency",
    "speed",
    "max_turns",
    "model",
    "timeout_s",
    "trace_format",
    "strict",
    "arrivals",
    "faults",
    "content",
    "latency_class",
    "tool_slots",
    "on_overflow",
)


class ReplayOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How to replay a trace.

    trace: path of the trace; trace_format: its format, `None` to recognise it.
    target: name or file of a deployment, or the URL of an OpenAI-compatible endpoint.
    clock: "virtual" simulates in process; "wall" goes over HTTP, to a server of its own for a deployment.
    concurrency: closed loop with this many sessions active; `None` is open loop at recorded start times.
    speed: how much faster than recorded arrivals, tools and think time pass.
    max_turns: turns of each session to play, from its first.
    faults: file of the faults that befall the deployment, see `agentload_simbackend.load_faults`.
    content, latency_class: of all requests; `None` is the deployment's default.
    tool_slots: tools that run at a time, 0 for any number; `None` is as the deployment says.
    on_overflow: what to do with turns that outgrow the context of the deployment, or of the endpoint if it
    tells its length.
    timeout_s: a turn of whose answer nothing comes for so long has failed (wall clock).
    arrivals: record each answer's token timeline.
    resume: `out` is an interrupted run to be finished.
    """

    trace: Path
    out: Path
    target: str = "gemma4-31b/pd"
    clock: Literal["virtual", "wall"] = "virtual"
    concurrency: int | None = None
    speed: float = 1.0
    max_turns: int | None = None
    seed: int = 0
    model: str | None = None
    timeout_s: float = 600.0
    trace_format: str | None = None
    strict: bool = False
    arrivals: bool = True
    faults: Path | None = None
    content: str | None = None
    latency_class: LatencyClass | None = None
    tool_slots: int | None = None
    on_overflow: OverflowPolicy = "refuse"
    resume: bool = False


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
        options={name: _plain(getattr(options, name)) for name in _RECORDED},
        versions={name: version(name) for name in ("agentload", "aiohttp", "polars")}
        | {"python": platform.python_version()},
        host={"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count() or 0},
        started_at=utc_now(),
    )


def resumed_options(
    run: Path, trace: Path | None, *, target: str | None = None, faults: Path | None = None
) -> ReplayOptions:
    """The options that an interrupted run was started with.

    trace, target, faults: where these files now are, if moved, or if the paths that the run has of them are
    relative to another directory. What they hold is checked when the run goes on.
    Raises `AgentloadError` if the run or one of its files is not there any more, or is of another kind.
    """
    manifest = RunReader(run).manifest
    path = trace or Path(manifest.trace)
    if not path.is_file():
        raise AgentloadError(f"{path}: the trace of {run} is not there; name it: --resume {run} TRACE")
    values = {name: manifest.options.get(name) for name in _RECORDED}
    used_faults = _faults_of(run, values.pop("faults"), faults)
    used = _target_of(run, manifest, target)
    # What is `None` was not given, or does not hold for the target.
    known = {name: value for name, value in values.items() if value is not None}
    known |= {"clock": manifest.clock, "seed": manifest.seed, "resume": True}
    # Paths stay what they are, which may be no text.
    try:
        options = msgspec.convert({**known, "trace": "", "out": ""}, ReplayOptions, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise AgentloadError(f"{run}/manifest.json: options: {error}") from None
    return msgspec.structs.replace(options, trace=path, out=run, target=used, faults=used_faults)


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


def _plain(value: str | float | bool | Path | None) -> str | float | bool | None:
    return decodable(value) if isinstance(value, Path | str) else value


def _path(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value
