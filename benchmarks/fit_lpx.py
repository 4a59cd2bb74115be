"""Fit what the LPX of the Gemma deployments has in place of unpublished numbers, and print it.

    python benchmarks/fit_lpx.py

For each group of LPUs (TP128, TP256):

    operation_time      so that the SPEED-Bench coding median comes out, at the acceptance length that was
                        measured on other hardware
    general             acceptance length, so that the errors of the Artificial Analysis speeds at 10K and at
                        100K balance
    prompt_cv           so that the SPEED-Bench coding P80 over the median comes out; of TP256, for both

The values go by hand into specs/deployments/gemma4-31b/*.toml.
"""

from __future__ import annotations

from collections.abc import Callable

from agentload_simbackend import Deployment, load_deployment
from agentload_simbackend._acceptance import Acceptance
from agentload_simbackend._fidelity_lpx import AA_OUTPUT, CODING_INPUT, CODING_OUTPUT, PUBLISHED
from agentload_simbackend._lpu_step import lpu_drafted_step
from agentload_simbackend._output_speed import output_speeds
from agentload_simbackend._quantile import quantile
from agentload_simbackend._step_time import StepModel, lpu_work

PROMPTS = 20_000


def main() -> None:
    cv = prompt_cv(load_deployment("gemma4-31b/pd-1replica"))
    print(f"prompt_cv {cv:.4f}")
    for name in ("gemma4-31b/pd-1replica", "gemma4-31b/pd"):
        deployment = load_deployment(name)
        operation_s = bisect(
            lambda s, d=deployment: -coding(d, steps(d, s), cv, 0.5), -PUBLISHED["coding"], 1e-8, 1e-6
        )
        model = steps(deployment, operation_s)
        general = bisect(lambda al, d=deployment, m=model: balance(d, m, al, cv), 0.0, 3.0, 5.0)
        print(f"{name}: operation_time {operation_s:.4g} s, acceptance_length.general {general:.3f}")


def steps(deployment: Deployment, operation_s: float) -> StepModel:
    work = lpu_work(deployment, deployment.spec.decode.chips_per_replica.whole)
    work = work._replace(group=work.group._replace(operation_time_s=operation_s))
    drafts = deployment.draft_tokens
    return StepModel(lambda batch: lpu_drafted_step(work, deployment.drafter, batch, drafts))


def coding(deployment: Deployment, model: StepModel, cv: float, q: float) -> float:
    speculation = deployment.spec.speculation
    assert speculation is not None
    acceptance = Acceptance(0, deployment.draft_tokens, speculation.acceptance_length["coding"].value, cv)
    speeds = output_speeds(
        model, acceptance, input_tokens=CODING_INPUT, output_tokens=CODING_OUTPUT, prompts=PROMPTS
    )
    return quantile(speeds, q) or 0.0


def balance(deployment: Deployment, model: StepModel, general: float, cv: float) -> float:
    """Sum of the relative errors at 10K and 100K."""
    acceptance = Acceptance(0, deployment.draft_tokens, general, cv)
    total = 0.0
    for context, key in ((10_000, "aa_10k"), (100_000, "aa_100k")):
        speeds = output_speeds(
            model, acceptance, input_tokens=context, output_tokens=AA_OUTPUT, prompts=PROMPTS // 2
        )
        total += (quantile(speeds, 0.5) or 0.0) / PUBLISHED[key] - 1
    return total


def prompt_cv(deployment: Deployment) -> float:
    """The ratio does not depend on the step time."""
    model = steps(deployment, 2.4e-7)

    def ratio(cv: float) -> float:
        return coding(deployment, model, cv, 0.8) / coding(deployment, model, cv, 0.5)

    return bisect(ratio, PUBLISHED["coding_p80"] / PUBLISHED["coding"], 0.05, 0.35)


def bisect(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(16):
        middle = (low + high) / 2
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


if __name__ == "__main__":
    main()
