"""Every published number beside the simulated one, how much was fitted, and what is not known."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentload_simbackend._fidelity_gpu import GpuFidelity, fitted_gpu, gpu_fidelity
from agentload_simbackend._fidelity_gpu_figures import gpu_rows
from agentload_simbackend._fidelity_lpx import lpx_rows
from agentload_simbackend._fidelity_models import model_rows
from agentload_simbackend._fidelity_row import FidelityRow
from agentload_simbackend._fidelity_rubin import rubin_rows

PROMPTS = 4_000
"""So many that the scatter of their median, which each row's note tells, is below half a percent."""

UNKNOWN = (
    "The published figures fix only acceptance length over step time. With the acceptance of a draft token "
    "held, K = 3 to 15 and step times of 0.70 to 1.54 ms fit them as well. K, the drafter and the acceptance "
    "lengths of the published LPX runs are not known, nor is it said that they speculate: it follows from "
    "their speeds.",
    "Of a layer only the sum is identified, about 12 us: 256 or 128 LPUs, or 4 to 8 exchanges a layer, move "
    "the time of an operation by a factor of three and hardly change what is predicted.",
    "Not found in print: TTFT, percentiles and the 1K result of Artificial Analysis; the clock, power and "
    "price of LPX; bandwidth and latency of the link between the racks; any speed of several streams on LPX; "
    "any second model on LPX; a primary source for about 12 streams.",
    "Artificial Analysis counts o200k_base tokens, the simulator the model's own: a factor of 1.00 +- 0.05.",
    "Hot Chips figures come from two public transcriptions. Sources contradict each other in 38.4 and 40 "
    "PB/s, 307 and 315 PFLOP/s, 2.5 and 2.69 TB/s, 22 and 19.2 TB/s of HBM; none of it changes the "
    "calibration.",
    "10,996 tokens/s, transcribed from Hot Chips, may be one user's or a rack's: it is no target.",
    "No measured row of Rubin exists. Its overhead of a layer may be 12 to 86 us, a factor of four in speed: "
    "whoever says that LPX is N times faster must state it.",
    "GPU rows do not tell whether they speculate, nor the scheduler's settings. TTFT moves by a factor of "
    "ten between versions of one engine on the same configuration.",
)


class FittedParameters(msgspec.Struct, frozen=True, kw_only=True):
    """How many numbers were fitted to how many targets, of one part of the simulator."""

    part: str
    fitted: int
    targets: int
    what: str


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison. `drifted`: names of pinned figures that are off by more than their tolerance."""

    rows: list[FidelityRow]
    gpu: GpuFidelity
    parameters: list[FittedParameters]
    unknown: list[str]
    prompts: int
    drifted: list[str]


def fidelity(prompts: int = PROMPTS, gpu_file: str | Path | None = None) -> Fidelity:
    """Compare all that is published.

    prompts: drawn for each median of a speed. gpu_file: rows of a user's own in place of the built-in ones.
    Raises `SpecError` if that is wrong.
    """
    gpu = gpu_fidelity(gpu_file)
    rows = [*lpx_rows(prompts), *rubin_rows(), *gpu_rows(), *model_rows()]
    drifted = [row.name for row in rows if row.drifted] + [pin.name for pin in gpu.pinned if pin.drifted]
    return Fidelity(
        rows=rows,
        gpu=gpu,
        parameters=_parameters(),
        unknown=list(UNKNOWN),
        prompts=prompts,
        drifted=drifted,
    )


def _parameters() -> list[FittedParameters]:
    gpu = fitted_gpu()
    return [
        FittedParameters(
            part="LPX",
            fitted=4,
            targets=5,
            what="time of an operation, acceptance length of general text, its spread between prompts, "
            "usable SRAM; to coding median and P80, 10K, 100K, about 12 streams. The first two are fitted "
            "for groups of 128 and of 256 LPUs each",
        ),
        FittedParameters(
            part="GPU",
            fitted=gpu.parameters,
            targets=gpu.targets,
            what=f"{(gpu.parameters - 1) // gpu.types} for each of {gpu.types} fitted types of GPU, the time "
            "of a stream for all of them; to TPOT, and TTFT where it is predicted, of the rows that are not "
            "held out. Chosen by hand on these rows, not fitted: how many prompts of one length come at a "
            "time, how layers are counted in operations and launches",
        ),
        FittedParameters(
            part="Groq LPU v1", fitted=1, targets=5, what="time of a layer; to the speeds of five models"
        ),
    ]
