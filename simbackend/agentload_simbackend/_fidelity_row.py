"""One published number beside the simulated one."""

from __future__ import annotations

from typing import Literal

import msgspec

FidelityKind = Literal["fitted", "predicted", "paper"]
"""fitted: a parameter was chosen so that this figure comes out. predicted: none was. paper: the figure is
itself worked out, from a model on paper or from sizes; it checks the arithmetic and proves nothing."""

ErrorKind = Literal["relative", "points", "count"]


class FidelityRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published number and the simulated one.

    error: of the simulated to the published number, as a share of it (relative), as a difference of shares
        (points), or as a difference (count).
    tolerance: for pinned figures, the largest |error|; others have none.
    simulated_scatter: relative standard deviation of the simulated median, for as many prompts as were drawn;
        published_scatter: the same for as many as were published.
    """

    name: str
    published: float
    simulated: float
    unit: str
    error: float
    error_kind: ErrorKind
    kind: FidelityKind
    conditions: str
    source: str
    tolerance: float | None = None
    drifted: bool = False
    simulated_scatter: float | None = None
    published_scatter: float | None = None


def fidelity_row(
    name: str,
    published: float,
    simulated: float,
    unit: str,
    kind: FidelityKind,
    conditions: str,
    source: str,
    *,
    error_kind: ErrorKind = "relative",
    tolerance: float | None = None,
    scatter: tuple[float, float] | None = None,
) -> FidelityRow:
    """A row with its error; `scatter`: simulated and published."""
    difference = simulated - published
    error = difference / published if error_kind == "relative" else difference
    return FidelityRow(
        name=name,
        published=published,
        simulated=simulated,
        unit=unit,
        error=error,
        error_kind=error_kind,
        kind=kind,
        conditions=conditions,
        source=source,
        tolerance=tolerance,
        drifted=tolerance is not None and not abs(error) <= tolerance,
        simulated_scatter=scatter[0] if scatter else None,
        published_scatter=scatter[1] if scatter else None,
    )


PAPER = "calibration on paper: the README of simbackend, calibration on published figures"
LPX_BLOG = (
    "https://developer.nvidia.com/blog/"
    "how-nvidia-groq-3-lpx-unlocks-ultrafast-interactivity-at-long-context-on-nvidia-vera-rubin/"
)
HOT_CHIPS = (
    "Hot Chips 2026, transcribed: https://github.com/lukebest/AI_infra_LLM_wiki/blob/"
    "855587bd22333c7982755161fb2749f5d0de2ba4/papers/hc2026-nvidia-groq-3-lpx.md"
)
VLLM_PR = "https://github.com/vllm-project/vllm/pull/41745"
AICONFIGURATOR = (
    "https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce/"
    "aic-core/src/aiconfigurator_core/systems (silicon_sample.csv)"
)
CONFIGS = (
    "https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce/"
    "aic-core/src/aiconfigurator_core/model_configs"
)
