"""Precisions of measured rows: how weights are stored, and in which format they are multiplied."""

from __future__ import annotations

import pytest
from gpu_row_cases import ROW, case

from agentload_simbackend._gpu_rows import gpu_chip, model_name
from agentload_simbackend._gpu_terms import GpuGroup, GpuModel
from agentload_simbackend._load import load_model
from agentload_simbackend._model import ModelShape


@pytest.mark.parametrize(
    ("model_path", "precision", "bytes_per_parameter"),
    [
        ("openai/gpt-oss-120b", "", 0.5625),
        ("openai/gpt-oss-120b", "mxfp4", 0.5625),
        ("moonshotai/Kimi-K2.5", "INT4", 0.5625),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "", 1.0),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "", 2.0),
        ("moonshotai/Kimi-K2-Instruct", "", 1.0),
        ("Qwen/Qwen3-32B", "fp8_block", 1.0),
        ("Qwen/Qwen3-32B", "bfloat16", 2.0),
    ],
)
def test_a_precision_that_is_not_told_is_that_of_the_checkpoint(
    model_path: str, precision: str, bytes_per_parameter: float
) -> None:
    row = ROW._replace(model_path=model_path, precision=precision, system="b300_sxm", tp=8, moe_tp=8)
    name, chip = model_name(row.model_path), gpu_chip(row.system)
    assert name is not None
    assert chip is not None
    model = GpuModel(ModelShape(load_model(name)))
    group = GpuGroup(chip, 8, bytes_per_parameter, 1)
    terms = model.terms(group, batch=16, context=1000, prompt=921)
    assert case(row).terms.step_weights == pytest.approx(terms.step_weights)


@pytest.mark.parametrize(
    ("precision", "stored_bytes", "slower_than_fp4"),
    [
        ("nvfp4", 0.5625, 1),
        ("mxfp4", 0.5625, 1),
        ("w4a4", 0.5625, 1),
        ("w4a8_mxfp4_mxfp8", 0.5625, 3),
        ("w4a8", 0.5625, 3),
        ("W4A16_mxfp4", 0.5625, 6),
        ("w4a16", 0.5625, 6),
        ("int4", 0.5625, 6),
        ("fp8_block", 1.0, 3),
        ("w8a8", 1.0, 3),
        ("w8a16", 1.0, 6),
        ("bf16", 2.0, 6),
    ],
)
def test_a_precision_says_how_weights_are_stored_and_how_they_are_multiplied(
    precision: str, stored_bytes: float, slower_than_fp4: int
) -> None:
    """A B300 multiplies 13.5 PFLOP/s in FP4, 4.5 in FP8, 2.25 in BF16."""
    row = ROW._replace(system="b300_sxm", precision=precision, concurrency=1, batch_size=1)
    terms, fp4 = case(row).terms, case(row._replace(precision="fp4")).terms
    assert terms.step_weights == pytest.approx(fp4.step_weights * stored_bytes / 0.5625)
    assert terms.step_products == pytest.approx(slower_than_fp4 * fp4.step_products)
    assert terms.prefill_products == pytest.approx(slower_than_fp4 * fp4.prefill_products)


def test_a_precision_that_a_chip_lacks_is_computed_in_the_next_wider() -> None:
    row = ROW._replace(system="h100_sxm", precision="fp4")
    assert case(row).terms.step_products == case(row._replace(precision="w4a8")).terms.step_products
    assert case(row._replace(precision="w4a16")).terms.step_products == pytest.approx(
        2 * case(row).terms.step_products, rel=1e-3
    )


def test_what_a_model_is_published_in_decides_where_neither_row_nor_name_tells() -> None:
    kimi = ROW._replace(model_path="moonshotai/Kimi-K2.5", system="b300_sxm", tp=8, moe_tp=8, precision="")
    assert case(kimi).terms == case(kimi._replace(precision="int4")).terms
    gpt = kimi._replace(model_path="openai/gpt-oss-120b")
    assert case(gpt).terms == case(gpt._replace(precision="mxfp4")).terms
    named = ROW._replace(model_path="RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", precision="")
    assert case(named).terms == case(ROW._replace(precision="w4a16")).terms
