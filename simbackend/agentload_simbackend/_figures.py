"""Numbers that follow from a deployment's specs, each with the weakest kind of knowledge it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._fit import memory_needs, streams_that_fit
from agentload_simbackend._plan import build_plan
from agentload_simbackend._quantity import Kind, shown_number, weakest
from agentload_simbackend._specs import GpuChip, LpuChip

_CONTEXTS = ((1_000, "1K"), (10_000, "10K"), (100_000, "100K"))
_STREAM_TOKENS, _STREAM_OUTPUT_TOKENS = 100_000, 1_000

_KV = r"model\.|kv_bytes$"
_WEIGHTS = rf"{_KV}|drafter\.|weight_bytes$"
_STEP = (
    rf"{_WEIGHTS}|speculation\.draft_tokens$|attention\.|split_link\.|draft\.(?!lpus\.usable_memory$)"
    r"|decode\.(chip\.|rack\.|operation_time$|chips_per_replica$)"
)
_SPLIT_STEP = r"prefill\.chip\.(hbm_bandwidth|\w+_flops|least_weight_bytes|nvlink_|decode\.)"
_MEMORY = (
    rf"{_WEIGHTS}|(decode|attention|draft\.lpus)\.(chips_per_replica$|gpus_per_replica$|replicas$|usable_memory$)"
    r"|(decode|draft)\.chip\.(sram|hbm|least_weight_bytes)$"
)
_SPLIT_MEMORY = r"prefill\.(chip\.(hbm|least_weight_bytes)|usable_memory)$"
_RACKS = r"decode\.racks$|draft\.lpus\.racks$"
_FILLED = rf"{_WEIGHTS}|decode\.(usable_memory|rack\.chips|chip\.(sram|least_weight_bytes))$"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One derived number: `kind` is the weakest among the numbers that it rests on."""

    name: str
    value: float
    unit: str
    kind: Kind


class Derived(NamedTuple):
    """A derived number, and what the paths of the numbers that it rests on match."""

    name: str
    value: float
    unit: str
    paths: str


def derived_figures(deployment: Deployment) -> list[Figure]:
    """Step time and speed of one stream, KV per stream, how many streams fit, and the racks."""
    numbers = deployment.numbers()
    figures = []
    for name, value, unit, paths in derived(deployment):
        kind = weakest(number.quantity.kind for number in numbers if re.match(paths, number.path))
        figures.append(Figure(name=name, value=value, unit=unit, kind=kind))
    return figures


def derived(deployment: Deployment) -> Iterator[Derived]:
    """The same with the paths in place of the kinds."""
    yield from _speeds(deployment)
    yield from _streams(deployment)
    yield from _racks(deployment)


def _speeds(deployment: Deployment) -> Iterator[Derived]:
    """Speeds are at concurrency 1; where GPUs decode they say the overhead per layer that they hang on."""
    model, chip = build_plan(deployment).replicas[0].steps, deployment.decode_chip
    step = f"{_STEP}|{_SPLIT_STEP}" if deployment.spec.attention else _STEP
    speed = rf"{step}|speculation\.acceptance_length\."
    contexts = [each for each in _CONTEXTS if each[0] <= deployment.max_context_tokens]
    steps_s = [(label, model.step(1, context)[0] / 1e9) for context, label in contexts]
    overhead = ""
    if isinstance(chip, GpuChip):
        overhead = f", {shown_number(chip.decode.layer_overhead.value, 's')} per layer"
    for label, step_s in steps_s:
        yield Derived(f"step time, concurrency 1, context {label}{overhead}", step_s, "s", step)
    for label, step_s in steps_s:
        name = f"output speed, concurrency 1, context {label}, mean acceptance length{overhead}"
        yield Derived(name, deployment.acceptance_length / step_s, "tokens/s", speed)


def _streams(deployment: Deployment) -> Iterator[Derived]:
    most = deployment.max_context_tokens
    stream, fit = "100K", "100K in, 1K out"
    tokens, needed = _STREAM_TOKENS, _STREAM_TOKENS + _STREAM_OUTPUT_TOKENS
    if needed > most:
        tokens = needed = most
        stream = fit = f"{most:,} tokens (the whole context)"
    yield Derived(f"KV of a {stream} stream", deployment.kv.stream_bytes(tokens), "B", _KV)
    streams = streams_that_fit(deployment, needed)
    memory = f"{_MEMORY}|{_SPLIT_MEMORY}" if deployment.spec.attention else _MEMORY
    yield Derived(f"concurrent streams of {fit} that fit", streams, "count", memory)


def _racks(deployment: Deployment) -> Iterator[Derived]:
    for name, count in deployment.racks:
        yield Derived(f"racks, {name}", count, "count", rf"{_RACKS}|kv_bytes$")
    for need in memory_needs(deployment):
        if need.side == "decode" and isinstance(need.chip, LpuChip):
            racks = (need.weights_bytes + need.drafter_bytes) / (need.chip_bytes * need.rack_chips)
            name = f"racks that weights and drafter fill, at {need.usable:g} usable"
            yield Derived(name, round(racks, 2), "count", _FILLED)
