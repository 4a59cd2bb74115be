"""A measured row of a GPU system, and what the model makes of such rows."""

from __future__ import annotations

from agentload_simbackend._gpu_rows import GpuCase, GpuRow, Prediction, case_of, predict
from agentload_simbackend._gpu_terms import GpuParameters

SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
ROW = GpuRow(
    model_path="meta-llama/Llama-3.1-70B",
    system="b200_sxm",
    isl=1024,
    osl=1024,
    concurrency=16,
    backend="trtllm",
    precision="fp8",
    batch_size=16,
    tp=4,
    attention_dp=1,
    moe_tp=4,
    moe_ep=1,
    ttft_s=0.2,
    tpot_s=0.007,
)
PARAMETERS = GpuParameters(0.8, 60e-6, 30e-6, 0.5, 1e-3, 0.5)


def predicted(row: GpuRow) -> Prediction:
    found = predict(row)
    assert isinstance(found, Prediction), found
    return found


def case(row: GpuRow) -> GpuCase:
    found = case_of(row)
    assert isinstance(found, GpuCase), found
    return found
