"""Published speeds of LPX, and what follows from them on paper, beside the simulated ones."""

from __future__ import annotations

from collections.abc import Iterator

from agentload_simbackend._acceptance import Acceptance
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._fidelity_row import (
    HOT_CHIPS,
    LPX_BLOG,
    PAPER,
    FidelityKind,
    FidelityRow,
    fidelity_row,
)
from agentload_simbackend._fit import streams_that_fit
from agentload_simbackend._load import load_deployment
from agentload_simbackend._lpu_step import lpu_step
from agentload_simbackend._output_speed import median_scatter, output_speeds
from agentload_simbackend._pieces import value_ns
from agentload_simbackend._plan import build_plan, replica_plan
from agentload_simbackend._quantile import quantile
from agentload_simbackend._specs import GpuChip
from agentload_simbackend._step_time import lpu_work

PUBLISHED = {"aa_10k": 3382.0, "aa_100k": 3431.0, "coding": 4767.0, "coding_p80": 5520.0}
"""Tokens/s of Gemma 4 31B on LPX, concurrency 1: Artificial Analysis (medians), SPEED-Bench coding."""

CODING_INPUT, CODING_OUTPUT = 251, 524
"""Means of the 80 coding prompts of SPEED-Bench, as measured on other hardware (vLLM pull request 41745)."""

AA_OUTPUT = 1000
"""Ours: the lengths of the answers are not published."""

_AA_REQUESTS, _CODING_PROMPTS = 50, 80
_SPEED_TOLERANCE, _CHANGE_TOLERANCE, _PAPER_TOLERANCE = 0.03, 0.03, 0.03
_P80_OVER_MEDIAN_SCATTER = 1.14
"""Of normal variates: sqrt(0.8 x 0.2) / density at the 80th percentile, over the same for the median."""

_BATCHES = ((1, 3393), (2, 3275), (4, 3061), (8, 2707), (12, 2426), (16, 2199))
_MODES = (
    ("rubin", 585.0, 0.06),
    ("drafter", 795.0, 0.15),
    ("afd", 2536.0, 0.15),
    ("pd", 3393.0, 0.03),
)
"""With the largest error; those of drafter and afd hang on more estimates."""

_CLAIMED_RATIOS = {"drafter": 3.0, "afd": 3.0, "pd": 5.0}
_SLOWER = (("rubin", "drafter"), ("rubin", "afd"), ("drafter", "pd"), ("afd", "pd"))
"""What the claim orders: its drafter and afd are both about 3 times as fast as Rubin alone."""

_STREAMS: tuple[tuple[str, FidelityKind, float | None, str], ...] = (
    ("gemma4-31b/pd", "fitted", 0.0, "usable SRAM 0.915"),
    ("gemma4-31b/pd-1replica", "predicted", None, "one copy of the weights leaves more room"),
)
_LONG = 100_000
_GPUS = 4


def lpx_rows(prompts: int) -> Iterator[FidelityRow]:
    """All rows of LPX; speeds are medians over `prompts` prompts."""
    for name, group in (("gemma4-31b/pd", "TP128"), ("gemma4-31b/pd-1replica", "TP256")):
        yield from _speeds(load_deployment(name), group, prompts)
    yield from _streams()
    yield from _batches()
    yield from _modes()


def _speeds(deployment: Deployment, group: str, prompts: int) -> Iterator[FidelityRow]:
    where = f"{deployment.name}, one request after the other, K = {deployment.draft_tokens}"
    aa = {context: _drawn(deployment, "general", context, AA_OUTPUT, prompts) for context in (10_000, _LONG)}
    medians: dict[str, float] = {}
    for context, key, label in ((10_000, "aa_10k", "10K"), (_LONG, "aa_100k", "100K")):
        speeds = aa[context]
        medians[key] = quantile(speeds, 0.5) or 0.0
        scatter = median_scatter(speeds, prompts), median_scatter(speeds, _AA_REQUESTS)
        yield fidelity_row(
            f"AA {label} output speed, median ({group})",
            PUBLISHED[key],
            medians[key],
            "tokens/s",
            "fitted",
            f"{where}; {AA_OUTPUT:,} tokens of answer are ours; one acceptance length for 10K and 100K",
            LPX_BLOG,
            tolerance=_SPEED_TOLERANCE,
            scatter=scatter,
        )
    yield _change(medians, group, where, scatter)
    speeds = _drawn(deployment, "coding", CODING_INPUT, CODING_OUTPUT, prompts)
    scatter = median_scatter(speeds, prompts), median_scatter(speeds, _CODING_PROMPTS)
    for key, label, q, more in (
        ("coding", "median", 0.5, 1.0),
        ("coding_p80", "P80", 0.8, _P80_OVER_MEDIAN_SCATTER),
    ):
        yield fidelity_row(
            f"SPEED-Bench coding output speed, {label} ({group})",
            PUBLISHED[key],
            quantile(speeds, q) or 0.0,
            "tokens/s",
            "fitted",
            f"{where}; {CODING_INPUT} in, {CODING_OUTPUT} out; acceptance length 5.37 as measured on a B300",
            LPX_BLOG,
            tolerance=_SPEED_TOLERANCE,
            scatter=(scatter[0] * more, scatter[1] * more),
        )


def _change(medians: dict[str, float], group: str, where: str, scatter: tuple[float, float]) -> FidelityRow:
    """From 10K to 100K. The same prompts are drawn at both, so that the simulated change hardly scatters."""
    published = PUBLISHED["aa_100k"] / PUBLISHED["aa_10k"] - 1
    simulated = medians["aa_100k"] / medians["aa_10k"] - 1
    left = _CHANGE_TOLERANCE - abs(simulated - published)
    alone = 2**0.5 * scatter[1]
    return fidelity_row(
        f"AA output speed, change from 10K to 100K ({group})",
        published,
        simulated,
        "share",
        "predicted",
        f"{where}; nothing was fitted to it. {left * 100:.2f} points are left of the tolerance; the scatter "
        f"of two published medians of {_AA_REQUESTS} requests alone makes {alone * 100:.1f} points",
        LPX_BLOG,
        error_kind="points",
        tolerance=_CHANGE_TOLERANCE,
    )


def _drawn(
    deployment: Deployment, content: str, input_tokens: int, output_tokens: int, prompts: int
) -> list[float]:
    speculation = deployment.spec.speculation
    assert speculation is not None
    length = speculation.acceptance_length[content].value
    acceptance = Acceptance(0, deployment.draft_tokens, length, speculation.prompt_cv.value)
    steps = build_plan(deployment).replicas[0].steps
    return output_speeds(
        steps, acceptance, input_tokens=input_tokens, output_tokens=output_tokens, prompts=prompts
    )


def _streams() -> Iterator[FidelityRow]:
    """Capacity, in streams of 100K in and 1K out."""
    for name, kind, tolerance, note in _STREAMS:
        yield fidelity_row(
            f"streams of 100K that fit ({name})",
            12.0,
            streams_that_fit(load_deployment(name), _LONG + AA_OUTPUT),
            "count",
            kind,
            f"{name}, 100K in, 1K out; {note}; a weak target, no primary source",
            "an operator, as reported; not found in print",
            error_kind="count",
            tolerance=tolerance,
        )


def _batches() -> Iterator[FidelityRow]:
    deployment = load_deployment("gemma4-31b/pd-1replica")
    steps = build_plan(deployment).replicas[0].steps
    for batch, published in _BATCHES:
        yield fidelity_row(
            f"speed of each of {batch} streams of 100K (TP256)",
            published,
            deployment.acceptance_length / steps.step(batch, batch * _LONG)[0] * 1e9,
            "tokens/s",
            "paper",
            "gemma4-31b/pd-1replica, mean acceptance length; no speed of several streams is published",
            PAPER,
            tolerance=_PAPER_TOLERANCE,
        )
    work = lpu_work(deployment, deployment.spec.decode.chips_per_replica.whole)
    yield fidelity_row(
        "speed without speculation (TP256)",
        1353,
        1e9 / value_ns(lpu_step(work, 1, 1), 10_000),
        "tokens/s",
        "paper",
        "gemma4-31b/pd-1replica, 10K, one token a step: what the same parameters give, not measured",
        PAPER,
        tolerance=_PAPER_TOLERANCE,
    )


def _modes() -> Iterator[FidelityRow]:
    """One stream of 100K in each mode; the GPUs that decode or verify are four, as on paper."""
    found: dict[str, float] = {}
    for mode, published, tolerance in _MODES:
        deployment = load_deployment(f"gemma4-31b/{mode}")
        gpus = mode in ("rubin", "drafter")
        chips = _GPUS if gpus else deployment.spec.decode.chips_per_replica.whole
        replica = replica_plan(deployment, 0, chips)
        assert replica is not None
        found[mode] = deployment.acceptance_length / replica.steps.step(1, _LONG)[0] * 1e9
        yield fidelity_row(
            f"one stream of 100K in mode {mode}",
            published,
            found[mode],
            "tokens/s",
            "paper",
            f"gemma4-31b/{mode}, {chips} {'GPUs' if gpus else 'LPUs'}{_decisive(deployment)}",
            PAPER,
            tolerance=tolerance,
        )
    baseline = f"Rubin alone with TP{_GPUS}{_overhead(load_deployment('gemma4-31b/rubin'))}"
    for mode, claimed in _CLAIMED_RATIOS.items():
        yield fidelity_row(
            f"interactivity, mode {mode} over Rubin alone",
            claimed,
            found[mode] / found["rubin"],
            "ratio",
            "predicted",
            f"claimed for another model (GPT-OSS-2T) at 400K: only the order says anything; {baseline}",
            HOT_CHIPS,
        )
    yield fidelity_row(
        "order of the modes: rubin, then drafter and afd, then pd",
        len(_SLOWER),
        sum(found[slower] < found[faster] for slower, faster in _SLOWER),
        "count",
        "predicted",
        "pairs of modes that are in the order of the claimed ratios, about 1, 3, 3 and 5, which put drafter "
        f"and afd level; one stream of 100K; {baseline}; verification in mode drafter the same",
        HOT_CHIPS,
        error_kind="count",
        tolerance=0.0,
    )


def _decisive(deployment: Deployment) -> str:
    """What a mode's speed hangs on most."""
    attention, link = deployment.spec.attention, deployment.split_link
    if attention is not None:
        assert link is not None
        per_draft = attention.draft_crossings.whole if attention.draft_crossings is not None else 0
        return (
            f"; {deployment.shape.growing_layers} crossings a step and {per_draft} a draft token, each "
            f"{attention.crossing_overhead.value * 1e6:.3g} us of the GPUs and 2 x "
            f"{link.latency.value * 1e6:.3g} us of link, all estimates"
        )
    return _overhead(deployment) if deployment.mode != "pd" else ""


def _overhead(deployment: Deployment) -> str:
    chip = deployment.decode_chip
    assert isinstance(chip, GpuChip)
    return f"; o, the GPU overhead of a layer, {chip.decode.layer_overhead.value * 1e6:.3g} us"
