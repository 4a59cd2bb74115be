"""What holds for whatever a deployment gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentload_simbackend._gpu_terms import format_flops
from agentload_simbackend._quantity import KINDS, Kind, Number, Quantity, shown_number
from agentload_simbackend._specs import GpuChip, LpuChip, LpuRack, LpuSide
from agentload_simbackend._used_numbers import used_numbers
from agentload_traces import printable

if TYPE_CHECKING:
    from agentload_simbackend._deployment import Deployment

_HEADLINE = re.compile(
    r"((decode|speculation|link|split_link|attention|draft|spill)\.(?!chip\.|rack\.))|drafter\.|weight_bytes$"
)
"""Paths of the numbers that a deployment's headline hangs on, as against those of racks and chips."""

_OVERHEAD = ".decode.layer_overhead"
"""GPU decode at low batch is this times the layers: any ratio to it must state it, whatever its kind."""

_KIND_WORDS: dict[Kind, str] = {
    "fact": "are facts",
    "vendor_claim": "are the maker's claims",
    "estimate": "are estimates",
    "fitted": "are fitted to published figures",
}

_KIND_STANDING: dict[Kind, str] = {
    "fact": "a fact",
    "vendor_claim": "the maker's claim",
    "estimate": "an estimate",
    "fitted": "fitted",
}


def conditions_of(deployment: Deployment) -> list[str]:
    """One sentence for what the simulation is, for each number that a headline hangs on, and for the rest."""
    numbers = list(used_numbers(deployment))
    fitted, estimates, others = [], [], []
    for path, quantity in numbers:
        words = path.replace(".", " ").replace("_", " ")
        value = shown_number(quantity.value, quantity.unit)
        note = f": {quantity.note}" if quantity.note else ""
        sentence = f"{words[:1].upper()}{words[1:]} = {value} is {_KIND_STANDING[quantity.kind]}{note}."
        if quantity.kind == "fitted" or path.endswith(_OVERHEAD):
            fitted.append(sentence)
        elif quantity.kind == "estimate" and note and _HEADLINE.match(path):
            estimates.append(sentence)
        elif quantity.kind == "estimate":
            others.append(f"{words} {value}")
    sentences = [
        _standing(deployment.name, numbers),
        f"Its speeds hang on: {headline_of(deployment)}.",
        *_limits(deployment),
        *fitted,
        *estimates,
    ]
    if others:
        sentences.append(f"Also estimates: {', '.join(others)}.")
    return [printable(sentence) for sentence in sentences]


def headline_of(deployment: Deployment) -> str:
    """What the speeds of a deployment hang on, in a short line."""
    spec, chip, speculation = deployment.spec, deployment.decode_chip, deployment.spec.speculation
    parts = []
    gpus = chip if isinstance(chip, GpuChip) else deployment.prefill_chip if spec.spill is not None else None
    if gpus is not None:
        where = " where it spills" if spec.spill is not None else ""
        parts.append(f"o = {_shown(gpus.decode.layer_overhead, ' a layer')}{where}")
    for side, lpu in ((spec.decode, chip), (spec.draft.lpus if spec.draft else None, deployment.draft_chip)):
        if isinstance(side, LpuSide) and isinstance(lpu, LpuChip):
            parts.append(f"{_shown(side.operation_time or lpu.operation_time, ' an operation')} on LPX")
    if spec.attention is not None:
        parts.append(_shown(spec.attention.crossing_overhead, " a crossing"))
    if speculation is None:
        parts.append("one token a step")
    else:
        length = speculation.acceptance_length[speculation.content]
        tokens = f"{length.value:g} tokens a step ({_word(length.kind)})"
        parts.append(f"K = {speculation.draft_tokens.whole}, {tokens}")
    return "; ".join(parts)


def _shown(quantity: Quantity, of: str) -> str:
    return f"{shown_number(quantity.value, quantity.unit)}{of} ({_word(quantity.kind)})"


def _word(kind: Kind) -> str:
    return kind.replace("_", " ")


def _limits(deployment: Deployment) -> Iterator[str]:
    """What of the model's limits this deployment meets."""
    yield from _grown(deployment)
    yield from _across_racks(deployment)
    gpus = [chip for chip in (deployment.decode_chip, deployment.prefill_chip) if isinstance(chip, GpuChip)]
    if gpus:
        yield from _narrow(deployment, gpus[0])
    decodes = isinstance(deployment.decode_chip, GpuChip) or deployment.spec.spill is not None
    if decodes and any(kind.ffn is not None and kind.ffn.experts for kind in deployment.shape.kinds):
        yield (
            "Decode of models with experts on GPUs comes out slow at low concurrency: GPT-OSS-120B on GB200 "
            "was measured at 1.9 ms a token at concurrency 1, where this form says 2.8, so ratios to Rubin "
            "are up to half too large there."
        )


def _grown(deployment: Deployment) -> Iterator[str]:
    """That a chip does not have the model's format, and stores more or less."""
    chip, published = deployment.decode_chip, deployment.spec.weight_bytes or deployment.model.weight_bytes
    stored = deployment.stored_bytes(chip)
    if stored > published.value:
        yield (
            f"{chip.name} has no format narrower than {stored:g} bytes per parameter: weights of "
            f"{published.value:g} take {stored / published.value:.2f} times as much on it."
        )
    elif stored < published.value:
        yield (
            f"{chip.name} stores {stored:g} bytes per parameter: weights of {published.value:g} are taken as "
            "converted, which may change the answers."
        )


def _across_racks(deployment: Deployment) -> Iterator[str]:
    decode, rack = deployment.spec.decode, deployment.decode_rack
    if isinstance(rack, LpuRack) and decode.chips_per_replica.whole > rack.chips.whole:
        racks = -(-decode.chips_per_replica.whole // rack.chips.whole)
        yield (
            f"A group spans {racks} racks: what crosses between them is taken to cross once for each part "
            "(hierarchical exchanges), and the ladder of reach to hold the latency; the bandwidth between "
            "racks, 4 x 100 Gbit/s per LPU as analysts say, is not modelled."
        )


def _narrow(deployment: Deployment, chip: GpuChip) -> Iterator[str]:
    """That GPUs compute weights of four bits at the rate of that format."""
    stored = deployment.stored_bytes(chip)
    rate = format_flops(chip, stored)
    if chip.fp4_flops is None or chip.fp8_flops is None or rate <= chip.fp8_flops.value:
        return
    share = chip.prefill.flops_efficiency.value
    yield (
        f"Weights of {stored:g} bytes per parameter are computed at the FP4 rate of {chip.name}, "
        f"{shown_number(rate, 'FLOP/s')} dense; a prefill is taken to reach {share:g} of that, as much as of "
        "the FP8 rate with wider weights."
    )
    if deployment.model.four_bits == "int4":
        yield "The model is published in INT4; on GPUs it is taken as converted to FP4."


def _standing(name: str, numbers: list[Number]) -> str:
    """What the simulation is, by the weakest kind of number that it rests on."""
    kinds = [quantity.kind for _, quantity in numbers]
    counts = [(kinds.count(kind), _KIND_WORDS[kind]) for kind in reversed(KINDS)]
    parts = ", ".join(f"{count} {words}" for count, words in counts if count)
    verdict = "a calibration, no validation" if "fitted" in kinds else "no run of it was validated"
    return f"Simulated on {name}: of its {len(kinds)} numbers {parts}; {verdict}."
