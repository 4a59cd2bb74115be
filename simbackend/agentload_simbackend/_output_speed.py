"""Output speed of single streams, one after the other, as benchmarks of output speed measure it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentload_simbackend._acceptance import Acceptance, yields
from agentload_simbackend._step_time import StepModel


def output_speeds(
    steps: StepModel, acceptance: Acceptance, *, input_tokens: int, output_tokens: int, prompts: int
) -> list[float]:
    """Tokens/s of each prompt: the tokens after those of the first step, over the time since its end."""
    speeds = []
    for prompt in range(prompts):
        draw = acceptance.draw("output speed", str(prompt), output_tokens)
        first = yields(draw, output_tokens)[0]
        rest, later = output_tokens - first, draw[0] - 1
        if later:
            # The step time is linear in the context, so the steps at its middle stand for all.
            step_ns = steps.step(1, input_tokens + first + rest / 2)[0]
            speeds.append(rest / (later * step_ns) * 1e9)
    return speeds


def median_scatter(values: Sequence[float], samples: int) -> float:
    """Standard deviation of the median of `samples` such values over it, as of normal variates."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return math.sqrt(math.pi / 2 * variance / samples) / mean
