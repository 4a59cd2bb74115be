"""What published benchmarks of output speed define and do, and what is done here, side by side."""

from __future__ import annotations

from typing import Literal

import msgspec

BenchKind = Literal["aa", "coding"]

AA_METHOD = "https://artificialanalysis.ai/methodology"
AA_WORKLOADS = "https://artificialanalysis.ai/methodology/performance-benchmarking"
LPX_BLOG = (
    "https://developer.nvidia.com/blog/"
    "how-nvidia-groq-3-lpx-unlocks-ultrafast-interactivity-at-long-context-on-nvidia-vera-rubin/"
)
SPEED_BENCH = "https://huggingface.co/datasets/nvidia/SPEED-Bench"
VLLM_PR = "https://github.com/vllm-project/vllm/pull/41745"

AA_INPUTS = (1_000, 10_000, 100_000)
AA_REQUESTS = 50
AA_OUTPUT = {100: 300, 1_000: 1_000, 10_000: 1_500, 100_000: 2_000}
"""Tokens of answers by those of prompts, of Artificial Analysis's public workloads (`AA_WORKLOADS`)."""
OTHER_OUTPUT = 1_000
"""Of prompts of other lengths: ours."""

CODING_INPUT, CODING_OUTPUT, CODING_REQUESTS = 251, 524, 80
"""The coding category of SPEED-Bench has 80 prompts (`SPEED_BENCH`); the means of their tokens and of those
of the answers, as counted on other hardware (`VLLM_PR`)."""


class Compared(msgspec.Struct, frozen=True):
    """One thing as the published benchmark has it and as it is here."""

    what: str
    theirs: str
    here: str
    source: str


_SPEED_HERE = (
    "(o200k_base tokens - those of the first arrival) / (time of the last arrival - time of the first), of"
    " each answered request"
)
_UNIQUE_WORDS = "made-up words, each prompt another from its first block on, so that no prefix cache holds it"
_TTFT_HERE = "from when the request was sent to the first arrival of tokens, whether of reasoning or answer"

AA = (
    Compared(
        "output speed",
        "tokens received a second after the first token was received, in o200k_base tokens; median",
        f"{_SPEED_HERE}; median",
        AA_METHOD,
    ),
    Compared("TTFT", "from sending the request to the first token received", _TTFT_HERE, AA_METHOD),
    Compared(
        "load",
        "on LPX: 50 requests one after the other for each length of prompt, at concurrency 1",
        "the same, on one connection",
        LPX_BLOG,
    ),
    Compared(
        "prompts",
        "a new one for each run, tested to be no easy prey for speculative decoding",
        _UNIQUE_WORDS,
        AA_WORKLOADS,
    ),
    Compared(
        "answers",
        "public workloads: 1K in and 1,000 out, 10K and 1,500, 100K and 2,000; on LPX: not published",
        "those of the public workloads, 1,000 for other prompts, unless --output-tokens says otherwise",
        AA_WORKLOADS,
    ),
)

CODING = (
    Compared("output speed", "per user; median and P80", f"{_SPEED_HERE}; median and P80", LPX_BLOG),
    Compared("load", "on LPX: concurrency 1, run by the vendor", "one request after the other", LPX_BLOG),
    Compared(
        "prompts",
        "80 of the coding category, chosen to differ from each other; their lengths differ",
        f"{_UNIQUE_WORDS}; all as long as theirs are on average",
        SPEED_BENCH,
    ),
    Compared(
        "answers",
        f"code; {CODING_OUTPUT} tokens on average",
        f"{CODING_OUTPUT} tokens each unless --output-tokens says otherwise",
        VLLM_PR,
    ),
    Compared(
        "speculation",
        "what the drafter's tokens are accepted of, on code",
        "a simulated deployment: the acceptance of its content class coding, with the spread between prompts;"
        " an endpoint: of whatever it answers to made-up words, which is no code",
        SPEED_BENCH,
    ),
)

COMPARED: dict[BenchKind, tuple[Compared, ...]] = {"aa": AA, "coding": CODING}


class Published(msgspec.Struct, frozen=True):
    """A published output speed of the configuration that a deployment simulates.

    quantile: 0.5 or 0.8. kind: "fitted" where parameters of the simulator were chosen to give it.
    """

    quantile: float
    tokens_per_s: float
    by: str
    kind: Literal["fitted", "predicted"]
    source: str


_CONFIGURATIONS = ("gemma4-31b/pd", "gemma4-31b/pd-1replica")

_AA_SPEEDS = {10_000: 3382.0, 100_000: 3431.0}
_CODING_SPEEDS = {0.5: 4767.0, 0.8: 5520.0}


def published(kind: BenchKind, target: str, input_tokens: int) -> list[Published]:
    """What is published of a deployment at this length of prompts; see `agentload fidelity`."""
    if target not in _CONFIGURATIONS:
        return []
    if kind == "aa":
        speed = _AA_SPEEDS.get(input_tokens)
        return [] if speed is None else [Published(0.5, speed, "Artificial Analysis", "fitted", LPX_BLOG)]
    if input_tokens != CODING_INPUT:
        return []
    return [
        Published(quantile, speed, "SPEED-Bench coding", "fitted", LPX_BLOG)
        for quantile, speed in _CODING_SPEEDS.items()
    ]
