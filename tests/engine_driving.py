"""Drives an engine through a list of requests, and makes variants of the built-in deployments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import agentload_simbackend
from agentload_simbackend import (
    Deployment,
    Emission,
    Engine,
    EngineRequest,
    Fault,
    Finished,
    LatencyClass,
    PromptRun,
    load_deployment,
)
from agentload_simbackend._load import whole_content
from agentload_simbackend._plan import ReplicaPlan, build_plan
from agentload_simbackend._setup import Setup, setup_of
from agentload_simbackend._spec_files import parse

SPECS = Path(agentload_simbackend.__file__).parent / "specs"


def request(
    request_id: int,
    input_tokens: int,
    output_tokens: int,
    *,
    context: str | None = None,
    runs: list[PromptRun] | None = None,
    latency_class: LatencyClass = "standard",
    content: str | None = None,
) -> EngineRequest:
    """A request of its own session, or the next one of `context`."""
    name = f"session {request_id}" if context is None else context
    return EngineRequest(
        request_id=request_id,
        session_id=name,
        turn_id=str(request_id),
        context_id=name,
        prompt_runs=[PromptRun(name, input_tokens)] if runs is None else runs,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        latency_class=latency_class,
        content=content,
    )


def roomy(
    name: str,
    *,
    tokens: int | None = None,
    streams: int = 1,
    replicas: int = 1,
    seed: int = 0,
    **rules: Any,
) -> Setup:
    """A built-in deployment with so many replicas, each with room for streams of so many tokens in all.

    rules: what of the router's rules is otherwise.
    """
    setup = setup_of(load_deployment(name), seed)
    first = [each for each in setup.plan.replicas if not each.spill][:replicas]
    if tokens is not None:
        first = [_with_room(each, tokens, streams) for each in first]
    spill = [each for each in setup.plan.replicas if each.spill]
    plan = setup.plan._replace(replicas=(*first, *spill))
    return setup._replace(plan=plan, rules=setup.rules._replace(**rules))


def _with_room(plan: ReplicaPlan, tokens: int, streams: int) -> ReplicaPlan:
    pools = (
        pool._replace(capacity_bytes=pool.bytes_per_token * tokens + pool.bytes_per_stream * streams)
        for pool in plan.pools
    )
    return plan._replace(pools=tuple(pools))


def drive(
    engine: Engine,
    arrivals: Iterable[tuple[int, EngineRequest]],
    *,
    cancels: Iterable[tuple[int, int]] = (),
    injects: Iterable[tuple[int, Fault]] = (),
    stops: Iterable[int] = (),
    at_stop: Callable[[int], None] = lambda now_ns: None,
) -> list[Emission]:
    """Run until the engine is idle; `stops` are times at which it is advanced for no reason of its own."""
    actions: list[tuple[int, int, Any]] = [(at_ns, 0, asked) for at_ns, asked in arrivals]
    actions += [(at_ns, 1, request_id) for at_ns, request_id in cancels]
    actions += [(at_ns, 2, None) for at_ns in stops]
    actions += [(at_ns, 3, fault) for at_ns, fault in injects]
    actions.sort(key=lambda action: action[:2])
    actions.reverse()
    out: list[Emission] = []
    while True:
        event_ns = engine.next_event_ns()
        if actions and (event_ns is None or actions[-1][0] < event_ns):
            at_ns, what, value = actions.pop()
            if what == 0:
                engine.submit(value, at_ns)
            elif what == 1:
                engine.cancel(value, at_ns)
            elif what == 3:
                engine.inject(value, at_ns)
            else:
                out += engine.advance(at_ns)
                at_stop(at_ns)
        elif event_ns is not None:
            out += engine.advance(event_ns)
        else:
            return out


def answer(engine: Engine, asked: EngineRequest, now_ns: int) -> Finished:
    """Send one request and wait for its answer."""
    (finished,) = (each for each in drive(engine, [(now_ns, asked)]) if isinstance(each, Finished))
    return finished


def finished_by_id(emissions: Iterable[Emission]) -> dict[int, Finished]:
    """The answers among emissions."""
    return {each.request_id: each for each in emissions if isinstance(each, Finished)}


def replica_kv_bytes(deployment: Deployment) -> int:
    """What the chips that decode have left for KV, in one replica."""
    return build_plan(deployment).replicas[0].pools[0].capacity_bytes


def spec_content(name: str) -> dict[str, Any]:
    """The content of a built-in spec file, such as `links/nvlink6`: a deployment's with that of its base."""
    path = SPECS / f"{name}.toml"
    return copy.deepcopy(whole_content(path) if name.startswith("deployments/") else parse(path))


def spec_text(content: dict[str, Any]) -> str:
    """Such a content as TOML, each number as a table of its own."""
    return "".join(_toml(content, ""))


def variant(folder: Path, base: str, **changes: float | str | None) -> Deployment:
    """A built-in deployment with other values; keys are paths with `__` for the dots, `None` removes."""
    return load_deployment(write_variant(folder, f"deployments/{base}", **changes))


def write_variant(folder: Path, base: str, **changes: float | str | None) -> Path:
    """Write a built-in spec file with other values; returns the new file."""
    content = spec_content(base)
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        table = content
        for parent in parents:
            table = table[parent]
        if value is None:
            del table[leaf]
        elif isinstance(table.get(leaf), dict):
            table[leaf]["value"] = value
        else:
            table[leaf] = value
    written = folder / f"{base.rpartition('/')[2]}.toml"
    written.write_text(spec_text(content))
    return written


def _toml(table: dict[str, Any], prefix: str) -> Iterable[str]:
    for key, value in table.items():
        if isinstance(value, str):
            yield f'{_key(key)} = "{value}"\n'
        elif not isinstance(value, dict):
            yield f"{_key(key)} = {value}\n"
    for key, value in table.items():
        if isinstance(value, dict):
            path = f"{prefix}{_key(key)}"
            yield f"\n[{path}]\n"
            yield from _toml(value, f"{path}.")


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else f'"{key}"'
