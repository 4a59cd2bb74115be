"""How InferenceX launches its engines: what of it decides how long prompts wait, by its scripts.

https://github.com/SemiAnalysisAI/InferenceX, benchmarks/*.sh. The rows do not tell these settings; model,
system, engine and load do. Nothing here is fitted.
"""

from __future__ import annotations

from agentload_simbackend._gpu_csv import GpuRow

DRAWN_MEAN = 0.9
"""InferenceX draws lengths from 0.8 to 1 times the nominal ones (random-range-ratio 0.8)."""

_DRAWN_LENGTHS = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)})

_BALANCE_STEPS = 60
"""TensorRT-LLM, attention_dp_config: enable_balance, timeout_iters: until each GPU has a prompt."""


def has_drawn_lengths(row: GpuRow) -> bool:
    """Whether a row is of InferenceX: by its lengths."""
    return (row.isl, row.osl) in _DRAWN_LENGTHS


def held_steps(row: GpuRow, arrivals_per_step: float) -> float:
    """Decode steps for which an engine lets a prompt wait on average, so that it prefills several at once."""
    if row.disaggregated or not has_drawn_lengths(row):
        return 0.0
    if row.backend == "trtllm":
        longest = _longest_hold(row)
        # The first waits until the end, those that come meanwhile for half of the time.
        come = arrivals_per_step * longest
        return longest * (1 + come / 2) / (1 + come)
    return _poll_steps(row) / 2 if row.backend == "sglang" else 0.0


def _longest_hold(row: GpuRow) -> int:
    """TensorRT-LLM: steps after which it prefills whatever has come, where the script has it wait."""
    model, streams = row.model_path.lower(), row.concurrency or 0
    if row.dp > 1:
        return _BALANCE_STEPS
    if row.isl != row.osl:
        return 0
    if "llama" in model and "70b" in model and row.tp < 8:
        return 20  # 70b_*_trt_slurm.sh: batch_wait_timeout_iters
    if "deepseek" in model and row.system == "b200_sxm" and row.precision == "fp8" and 64 <= streams < 256:
        return 40  # dsr1_fp8_b200_trt.sh: DELAY_BATCHING
    return 0


def _poll_steps(row: GpuRow) -> int:
    """SGLang: steps between two looks at what has come (dsr1_*_b200.sh: scheduler-recv-interval)."""
    if "deepseek" not in row.model_path.lower() or row.system != "b200_sxm":
        return 0
    return 10 if (row.concurrency or 0) < 16 else 30
