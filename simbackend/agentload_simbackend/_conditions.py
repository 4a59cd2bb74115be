"""Which numbers a deployment rests on, and what holds for whatever it gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentload_simbackend._quantity import KINDS, Kind, Number, numbers_of, shown_number
from agentload_simbackend._specs import GpuChip, GpuRack, LpuChip, LpuRack
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


def used_numbers(deployment: Deployment) -> Iterator[Number]:
    """Every number that the deployment's behaviour rests on."""
    spec = deployment.spec
    speculation = spec.speculation
    unused_lengths = {
        f"speculation.acceptance_length.{content}"
        for content in (speculation.acceptance_length if speculation else ())
        if speculation and content != speculation.content
    }
    for number in numbers_of(spec, ""):
        if number.path not in unused_lengths:
            yield number
    yield from numbers_of(deployment.model, "model")
    if deployment.drafter is not None:
        yield from numbers_of(deployment.drafter, "drafter")
    for link, name in ((deployment.link, "link"), (deployment.split_link, "split_link")):
        if link is not None:
            yield from numbers_of(link, name)
    unused: tuple[str, ...] = ()
    if spec.attention is not None:
        unused = (".decode.layer_overhead", ".decode.stream_overhead")
    elif spec.spill is None:
        unused = (".decode.",)
    yield from _numbers_of_side("prefill", deployment.prefill_rack, deployment.prefill_chip, unused)
    # Without a prefill side the decode side prefills too.
    unused = (".prefill.",) if spec.prefill is not None else ()
    yield from _numbers_of_side("decode", deployment.decode_rack, deployment.decode_chip, unused)
    yield from _numbers_of_side("draft", deployment.draft_rack, deployment.draft_chip, ())


def _numbers_of_side(
    side: str,
    rack: LpuRack | GpuRack | None,
    chip: LpuChip | GpuChip | None,
    unused: tuple[str, ...],
) -> Iterator[Number]:
    """Of a side's rack and chip all but what other sides would use."""
    if rack is None or chip is None:
        return
    yield from numbers_of(rack, f"{side}.rack")
    skipped = tuple(f"{side}.chip{part}" for part in unused)
    for number in numbers_of(chip, f"{side}.chip"):
        if not number.path.startswith(skipped):
            yield number


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
    sentences = [_standing(deployment.name, numbers), *_grown(deployment), *fitted, *estimates]
    if others:
        sentences.append(f"Also estimates: {', '.join(others)}.")
    return [printable(sentence) for sentence in sentences]


def _grown(deployment: Deployment) -> Iterator[str]:
    """That a chip has no format as narrow as the model's, and stores more."""
    chip, published = deployment.decode_chip, deployment.spec.weight_bytes or deployment.model.weight_bytes
    stored = deployment.stored_bytes(chip)
    if stored > published.value:
        yield (
            f"{chip.name} has no format narrower than {stored:g} bytes per parameter: weights of "
            f"{published.value:g} take {stored / published.value:.2f} times as much on it."
        )


def _standing(name: str, numbers: list[Number]) -> str:
    """What the simulation is, by the weakest kind of number that it rests on."""
    kinds = [quantity.kind for _, quantity in numbers]
    counts = [(kinds.count(kind), _KIND_WORDS[kind]) for kind in reversed(KINDS)]
    parts = ", ".join(f"{count} {words}" for count, words in counts if count)
    verdict = "a calibration, no validation" if "fitted" in kinds else "no run of it was validated"
    return f"Simulated on {name}: of its {len(kinds)} numbers {parts}; {verdict}."
