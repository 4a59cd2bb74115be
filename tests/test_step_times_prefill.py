"""Prefill: FLOPs of any model, chunks in closed form, and chunks between decode steps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from step_time_cases import FAMILIES, chips_of, deployment, with_part, with_values

from agentload_simbackend import Deployment
from agentload_simbackend._gpu_terms import GpuGroup, format_flops
from agentload_simbackend._lpu_step import lpu_chunk
from agentload_simbackend._model import ModelShape
from agentload_simbackend._pieces import value_ns
from agentload_simbackend._prefill_time import ChunkedPrefill, LpuPrefill, PrefillModel
from agentload_simbackend._step_time import gpu_group, lpu_work

models = st.sampled_from(list(FAMILIES.values()))
cached_tokens = st.integers(0, 200_000)
new_tokens = st.integers(1, 120_000)


def on_gpus(model: str, chips: int, **prefill: float) -> PrefillModel:
    base = deployment(f"{model}/rubin")
    group = gpu_group(base, chips)
    changed = {f"prefill__{key}": value for key, value in prefill.items()}
    return PrefillModel(base.shape, group._replace(chip=with_values(group.chip, **changed)))


def token_by_token(shape: ModelShape, cached: int, new: int) -> int:
    flops = 0
    for position in range(cached + 1, cached + new + 1):
        flops += 2 * shape.active_core_parameters
        for kind in shape.kinds:
            mixer = kind.mixer
            if mixer is None:
                continue
            keys = 1 if mixer.kind == "state_space" else min(position, mixer.window or position)
            flops += kind.count * mixer.prefill_flops_per_key * keys
    return flops


def read_s(base: Deployment, group: GpuGroup, tokens: int) -> float:
    """Reading the weights that so many tokens touch, on Rubin."""
    touched_bytes = base.shape.parameters_touched(tokens) * group.weight_bytes
    return touched_bytes / (group.chips * 19.2e12 * 0.8)


def flops_per_s(group: GpuGroup) -> float:
    return group.chips * format_flops(group.chip, group.weight_bytes) * 0.35


@given(models, st.integers(0, 3_000), st.integers(1, 300))
@example("gemma-4-31b", 900, 300)
def test_flops_are_those_of_each_token(model: str, cached: int, new: int) -> None:
    found = on_gpus(model, 8).flops(cached, new)
    assert found == token_by_token(deployment(f"{model}/rubin").shape, cached, new)


@pytest.mark.parametrize(("tokens", "petaflop"), [(1_000, 0.06), (10_000, 0.635), (100_000, 9.30)])
def test_gemma_as_on_paper(tokens: int, petaflop: float) -> None:
    assert on_gpus("gemma-4-31b", 1).flops(0, tokens) / 1e15 == pytest.approx(petaflop, abs=0.0015)


@pytest.mark.parametrize("chips", [1, 2, 4, 8])
def test_times_on_paper(chips: int) -> None:
    model = on_gpus("gemma-4-31b", chips)
    assert model.latency_ns == 30_000_000
    found = [
        model.compute_ns(*tokens) / 1e6 * chips for tokens in ((0, 10_000), (0, 100_000), (100_000, 2_000))
    ]
    assert found == pytest.approx([104, 1_520, 41.3], rel=0.005)


@given(models, cached_tokens, new_tokens, st.integers(1, 8), st.sampled_from([1, 17, 64, 512, 8_192]))
def test_chunks_in_closed_form(model: str, cached: int, new: int, chips: int, chunk: int) -> None:
    """Each chunk takes its products or the weights that its tokens touch (the longer), and attention."""
    new = min(new, 500 * chunk)
    prefill = on_gpus(model, chips, chunk=chunk)
    base = deployment(f"{model}/rubin")
    group = gpu_group(base, chips)
    expected_s, done = 0.0, 0
    while done < new:
        tokens = min(chunk, new - done)
        products = 2 * base.shape.active_core_parameters * tokens
        attention = prefill.flops(cached + done, tokens) - products
        expected_s += max(products / flops_per_s(group), read_s(base, group, tokens))
        expected_s += attention / (chips * 17.5e15 * 0.35)
        done += tokens
    assert prefill.compute_s(cached, new) == pytest.approx(expected_s, rel=1e-9)


@given(models, cached_tokens, new_tokens, st.integers(1, 5_000))
def test_more_tokens_or_context_are_never_faster(model: str, cached: int, new: int, more: int) -> None:
    prefill = on_gpus(model, 8)
    time_ns = prefill.compute_ns(cached, new)
    assert prefill.compute_ns(cached + more, new) >= time_ns
    assert prefill.compute_ns(cached, new + more) >= time_ns
    # A prefix in the cache saves time, but for the weights of one chunk where chunks fall otherwise.
    chunk_ns = prefill.compute_ns(0, 1) + on_gpus(model, 8, chunk=1_000_000).compute_ns(0, 8_192)
    assert prefill.compute_ns(cached + more, new) <= prefill.compute_ns(cached, more + new) + chunk_ns


def test_a_few_tokens_wait_for_the_weights() -> None:
    """One chunk reads what its tokens touch: a few of the experts for one token, all of them for many."""
    base = deployment("gpt-oss-120b/rubin")
    group, prefill = gpu_group(base, 8), on_gpus("gpt-oss-120b", 8)
    for tokens in (1, 64):
        assert prefill.compute_s(0, tokens) == pytest.approx(read_s(base, group, tokens), rel=1e-3)
    assert base.shape.parameters_touched(8_192) == pytest.approx(
        base.shape.core_parameters + base.shape.head.parameters
    )


def colocated(base: Deployment, chunk: int) -> ChunkedPrefill:
    if base.mode == "lpx":
        lpus = LpuPrefill(lpu_work(base, chips_of(base)), chunk)
        return ChunkedPrefill(lpus.compute_s, lpus.chunk_tokens, lpus.latency_ns)
    gpus = on_gpus(base.name.partition("/")[0], 8, chunk=chunk)
    return ChunkedPrefill(gpus.compute_s, gpus.chunk_tokens, gpus.latency_ns)


@given(
    models, st.sampled_from(["rubin", "lpx"]), cached_tokens, new_tokens, st.sampled_from([64, 512, 2_048])
)
def test_chunks_between_steps_sum_to_the_whole(
    model: str, mode: str, cached: int, new: int, chunk: int
) -> None:
    base = deployment(f"{model}/{mode}")
    chunked = colocated(base, chunk)
    chunks, first_ns, growth_ns = chunked.plan(cached, new)
    assert chunks == -(-new // chunk)
    assert first_ns >= 0
    assert growth_ns >= 0
    total_ns = chunks * first_ns + growth_ns * chunks * (chunks - 1) / 2
    model_s = (
        LpuPrefill(lpu_work(base, chips_of(base)), chunk).compute_s(cached, new)
        if mode == "lpx"
        else on_gpus(model, 8, chunk=chunk).compute_s(cached, new)
    )
    assert total_ns == pytest.approx(model_s * 1e9, rel=1e-9)


@given(models, cached_tokens, st.integers(1, 64))
def test_lpus_pass_over_each_chunk(model: str, cached: int, chunks: int) -> None:
    """Each pass attends to what was there before it and to half of itself."""
    base = deployment(f"{model}/lpx")
    work, chunk = lpu_work(base, chips_of(base)), 512
    passes = lpu_chunk(work, chunk)
    expected_ns = sum(value_ns(passes, cached + chunk * index + (chunk + 1) / 2) for index in range(chunks))
    prefill = LpuPrefill(work, chunk)
    assert prefill.compute_s(cached, chunk * chunks) * 1e9 == pytest.approx(expected_ns, rel=1e-9)
    # Once for a prompt, not for every chunk: output head and host.
    assert prefill.latency_ns == pytest.approx((work.group.head_s + work.group.host_s) * 1e9)


@given(models, cached_tokens, new_tokens, st.integers(1, 2_000))
def test_lpus_take_longer_for_more(model: str, cached: int, new: int, more: int) -> None:
    base = deployment(f"{model}/lpx")
    prefill = LpuPrefill(lpu_work(base, chips_of(base)), 512)
    time_s = prefill.compute_s(cached, new)
    assert prefill.compute_s(cached + more, new) >= time_s * (1 - 5e-4)
    assert prefill.compute_s(cached, new + more) >= time_s * (1 - 5e-4)


def test_slower_memory_slows_what_waits_for_it() -> None:
    base = deployment("gpt-oss-120b/rubin")
    slow = with_part(base, "decode_chip", hbm_bandwidth=1e12)
    fast_s, slow_s = (PrefillModel(each.shape, gpu_group(each, 8)).compute_s(0, 64) for each in (base, slow))
    assert slow_s == pytest.approx(19.2 * fast_s, rel=1e-3)


def test_attention_is_computed_at_its_own_rate() -> None:
    """In FP8 on Rubin, for its MFU is stated so; in BF16 where a chip does not say."""
    base = deployment("gemma-4-31b/rubin")
    group = gpu_group(base, 8)
    plain = group._replace(chip=msgspec.structs.replace(group.chip, attention_flops=None))
    own_s, plain_s = (PrefillModel(base.shape, each).compute_s(0, 100_000) for each in (group, plain))
    attention = on_gpus("gemma-4-31b", 8).flops(0, 100_000) - 2 * base.shape.active_core_parameters * 100_000
    expected_s = attention / (8 * 0.35) * (1 / 4e15 - 1 / 17.5e15)
    assert plain_s - own_s == pytest.approx(expected_s)
