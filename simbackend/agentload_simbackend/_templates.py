"""Deployments of any model in any mode, from a template for the mode and sizes by arithmetic."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentload_simbackend._fit import MemoryNeed, memory_needs
from agentload_simbackend._known_speculation import speculation_of
from agentload_simbackend._model_specs import Decoder
from agentload_simbackend._spec_files import built_in, decoders, names, parse
from agentload_simbackend._specs import MODES, LpuRack, Mode
from agentload_traces import decodable, printable

if TYPE_CHECKING:
    from agentload_simbackend._deployment import Deployment

_WRITTEN = {"gemma-4-31b": "gemma4-31b"}
"""Folders of written-out deployments by their model: both names mean the same."""

_STREAM_TOKENS = 100_000
"""A replica holds at least one stream of so many tokens, or of the model's context."""

_GPU_GROUP, _ATTENTION_GROUP = 8, 4
"""Smallest groups, as in the written-out deployments: fewer GPUs would hold small models, but be slower."""

_PREFILL_SHARE = 4 / 9
"""Of the groups of a rack that prefills and decodes apart, as in gemma4-31b/rubin."""

_SOURCE = "a choice of this preset, by arithmetic"


class Sizes(NamedTuple):
    """How many chips and copies each side has, and why (`notes`: by key of the spec)."""

    prefill_gpus: int = 1
    prefill_instances: int = 1
    decode_chips: int = 1
    decode_replicas: int = 1
    decode_racks: int = 1
    attention_gpus: int = 1
    draft_chips: int = 1
    draft_racks: int = 1
    notes: tuple[tuple[str, str], ...] = ()


class Template(NamedTuple):
    """A model (its built-in name, or the path of a TOML file) in a mode."""

    model: str
    mode: Mode

    @property
    def name(self) -> str:
        """The deployment's name."""
        return f"{printable(Path(self.model)).removesuffix('.toml')}/{self.mode}"

    def filled(self, model: Decoder, sizes: Sizes) -> dict[str, Any]:
        """The content of a deployment's file."""
        content = mode_content(self.mode)
        summary = f"{model.name}: {_summary(self.mode, sizes)}"
        speculation = speculation_of(self.model, self.mode)
        if speculation is not None:
            content["speculation"] = speculation.content
            summary += speculation.said
        if "attention" in content and (speculation is None or speculation.keeps_kv):
            del content["attention"]["draft_crossings"]
        if model.weight_bytes.value > 1:
            published = f"FP8 on both sides; published with {model.weight_bytes.value:g} bytes"
            content["weight_bytes"] = _quantity(1, published, "B/parameter")
        content |= {"name": self.name, "model": decodable(self.model), "summary": summary}
        _put_sizes(content, sizes)
        return content


def written_name(name: str) -> str:
    """The name of the written-out deployment, if `name` says its model otherwise."""
    model, slash, rest = name.partition("/")
    return f"{_WRITTEN[model]}/{rest}" if slash and model in _WRITTEN else name


def template_of(name: str) -> Template | None:
    """The template that a name `MODEL/MODE` means, unless it is written out or means something else."""
    model, slash, mode = name.rpartition("/")
    if not slash or mode not in MODES or name in names("deployments"):
        return None
    known = model.endswith(".toml") or (model in decoders())
    return Template(model, mode) if known else None


def sizes_of(deployment: Deployment) -> Sizes:
    """Sizes for a deployment whose sizes are not yet known: all else of it counts.

    A group that would not do in the largest size gets that: the check that follows refuses it.
    """
    tokens = min(_STREAM_TOKENS, deployment.max_context_tokens)
    needs = {need.side: need for need in memory_needs(deployment)}
    sizes, notes = Sizes(), {}
    decode, prefill = needs["decode"], needs.get("prefill")
    if isinstance(deployment.decode_rack, LpuRack):
        chips = _lpu_group(decode.chips_for(tokens), deployment.decode_rack)
        racks = math.ceil(chips / decode.rack_chips)
        sizes = sizes._replace(
            decode_chips=chips, decode_racks=racks, decode_replicas=racks * decode.rack_chips // chips
        )
        notes["decode.racks"] = f"weights alone take {_racks_of_weights(decode):.2f} of them"
    else:
        sizes = sizes._replace(decode_chips=_gpu_group(decode, tokens, _GPU_GROUP))
    notes["decode.chips_per_replica"] = _why(decode, tokens)
    if prefill is not None:
        sizes = sizes._replace(prefill_gpus=_gpu_group(prefill, tokens, _GPU_GROUP))
    if "attention" in needs:
        sizes = sizes._replace(attention_gpus=_gpu_group(needs["attention"], tokens, _ATTENTION_GROUP))
        notes["attention.gpus_per_replica"] = _why(needs["attention"], tokens)
    sizes = _on_the_gpu_rack(sizes, deployment.mode, prefill)
    if deployment.draft_rack is not None:
        chips = _lpu_group(needs["draft.lpus"].chips_for(tokens), deployment.draft_rack)
        racks = math.ceil(chips * sizes.decode_replicas / deployment.draft_rack.chips.whole)
        sizes = sizes._replace(draft_chips=chips, draft_racks=racks)
        notes["draft.lpus.chips_per_replica"] = _why(needs["draft.lpus"], tokens)
    return sizes._replace(notes=tuple(notes.items()))


def _on_the_gpu_rack(sizes: Sizes, mode: Mode, prefill: MemoryNeed | None) -> Sizes:
    """Divide the GPUs of a rack among the sides that it has in this mode."""
    if prefill is None:
        return sizes
    group = sizes.prefill_gpus
    if mode in ("rubin", "drafter"):
        group = max(group, sizes.decode_chips)
        groups = prefill.rack_chips // group
        instances = max(1, int(groups * _PREFILL_SHARE))
        replicas = max(1, groups - instances)
        return sizes._replace(
            prefill_gpus=group, decode_chips=group, prefill_instances=instances, decode_replicas=replicas
        )
    left = prefill.rack_chips
    if mode == "afd":
        replicas = max(1, min(sizes.decode_replicas, (left - group) // sizes.attention_gpus))
        sizes = sizes._replace(decode_replicas=replicas)
        left -= replicas * sizes.attention_gpus
    return sizes._replace(prefill_instances=max(1, left // group))


def _lpu_group(chips: int, rack: LpuRack) -> int:
    """The smallest group with so many chips: a step of the reach ladder within a rack, else whole racks."""
    if chips > (whole := rack.chips.whole):
        return min(math.ceil(chips / whole) * whole, max(rack.reach))
    return min((size for size in rack.reach if size >= chips), default=max(rack.reach))


def _gpu_group(need: MemoryNeed, tokens: int, smallest: int) -> int:
    """The smallest power of two, but at least `smallest`, of the rack's GPUs that holds a stream."""
    size = smallest
    while size < need.chips_for(tokens) and size < need.rack_chips:
        size *= 2
    return min(size, need.rack_chips)


def _racks_of_weights(need: MemoryNeed) -> float:
    return need.weights_bytes / (need.chip_bytes * need.rack_chips)


def _why(need: MemoryNeed, tokens: int) -> str:
    parts = [f"{need.weights_bytes / 1e9:,.1f} GB of weights"] if need.weights_bytes else []
    if need.drafter_bytes:
        parts.append(f"{need.drafter_bytes / 1e9:,.2f} GB of drafter")
    if stream := need.stream_bytes(tokens):
        parts.append(f"{stream / 1e9:,.2f} GB of a stream of {tokens:,} tokens")
    needed = f"{need.chips_for(tokens):,} of {need.chip_bytes / 1e9:.4g} GB usable"
    return f"holds {', '.join(parts)}: that needs {needed}"


def _summary(mode: Mode, sizes: Sizes) -> str:
    group, replicas = f"TP{sizes.decode_chips}", sizes.decode_replicas
    if mode == "rubin":
        return f"one NVL72, {sizes.prefill_instances} prefill and {replicas} decode groups of {group}"
    if mode == "drafter":
        return f"{sizes.draft_chips} LPUs draft for each of {replicas} {group} groups of one NVL72"
    decode = f"{sizes.decode_racks} LPX rack{'s' if sizes.decode_racks > 1 else ''}, {replicas} x {group}"
    if mode == "lpx":
        return f"prefill and decode on {decode}"
    if mode == "pd":
        return f"prefill on one NVL72, decode on {decode}"
    attention = f"prefill and attention (TP{sizes.attention_gpus}) on one NVL72"
    return f"{attention}, the rest of each layer on {decode}"


def _put_sizes(content: dict[str, Any], sizes: Sizes) -> None:
    """Put the sizes where the template's mode has them."""
    notes = dict(sizes.notes)
    values = {
        "prefill.gpus_per_instance": sizes.prefill_gpus,
        "prefill.instances": sizes.prefill_instances,
        "decode.chips_per_replica": sizes.decode_chips,
        "decode.replicas": sizes.decode_replicas,
        "decode.racks": sizes.decode_racks,
        "attention.gpus_per_replica": sizes.attention_gpus,
        "draft.lpus.chips_per_replica": sizes.draft_chips,
        "draft.lpus.replicas": sizes.decode_replicas,
        "draft.lpus.racks": sizes.draft_racks,
    }
    for path, value in values.items():
        *parents, leaf = path.split(".")
        table: Any = content
        for parent in parents:
            table = table.get(parent, {})
        if table and (leaf != "racks" or table["type"] == "lpu"):
            table[leaf] = _quantity(value, notes.get(path))


def _quantity(value: float, note: str | None, unit: str = "count") -> dict[str, Any]:
    quantity = {"value": value, "unit": unit, "kind": "estimate", "source": _SOURCE}
    return quantity | {"note": note} if note else quantity


def mode_content(mode: str) -> dict[str, Any]:
    """What every deployment of a mode has: the tables of its template add to those common to all."""
    content: dict[str, Any] = {}
    for template in ("common", mode):
        for key, value in copy.deepcopy(parse(built_in("templates", template))).items():
            if isinstance(value, dict) and key in content:
                content[key].update(value)
            else:
                content[key] = value
    return content | {"mode": mode}
