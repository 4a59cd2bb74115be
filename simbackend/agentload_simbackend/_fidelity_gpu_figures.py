"""Published single figures of GPU systems beside the predicted ones."""

from __future__ import annotations

from collections.abc import Iterator

from agentload_simbackend._fidelity_row import AICONFIGURATOR, FidelityRow, fidelity_row
from agentload_simbackend._gpu_csv import GpuRow
from agentload_simbackend._gpu_rows import Prediction, gpu_chip, gpu_parameters, predict
from agentload_simbackend._gpu_terms import GpuGroup, GpuModel
from agentload_simbackend._load import load_model
from agentload_simbackend._model import ModelShape


def gpu_rows() -> Iterator[FidelityRow]:
    """GPT-OSS-120B at concurrency 1, and two prefills of DeepSeek-R1."""
    for isl, tp, ttft_ms, tpot_ms in ((1024, 4, 37.5, 1.90), (8192, 8, 107.0, 1.87)):
        found = predict(_alone(isl, tp))
        assert isinstance(found, Prediction)
        assert found.ttft_s is not None
        conditions = (
            f"disaggregated, decode TP{tp}, concurrency 1, {isl // 1024}K in, 1K out; parameters of the B200"
        )
        name = f"GPT-OSS-120B FP4 on GB200, {isl // 1024}K/1K"
        source = AICONFIGURATOR
        yield fidelity_row(
            f"{name}, TPOT", tpot_ms, found.tpot_s * 1e3, "ms", "predicted", conditions, source
        )
        yield fidelity_row(
            f"{name}, TTFT", ttft_ms, found.ttft_s * 1e3, "ms", "predicted", conditions, source
        )
    prompt, gpus = 2_000, 8
    yield fidelity_row(
        "DeepSeek-R1 prefill on GB200",
        26_156,
        prompt / (_deepseek_prefill_s("gb200", prompt, gpus, gpus, reading=False) * gpus),
        "tokens/s/GPU",
        "predicted",
        "prompts of 2,000 tokens, FP4; taken as 8 GPUs, each with the attention of its own prompts, and so "
        "many prompts at a time that reading weights does not matter; parameters of the B200",
        "https://lmsys.org/blog/2025-09-25-gb200-part-2",
    )
    prompt, gpus = 131_072, 8
    yield fidelity_row(
        "DeepSeek-R1 on GB300, TTFT of 128K",
        8.6,
        _deepseek_prefill_s("gb300", prompt, gpus, 1),
        "s",
        "predicted",
        "one prompt, FP4; taken as TP8, for the number of GPUs is not told; parameters of the B200",
        "https://www.lmsys.org/blog/2026-02-19-gb300-longctx",
    )


def _deepseek_prefill_s(
    system: str, prompt: int, gpus: int, attention_dp: int, *, reading: bool = True
) -> float:
    chip = gpu_chip(system)
    assert chip is not None
    model = GpuModel(ModelShape(load_model("deepseek-r1")))
    terms = model.terms(GpuGroup.of(chip, gpus, attention_dp, "fp4"), batch=1, context=prompt, prompt=prompt)
    if not reading:
        terms = terms._replace(prefill_weights=0.0)
    return terms.prefill_s(gpu_parameters(system))


def _alone(isl: int, tp: int) -> GpuRow:
    return GpuRow(
        model_path="openai/gpt-oss-120b",
        system="gb200",
        isl=isl,
        osl=1024,
        concurrency=1,
        backend="trtllm",
        precision="fp4",
        disaggregated=True,
        prefill_tp=tp,
        decode_workers=1,
        decode_tp=tp,
        decode_attention_dp=1,
    )
