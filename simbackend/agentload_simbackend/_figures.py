"""Numbers that follow from a deployment's specs, each with the weakest kind of knowledge it rests on."""

from __future__ import annotations

import re

import msgspec

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._quantity import Kind, weakest
from agentload_simbackend._step_time import step_model

_CONTEXTS = ((1_000, "1K"), (10_000, "10K"), (100_000, "100K"))
_STREAM_TOKENS, _STREAM_OUTPUT_TOKENS = 100_000, 1_000

_KV = r"model\.|kv_bytes$"
_STEP = (
    rf"{_KV}|drafter\.|weight_bytes$|speculation\.draft_tokens$"
    r"|decode\.(chip\.|rack\.|operation_time$|chips_per_replica$)"
)
_MEMORY = (
    rf"{_KV}|drafter\.parameters$|weight_bytes$"
    r"|decode\.(chip\.(sram|hbm)$|chips_per_replica$|replicas$|usable_memory$)"
)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One derived number: `kind` is the weakest among the numbers that it rests on."""

    name: str
    value: float
    unit: str
    kind: Kind


def derived_figures(deployment: Deployment) -> list[Figure]:
    """Step time and speed of one stream, KV per stream, and how many streams fit."""
    figures = []
    model = step_model(deployment)
    step_kind = _kind(deployment, _STEP)
    speed_kind = _kind(deployment, rf"{_STEP}|speculation\.acceptance_length\.")
    steps_s = [(label, model.step(1, context)[0] / 1e9) for context, label in _CONTEXTS]
    for label, step_s in steps_s:
        name = f"step time, concurrency 1, context {label}"
        figures.append(Figure(name=name, value=step_s, unit="s", kind=step_kind))
    for label, step_s in steps_s:
        name = f"output speed, concurrency 1, context {label}, mean acceptance length"
        value = deployment.acceptance_length / step_s
        figures.append(Figure(name=name, value=value, unit="tokens/s", kind=speed_kind))
    kv_bytes = deployment.kv.stream_bytes(_STREAM_TOKENS)
    figures.append(Figure(name="KV of a 100K stream", value=kv_bytes, unit="B", kind=_kind(deployment, _KV)))
    need_bytes = deployment.kv.stream_bytes(_STREAM_TOKENS + _STREAM_OUTPUT_TOKENS)
    fit = deployment.replica_kv_bytes // need_bytes * deployment.spec.decode.replicas.whole
    name = "concurrent streams of 100K in, 1K out that fit"
    figures.append(Figure(name=name, value=fit, unit="count", kind=_kind(deployment, _MEMORY)))
    return figures


def _kind(deployment: Deployment, paths: str) -> Kind:
    """The weakest kind among the deployment's numbers whose path matches."""
    return weakest(number.quantity.kind for number in deployment.numbers() if re.match(paths, number.path))
