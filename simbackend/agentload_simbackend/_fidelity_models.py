"""What follows from the sizes of models alone, and the form of the older LPU's speeds."""

from __future__ import annotations

from collections.abc import Iterator

from agentload_simbackend._fidelity_row import CONFIGS, FidelityRow, fidelity_row
from agentload_simbackend._load import load_deployment, load_model
from agentload_simbackend._memory import KvShape
from agentload_simbackend._model import ModelShape
from agentload_simbackend._quantile import quantile
from agentload_simbackend._specs import LpuChip

_GEMMA_KV_GB = ((1_000, 0.46), (10_000, 0.83), (100_000, 4.52), (262_144, 11.2))
_KV_GB = (
    ("gemma-4-26b-a4b", 1.13),
    ("llama-3.1-8b", 6.55),
    ("llama-3.1-70b", 16.4),
    ("gpt-oss-120b", 1.84),
    ("deepseek-r1", 3.51),
    ("kimi-k2", 3.51),
    ("qwen3-235b-a22b", 9.63),
    ("qwen3-coder-480b-a35b", 12.7),
)
"""FP8 KV of 100K."""

_LPX_RACKS = (
    ("gemma-4-31b", 0.27),
    ("llama-3.1-70b", 0.61),
    ("gpt-oss-120b", 1.01),
    ("qwen3-235b-a22b", 2.0),
    ("qwen3-coder-480b-a35b", 4.2),
    ("nemotron-3-ultra-550b-a55b", 4.8),
    ("deepseek-r1", 5.8),
    ("kimi-k2", 8.9),
)
_USABLE_SRAM = 0.9
_KV_TOLERANCE, _RACKS_TOLERANCE = 0.01, 0.025
"""Published with three digits, with two."""

_GROQ_V1 = (
    ("Llama-3.1-8B", 32, 655.0, "560 to 750, their middle"),
    ("Llama-3.3-70B", 80, 280.0, "about 280"),
    ("Llama-2-70B", 80, 241.0, "241"),
    ("GPT-OSS-20B", 24, 957.0, "957"),
    ("GPT-OSS-120B", 36, 476.0, "476"),
)
"""Model, layers, tokens/s of one stream."""

_GROQ_SOURCE = (
    "https://artificialanalysis.ai/models/gpt-oss-120b/providers , "
    "https://groq.com/blog/inside-the-lpu-deconstructing-groq-speed , "
    "https://neuraplus-ai.github.io/blog/groq-lpu-vs-gpu-latency-test-results.html"
)


def model_rows() -> Iterator[FidelityRow]:
    """KV sizes, LPX racks for weights, and Groq LPU v1 by layers."""
    yield from _kv()
    yield from _racks()
    yield from _groq_v1()


def groq_v1_layer_s() -> float:
    """The one constant fitted to five models: the median of their times per layer."""
    times = [1 / speed / layers for _, layers, speed, _ in _GROQ_V1]
    return quantile(times, 0.5) or 0.0


def _kv() -> Iterator[FidelityRow]:
    stated = [("gemma-4-31b", tokens, size) for tokens, size in _GEMMA_KV_GB]
    stated += [(name, 100_000, size) for name, size in _KV_GB]
    for name, tokens, published in stated:
        kv = KvShape.of(ModelShape(load_model(name)), 1)
        yield fidelity_row(
            f"KV of {tokens // 1000}K tokens, {name}",
            published,
            kv.stream_bytes(tokens) / 1e9,
            "GB",
            "paper",
            "FP8; K and V apart; windows whole",
            CONFIGS,
            tolerance=_KV_TOLERANCE,
        )


def _racks() -> Iterator[FidelityRow]:
    deployment = load_deployment("gemma4-31b/pd")
    chip, rack = deployment.decode_chip, deployment.decode_rack
    assert isinstance(chip, LpuChip)
    for name, published in _LPX_RACKS:
        model = load_model(name)
        weights = model.parameters.value * max(1.0, chip.least_weight_bytes.value)
        yield fidelity_row(
            f"LPX racks for the weights of {name}",
            published,
            weights / (rack.chips.value * chip.sram.value * _USABLE_SRAM),
            "racks",
            "paper",
            f"FP8, {_USABLE_SRAM:.0%} of SRAM usable",
            CONFIGS,
            tolerance=_RACKS_TOLERANCE,
        )


def _groq_v1() -> Iterator[FidelityRow]:
    layer_s = groq_v1_layer_s()
    for name, layers, published, stated in _GROQ_V1:
        yield fidelity_row(
            f"Groq LPU v1, {name}",
            published,
            1 / (layers * layer_s),
            "tokens/s",
            "fitted",
            f"{layers} layers x {layer_s * 1e6:.1f} us, one constant for five models; {stated}",
            _GROQ_SOURCE,
        )
