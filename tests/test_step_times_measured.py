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
from agentload_simbackend._gpu_step import gpu_mixers, gpu_step
from agentload_simbackend._gpu_terms import GpuGroup, GpuModel, GpuParameters
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
        model_path=MODELS[model][0],
        system="b200_sxm",
        isl=isl,
        osl=osl,
        concurrency=batch,
        backend="trtllm",
        precision="fp8",
        batch_size=batch,
        tp=gpus,
        attention_dp=1,
        moe_tp=gpus,
        moe_ep=1,
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


def test_a_hybrid_step_worked_out_by_hand() -> None:
    """Nemotron 3 Super in FP8 on two B200: 4 streams of 10,000 tokens.

    40 Mamba-2 layers, 40 of experts in a latent space, 8 of attention; 88 exchanges; 512 dependent
    operations.
    """
    p = parameters()
    mamba = 4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 8192 * 4096
    attention = 4096 * 4096 + 2 * 4096 * 256 + 4096 * 4096
    every_token = 4096 * 512 + 2 * 4096 * 1024 + 2 * 4096 * 5376
    expert = 2 * 1024 * 2688
    touched = 512 * (1 - (1 - 22 / 512) ** 4)
    head = 4096 * 131_072
    dense = 40 * mamba + 8 * attention + 40 * every_token + head
    weights_s = (dense + 40 * touched * expert) / 2 / 8e12 / p.hbm_efficiency
    products_s = 2 * (dense + 40 * 22 * expert) * 4 / (2 * 4.5e15) / p.flops_efficiency
    assert products_s < weights_s
    # fp32 states are read and written back; each GPU has half of the heads, and one of two KV heads.
    states = 40 * 2 * (8192 * 128 * 4) / 2
    keys_and_values = 8 * 10_000 * 2 * 256 / 2
    kv_s = 4 * (states + keys_and_values) / 8e12 / p.hbm_efficiency
    overhead_s = 512 / 7 * p.layer_overhead_s + 4 * p.stream_overhead_s
    exchanged_s = 4 * 88 * (2 * 4096 * 2 / 2) / 9e11 / p.link_efficiency
    base = on_b200("nemotron-3-super-120b-a12b")
    pieces = gpu_step(base.shape, GpuGroup(b200(), 2, 1.0, 1), batch=4, tokens=1)
    expected_ns = (weights_s + kv_s + overhead_s + exchanged_s) * 1e9
    assert value_ns(pieces, 40_000) == pytest.approx(expected_ns, rel=1e-9)


def test_split_attention_worked_out_by_hand() -> None:
    """Ten full-attention layers of Gemma 4 31B on eight B200, which exchange: 2 streams, 8 tokens each.

    Of four KV heads each GPU holds one, so four of them hold copies. No fixed time per layer or stream.
    """
    p = parameters()
    layer = 5376 * (32 * 512) + 5376 * (4 * 512) + 32 * 512 * 5376
    weights_s = 10 * layer / 8 / 8e12 / p.hbm_efficiency
    assert 2 * 10 * layer * 16 / (8 * 4.5e15) / p.flops_efficiency < weights_s
    kv_s = 10 * 2 * 100_000 * (2 * 512) / 8e12 / p.hbm_efficiency
    assert 10 * 8 * 2 * 100_000 * (4 * 32 * 512) / (8 * 2.25e15) / p.flops_efficiency < kv_s
    exchanged_s = 10 * 16 * (2 * 5376 * 2 * 7 / 8) / 9e11 / p.link_efficiency
    base = on_b200("gemma-4-31b")
    pieces = gpu_mixers(base.shape, GpuGroup(b200(), 8, 1.0, 1), batch=2, tokens=8)
    assert value_ns(pieces, 200_000) == pytest.approx((weights_s + kv_s + exchanged_s) * 1e9, rel=1e-9)


def deepseek_step_s(attention_dp: int) -> float:
    """DeepSeek-R1 in FP8 on eight B200: 64 streams of 2,000 tokens; 784 operations, 122 exchanges."""
    p, tp, own = parameters(), 8 // attention_dp, 64 // attention_dp
    down, up = 7168 * 1536 + 7168 * 576, 1536 * 128 * 192 + 128 * 128 * 512
    attention = 61 * (down + up + 512 * 128 * 128 + 128 * 128 * 7168)
    network = 3 * 7168 * 2048
    touched = 256 * (1 - (1 - 8 / 256) ** 64)
    every_token = 3 * (3 * 7168 * 18_432) + 58 * (7168 * 256 + network) + 7168 * 129_280
    weights_s = (attention / tp + (every_token + 58 * touched * network) / 8) / 8e12 / p.hbm_efficiency
    # Latent attention has one head: whoever shares a stream's attention holds all of its cache.
    kv_s = own * 2_000 * 61 * 576 / 8e12 / p.hbm_efficiency
    scores = 2 * 128 * 576 + 2 * 128 * 512
    kv_s = max(kv_s, own * 2_000 * 61 * scores / (tp * 2.25e15) / p.flops_efficiency)
    overhead_s = 784 / 7 * p.layer_overhead_s + own * p.stream_overhead_s
    exchanged_s = own * 122 * (2 * 7168 * 2 * 7 / 8) / 9e11 / p.link_efficiency
    return weights_s + kv_s + overhead_s + exchanged_s


@pytest.mark.parametrize("attention_dp", [1, 2, 8])
def test_attention_data_parallelism_worked_out_by_hand(attention_dp: int) -> None:
    """Each attention group holds a copy of the attention's weights, and its own streams' cache alone."""
    shape = on_b200("deepseek-r1").shape
    group = GpuGroup(b200(), 8, 1.0, 1, attention_dp)
    own = 64 // attention_dp
    found = value_ns(gpu_step(shape, group, batch=64, tokens=1), own * 2_000) / 1e9
    assert found == pytest.approx(deepseek_step_s(attention_dp), rel=1e-9)
    model, attention = GpuModel(shape), 61 * 187_105_280
    held = attention / (8 // attention_dp) + (671_025_397_760 - attention) / 8
    assert model.weights_bytes(group) == pytest.approx(held, rel=1e-9)
    assert model.stream_bytes(group, 2_000) == 2_000 * 61 * 576


@pytest.mark.parametrize("attention_dp", [1, 2, 8])
def test_split_attention_is_shared_in_data_parallel_groups_too(attention_dp: int) -> None:
    p, tp, own = parameters(), 8 // attention_dp, 64 // attention_dp
    shape = on_b200("deepseek-r1").shape
    weights_s = 61 * 187_105_280 / tp / 8e12 / p.hbm_efficiency
    products_s = 2 * 61 * 187_105_280 * own / (tp * 4.5e15) / p.flops_efficiency
    kv_s = own * 2_000 * 61 * 576 / 8e12 / p.hbm_efficiency
    scores_s = own * 2_000 * 61 * (2 * 128 * 576 + 2 * 128 * 512) / (tp * 2.25e15) / p.flops_efficiency
    exchanged_s = own * 61 * (2 * 7168 * 2 * 7 / 8) / 9e11 / p.link_efficiency
    pieces = gpu_mixers(shape, GpuGroup(b200(), 8, 1.0, 1, attention_dp), batch=64, tokens=1)
    expected_ns = (max(weights_s, products_s) + max(kv_s, scores_s) + exchanged_s) * 1e9
    assert value_ns(pieces, own * 2_000) == pytest.approx(expected_ns, rel=1e-9)
