"""Numbers that follow from a deployment's specs, each with the weakest kind of knowledge it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
_SPLIT_STEP = r"prefill\.chip\.(hbm|fp8|bf16|decode)"
_MEMORY = (
    rf"{_WEIGHTS}|(decode|attention|draft\.lpus)\.(chips_per_replica$|gpus_per_replica$|replicas$|usable_memory$)"
    r"|(decode|draft)\.chip\.(sram|hbm|least_weight_bytes)$"
)
_RACKS = r"decode\.racks$|draft\.lpus\.racks$"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One derived number: `kind` is the weakest among the numbers that it rests on."""

    name: str
    value: float
    unit: str
    kind: Kind


def derived_figures(deployment: Deployment) -> list[Figure]:
    """Step time and speed of one stream, KV per stream, how many streams fit, and the racks."""
    return [*_speeds(deployment), *_streams(deployment), *_racks(deployment)]


def _speeds(deployment: Deployment) -> Iterator[Figure]:
    """Speeds are at concurrency 1; where GPUs decode they say the overhead per layer that they hang on."""
    model, chip = build_plan(deployment).replicas[0].steps, deployment.decode_chip
    pattern = f"{_STEP}|{_SPLIT_STEP}" if deployment.spec.attention else _STEP
    step_kind = _kind(deployment, pattern)
    speed_kind = _kind(deployment, rf"{pattern}|speculation\.acceptance_length\.")
    contexts = [each for each in _CONTEXTS if each[0] <= deployment.max_context_tokens]
    steps_s = [(label, model.step(1, context)[0] / 1e9) for context, label in contexts]
    overhead = ""
    if isinstance(chip, GpuChip):
        overhead = f", {shown_number(chip.decode.layer_overhead.value, 's')} per layer"
    for label, step_s in steps_s:
        name = f"step time, concurrency 1, context {label}{overhead}"
        yield Figure(name=name, value=step_s, unit="s", kind=step_kind)
    for label, step_s in steps_s:
        name = f"output speed, concurrency 1, context {label}, mean acceptance length{overhead}"
        value = deployment.acceptance_length / step_s
        yield Figure(name=name, value=value, unit="tokens/s", kind=speed_kind)


def _streams(deployment: Deployment) -> Iterator[Figure]:
    most, memory_kind = deployment.max_context_tokens, _kind(deployment, _MEMORY)
    stream, fit = "100K", "100K in, 1K out"
    tokens, needed = _STREAM_TOKENS, _STREAM_TOKENS + _STREAM_OUTPUT_TOKENS
    if needed > most:
        tokens = needed = most
        stream = fit = f"{most:,} tokens (the whole context)"
    kv_bytes = deployment.kv.stream_bytes(tokens)
    yield Figure(name=f"KV of a {stream} stream", value=kv_bytes, unit="B", kind=_kind(deployment, _KV))
    streams = streams_that_fit(deployment, needed)
    yield Figure(name=f"concurrent streams of {fit} that fit", value=streams, unit="count", kind=memory_kind)


def _racks(deployment: Deployment) -> Iterator[Figure]:
    for name, count in deployment.racks:
        yield Figure(
            name=f"racks, {name}", value=count, unit="count", kind=_kind(deployment, rf"{_RACKS}|kv_bytes$")
        )
    for need in memory_needs(deployment):
        if need.side == "decode" and isinstance(need.chip, LpuChip):
            racks = (need.weights_bytes + need.drafter_bytes) / (need.chip_bytes * need.rack_chips)
            name = f"racks that weights and drafter fill, at {need.usable:g} usable"
            kind = _kind(deployment, rf"{_WEIGHTS}|decode\.usable_memory$|decode\.chip\.(sram|least)")
            yield Figure(name=name, value=round(racks, 2), unit="count", kind=kind)


def _kind(deployment: Deployment, paths: str) -> Kind:
    """The weakest kind among the deployment's numbers whose path matches."""
    return weakest(number.quantity.kind for number in deployment.numbers() if re.match(paths, number.path))
