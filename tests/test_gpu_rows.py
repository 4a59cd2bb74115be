"""Measured GPU rows: reading them, and what the model says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from gpu_row_cases import PARAMETERS, ROW, SYSTEMS, case, predicted
from hypothesis import given
from hypothesis import strategies as st

from agentload_simbackend._gpu_rows import (
    MEASURED,
    NotApplicable,
    Prediction,
    gpu_chip,
    model_name,
    predict,
    read_gpu_rows,
)
from agentload_simbackend._gpu_terms import GpuGroup, GpuModel
from agentload_simbackend._load import list_models, load_model
from agentload_simbackend._model import ModelShape
from agentload_simbackend._quantity import Quantity
from agentload_traces import SpecError


def test_the_built_in_rows_are_read_whole() -> None:
    rows = read_gpu_rows()
    assert len(rows) == len(MEASURED.read_text().splitlines()) - 1 == 2765
    first = rows[0]
    assert (first.line, first.model_path, first.system) == (2, "deepseek-ai/DeepSeek-R1", "gb200")
    assert (first.concurrency, first.batch_size, first.tp) == (None, 28, 8)
    assert first.ttft_s == pytest.approx(39.6828, rel=1e-5)
    assert {row.precision for row in rows} == {"fp4", "fp8", ""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("silicon_ttft_ms", "ttft"), "column silicon_ttft_ms is missing"),
        ((",fp4,agg,", ",fp4,half,"), 'line 2: mode is "half", must be agg or disagg'),
        (("39682.8381495343", "-1"), 'line 2: silicon_ttft_ms is "-1", must be 1e-06 to 1e+09 ms'),
        (("39682.8381495343", "nan"), 'line 2: silicon_ttft_ms is "nan", must be 1e-06 to 1e+09 ms'),
        (("39682.8381495343", "1e-320"), 'silicon_ttft_ms is "1e-320", must be 1e-06 to 1e+09 ms'),
        (("39682.8381495343", "1e308"), 'silicon_ttft_ms is "1e308", must be 1e-06 to 1e+09 ms'),
        (
            (",4000,1000,28,", ",4000,1000,2.5,"),
            'line 2: batch_size is "2.5", must be a whole number or empty',
        ),
        ((",4000,1000,28,", ",1e300,1000,28,"), 'line 2: isl is "1e300", must be a whole number or empty'),
        ((",4000,1000,28,", ",0,1000,28,"), "line 2: isl must be a number of tokens above 0"),
        ((",31.491031573249757", ""), "line 2: must have one field for each column"),
    ],
)
def test_a_bad_row_is_named_with_line_and_field(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    lines = MEASURED.read_text().splitlines()[:2]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(line.replace(*change) for line in lines) + "\n")
    with pytest.raises(SpecError) as error:
        read_gpu_rows(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_file_without_a_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(MEASURED.read_text().splitlines()[0] + "\n")
    with pytest.raises(SpecError, match=r"rows\.csv: no row under the header"):
        read_gpu_rows(path)


def test_names_are_shown_as_printable_text(tmp_path: Path) -> None:
    lines = MEASURED.read_text().splitlines()[:2]
    path = tmp_path / "rows.csv"
    path.write_text("\ufeff" + "\n".join(lines).replace("deepseek-ai/", "deepseek-ai/\x1b[31m") + "\n")
    (row,) = read_gpu_rows(path)
    found = predict(row)
    assert isinstance(found, NotApplicable)
    assert found.reason.isprintable()


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_gpu_rows(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(MEASURED.read_bytes()[:300] + b"\xff\xfe,")
    with pytest.raises(SpecError, match="not CSV in UTF-8"):
        read_gpu_rows(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("META-LLAMA/LLAMA-3.1-8B-INSTRUCT", "llama-3.1-8b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.1-70b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "qwen3-coder-480b-a35b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("nvidia/Kimi-K2-Thinking-NVFP4", "kimi-k2"),
        ("RedHatAI/gpt-oss-120b-FP8-dynamic", "gpt-oss-120b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "nemotron-3-super-120b-a12b"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "nemotron-3-ultra-550b-a55b"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-r1"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "llama-3.1-70b"),
        ("someone/else-7b", None),
    ],
)
def test_a_checkpoint_finds_its_model_whatever_case_and_suffix(checkpoint: str, name: str | None) -> None:
    assert model_name(checkpoint) == name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"system": "tpu_v9"}, "no spec of system tpu_v9"),
        ({"model_path": "someone/else-7b"}, "no spec of model someone/else-7b"),
        ({"precision": "int3"}, "precision int3 is not known"),
        ({"precision": "int8"}, "precision int8 is not known"),
        ({"pp": 2}, "pipeline parallelism"),
        ({"isl": 131_072}, "longer than the context of Llama 3.1 70B: 131,072 tokens"),
        ({"tp": 1, "moe_tp": 1, "precision": "bf16", "isl": 100_000}, "one stream does not fit"),
        ({"concurrency": None}, "concurrency missing"),
        ({"batch_size": 8}, "batch limit below the concurrency"),
        ({"tp": 32, "moe_tp": 32}, "tensor parallelism over more than 8 GPUs"),
        ({"system": "h100_sxm", "tp": 1, "moe_tp": 1, "precision": "bf16"}, "the weights do not fit"),
        ({"disaggregated": True}, "disaggregated, without the number of decode workers"),
        (
            {"model_path": "deepseek-ai/DeepSeek-R1", "tp": 8, "backend_version": "1.2.0rc6.post3"},
            "speculation unknown",
        ),
        (
            {
                "model_path": "deepseek-ai/DeepSeek-R1",
                "disaggregated": True,
                "decode_workers": 1,
                "decode_tp": 8,
            },
            "speculation unknown",
        ),
    ],
)
def test_what_a_row_does_not_tell_makes_it_not_applicable(change: dict[str, object], reason: str) -> None:
    row = ROW._replace(**change)  # type: ignore[arg-type]
    found = predict(row)
    assert isinstance(found, NotApplicable)
    assert found.reason.startswith(reason)
    other = predict(row._replace(ttft_s=99.0, tpot_s=1.0))
    assert other == found, "the rules must not look at what was measured"


def test_a_prediction_depends_on_the_inputs_alone() -> None:
    assert predict(ROW) == predict(ROW._replace(ttft_s=99.0, tpot_s=1.0, line=7))


def test_groups_that_are_counted_twice_are_the_same_as_those_that_are_not() -> None:
    r1 = ROW._replace(model_path="deepseek-ai/DeepSeek-R1", precision="fp4", backend_version="1.2.0rc6.post2")
    twice = predicted(r1._replace(tp=64, moe_tp=8, moe_ep=8))
    assert twice == predicted(r1._replace(tp=8, moe_tp=1, moe_ep=8))
    split_attention = r1._replace(tp=1, attention_dp=64, moe_tp=8, moe_ep=8, concurrency=64, batch_size=1)
    once = r1._replace(tp=1, attention_dp=8, moe_tp=1, moe_ep=8, concurrency=64, batch_size=8)
    assert predicted(split_attention) == predicted(once)


def test_streams_that_do_not_fit_have_a_tpot_but_no_ttft() -> None:
    crowded = ROW._replace(tp=1, moe_tp=1, concurrency=512, batch_size=512, isl=8192)
    more = crowded._replace(concurrency=1024, batch_size=1024)
    assert predicted(crowded).ttft_s is None
    assert predicted(crowded).tpot_s == predicted(more).tpot_s, "no more streams than fit decode at a time"


def test_a_disaggregated_row_decodes_without_waiting_for_prompts() -> None:
    apart = ROW._replace(disaggregated=True, decode_workers=1, decode_tp=4, prefill_tp=4)
    assert predicted(apart).tpot_s < predicted(ROW).tpot_s
    halved = predicted(apart._replace(decode_workers=2))
    assert halved.tpot_s < predicted(apart).tpot_s
    full = predicted(apart._replace(concurrency=None, decode_batch_size=16))
    assert full == Prediction(None, predicted(apart).tpot_s)


@given(
    system=st.sampled_from(SYSTEMS),
    concurrency=st.integers(1, 128),
    isl=st.integers(100, 8000),
    osl=st.integers(50, 3000),
    more=st.integers(1, 64),
)
def test_more_load_or_longer_prompts_are_never_faster(
    system: str, concurrency: int, isl: int, osl: int, more: int
) -> None:
    row = ROW._replace(system=system, tp=8, moe_tp=8, isl=isl, osl=osl, concurrency=concurrency, batch_size=0)
    now = predicted(row)
    crowded = predicted(row._replace(concurrency=concurrency + more))
    longer = predicted(row._replace(isl=isl + more))
    assert crowded.tpot_s >= now.tpot_s * (1 - 1e-12)
    assert longer.tpot_s >= now.tpot_s * (1 - 1e-12)
    if now.ttft_s is not None and crowded.ttft_s is not None and longer.ttft_s is not None:
        assert crowded.ttft_s >= now.ttft_s * (1 - 1e-12)
        assert longer.ttft_s >= now.ttft_s * (1 - 1e-12)


@given(
    model=st.sampled_from(list_models()),
    gpus=st.sampled_from([1, 2, 4, 8]),
    precision=st.sampled_from(["fp4", "fp8", "bf16"]),
    factor=st.floats(1.0, 4.0),
    batch=st.integers(1, 256),
    context=st.integers(1, 100_000),
)
def test_a_faster_gpu_is_never_slower(
    model: str, gpus: int, precision: str, factor: float, batch: int, context: int
) -> None:
    chip = gpu_chip("b200_sxm")
    assert chip is not None

    def faster(quantity: Quantity) -> Quantity:
        return msgspec.structs.replace(quantity, value=quantity.value * factor)

    assert chip.nvlink_bandwidth is not None
    seen = GpuModel(ModelShape(load_model(model)))
    times = []
    for changed in (
        chip,
        msgspec.structs.replace(chip, hbm_bandwidth=faster(chip.hbm_bandwidth)),
        msgspec.structs.replace(chip, bf16_flops=faster(chip.bf16_flops)),
        msgspec.structs.replace(chip, nvlink_bandwidth=faster(chip.nvlink_bandwidth)),
    ):
        terms = seen.terms(
            GpuGroup.of(changed, gpus, 1, precision), batch=batch, context=context, prompt=context
        )
        times.append((terms.step_s(PARAMETERS), terms.prefill_s(PARAMETERS)))
    for step_s, prefill_s in times[1:]:
        assert 0 < step_s <= times[0][0] * (1 + 1e-12)
        assert 0 < prefill_s <= times[0][1] * (1 + 1e-12)


def test_prompts_of_one_length_come_together_and_wait_for_each_other() -> None:
    drawn, equal = case(ROW), case(ROW._replace(isl=1000))
    assert (drawn.clump, equal.clump) == (1.0, 3.0)
    assert case(ROW._replace(isl=1000, concurrency=1)).clump == 1.0
    assert case(ROW._replace(isl=1000, concurrency=3)).clump == 2.0
    assert case(ROW._replace(isl=1000, backend="sglang")).clump == 8.5
    alone = equal._replace(clump=1.0)
    ttft_s, tpot_s = equal.times(PARAMETERS)
    assert ttft_s == pytest.approx(alone.times(PARAMETERS)[0] + 2 * equal.terms.prefill_s(PARAMETERS))
    assert tpot_s < alone.times(PARAMETERS)[1], "what comes with a prompt does not delay its decode"


def test_an_engine_that_gathers_prompts_holds_them_for_decode_steps() -> None:
    held = case(ROW)
    assert 10 < held.held_steps < 20
    assert case(ROW._replace(concurrency=1)).held_steps == pytest.approx(20, rel=0.02)
    for change in ({"tp": 8, "moe_tp": 8}, {"osl": 8192}, {"backend": "vllm"}, {"isl": 1000}):
        assert case(ROW._replace(**change)).held_steps == 0.0  # type: ignore[arg-type]
    deepseek = ROW._replace(model_path="deepseek-ai/DeepSeek-R1", backend="sglang", precision="fp4", tp=8)
    assert case(deepseek._replace(concurrency=8)).held_steps == 5
    assert case(deepseek).held_steps == 15
    ttft_s, tpot_s = held.times(PARAMETERS)
    at_once_s, same_s = held._replace(held_steps=0.0).times(PARAMETERS)
    assert ttft_s - at_once_s == pytest.approx(held.held_steps * held.terms.step_s(PARAMETERS))
    assert tpot_s == same_s
