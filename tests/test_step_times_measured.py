"""What runs in the engine is what is checked against measured GPUs: one model of a group of GPUs."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from step_time_cases import FAMILIES, deployment, without_speculation

from agentload_simbackend import Deployment
from agentload_simbackend._gpu_csv import GpuRow
from agentload_simbackend._gpu_rows import GpuCase, Prediction, case_of, gpu_chip, predict
from agentload_simbackend._gpu_step import gpu_step
from agentload_simbackend._gpu_terms import GpuModel, GpuParameters
from agentload_simbackend._pieces import value_ns
from agentload_simbackend._prefill_time import PrefillModel
from agentload_simbackend._specs import GpuChip
from agentload_simbackend._step_time import gpu_group, step_model

MODELS = {
    "llama-3.1-70b": ("meta-llama/Llama-3.1-70B", (1, 2, 8)),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B", (4, 8)),
    "deepseek-r1": ("deepseek-ai/DeepSeek-R1", (8,)),
}
"""Dense, with experts, with latent attention; and on how many B200 their weights fit."""


def b200() -> GpuChip:
    chip = gpu_chip("b200_sxm")
    assert chip is not None
    return chip


def parameters() -> GpuParameters:
    found = GpuParameters.of(b200())
    assert found is not None
    return found


def on_b200(model: str) -> Deployment:
    base = without_speculation(deployment(f"{model}/rubin"))
    return dataclasses.replace(base, prefill_chip=b200(), decode_chip=b200())


def row(model: str, gpus: int, batch: int, isl: int, osl: int) -> GpuRow:
    return GpuRow(
        line=2,
        model_path=MODELS[model][0],
        system="b200_sxm",
        backend="trtllm",
        backend_version="",
        precision="fp8",
        disaggregated=False,
        concurrency=batch,
        isl=isl,
        osl=osl,
        batch_size=batch,
        tp=gpus,
        attention_dp=1,
        moe_tp=gpus,
        moe_ep=1,
        prefill_workers=0,
        prefill_tp=0,
        decode_batch_size=0,
        decode_workers=0,
        decode_tp=0,
        decode_attention_dp=0,
        ttft_s=0.2,
        tpot_s=0.007,
    )


def case(asked: GpuRow) -> GpuCase:
    found = case_of(asked)
    assert isinstance(found, GpuCase), found
    return found


groups = st.sampled_from([(model, gpus) for model, (_, counts) in MODELS.items() for gpus in counts])


@given(groups, st.integers(1, 64), st.integers(100, 8_000), st.integers(50, 1_000).map(lambda half: 2 * half))
def test_the_engine_decodes_as_measured_rows_are_predicted(
    group: tuple[str, int], batch: int, isl: int, osl: int
) -> None:
    model, gpus = group
    seen = case(row(model, gpus, batch, isl, osl))
    assume(seen.streams == batch)  # they all fit
    steps = step_model(on_b200(model), gpus)
    predicted_ns = seen.terms.step_s(parameters()) * 1e9
    assert steps.step(batch, batch * (isl + osl // 2))[0] == pytest.approx(predicted_ns, rel=1e-9)


@pytest.mark.parametrize("model", list(MODELS))
def test_alone_a_stream_has_the_predicted_tpot(model: str) -> None:
    found = predict(row(model, 8, 1, 3_000, 500))
    assert isinstance(found, Prediction)
    step_ns = step_model(on_b200(model), 8).step(1, 3_250)[0]
    assert step_ns == pytest.approx(found.tpot_s * 1e9, rel=1e-9)


@given(groups, st.integers(1, 8_192))
def test_the_engine_prefills_as_measured_rows_are_predicted(group: tuple[str, int], prompt: int) -> None:
    """One chunk; the constant is apart, as it is in the engine."""
    model, gpus = group
    terms, p = case(row(model, gpus, 1, prompt, 100)).terms, parameters()
    base = on_b200(model)
    prefill = PrefillModel(base.shape, gpu_group(base, gpus))
    assert prefill.compute_s(0, prompt) == pytest.approx(terms.prefill_s(p), rel=1e-9)
    assert prefill.latency_ns == pytest.approx(terms.prefill_layers * p.prefill_layer_overhead_s * 1e9, abs=1)


@given(
    st.sampled_from(list(FAMILIES.values())),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(0, 100_000),
)
def test_pieces_are_the_terms_at_every_context(
    model: str, gpus: int, attention_dp: int, batch: int, tokens: int, context: int
) -> None:
    """Also below a sliding window, and for states."""
    base = on_b200(model)
    group = gpu_group(base, gpus)._replace(attention_dp=min(attention_dp, gpus))
    own = batch / group.attention_dp
    terms = GpuModel(base.shape).terms(group, batch=batch, context=context, tokens=tokens)
    pieces = gpu_step(base.shape, group, batch=batch, tokens=tokens)
    expected_ns = terms.step_s(parameters()) * 1e9
    assert value_ns(pieces, own * context) == pytest.approx(expected_ns, rel=1e-9)
