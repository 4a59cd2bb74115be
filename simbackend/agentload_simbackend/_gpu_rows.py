"""Measured TTFT and TPOT of GPU systems, and what the model says of the same configurations.

A row is predicted from its inputs alone: the model, the type of GPU, how the GPUs are split, the load. What a
row does not tell, or the model does not have, makes it not applicable, by the rules of `_why_not`; none of
them looks at what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from agentload_simbackend._gpu_csv import MEASURED, NODE_GPUS, GpuRow, read_gpu_rows
from agentload_simbackend._gpu_launch import DRAWN_MEAN, has_drawn_lengths, held_steps
from agentload_simbackend._gpu_precision import Precision, named_precision
from agentload_simbackend._gpu_terms import GpuGroup, GpuModel, GpuParameters, GpuTerms
from agentload_simbackend._load import list_models, load_model
from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import Decoder
from agentload_simbackend._spec_files import SpecFiles, names
from agentload_simbackend._specs import GpuChip

__all__ = [
    "MEASURED",
    "GpuCase",
    "GpuRow",
    "NotApplicable",
    "Prediction",
    "case_of",
    "predict",
    "read_gpu_rows",
]

_USABLE_MEMORY = 0.9
"""Of HBM, as engines are set by default; the rest is theirs."""

_PROMPTS_PER_STREAM = 10
"""Of an InferenceX run, whose prompts all come at once at its start: so a tenth of them wait for each other.
https://github.com/SemiAnalysisAI/InferenceX (num-prompts = 10 x concurrency)"""

_CLUMP = 3.0
"""Prompts that come at a time where all are of one length, at most half of the streams: those that were
prefilled in one step end in one step, and their successors wait for each other again and again. Chosen on
the measured rows, not fitted."""

_TRANSFER_BANDWIDTH = 50e9
"""Of one GPU's NIC, one 400 Gb/s port: what the hand-off of a disaggregated row takes."""


class Prediction(NamedTuple):
    """What the model says of a row; no TTFT where the load is not told, or the streams queue for memory."""

    ttft_s: float | None
    tpot_s: float


class NotApplicable(NamedTuple):
    """Why the model says nothing of a row."""

    reason: str


class GpuCase(NamedTuple):
    """A row with what its prediction is made of, but for the parameters of its GPU.

    streams: of one decode group. queues: TTFT is unknown, for the load is, or streams wait for memory.
    clump: prompts that come together. wave: they are all that wait, and the engine prefills them first.
    held_steps: decode steps for which the engine lets a prompt wait for others, see `_gpu_launch`.
    decode_only: prompts are prefilled elsewhere, so decode never waits for one. transfer_s: of the KV cache.
    """

    row: GpuRow
    terms: GpuTerms
    streams: float
    output_tokens: float
    queues: bool
    clump: float
    wave: bool
    held_steps: float
    decode_only: bool
    transfer_s: float

    def times(self, p: GpuParameters) -> tuple[float, float]:
        """TTFT and TPOT in seconds."""
        step, prefill, batch = self.terms.step_s(p), self.terms.prefill_s(p), self.streams
        fixed = self.terms.prefill_layers * p.prefill_layer_overhead_s + self.transfer_s
        first = fixed + self.clump * prefill + (1 + self.held_steps) * step
        busy = (batch - 1) * prefill
        start = busy / 2 / _PROMPTS_PER_STREAM
        if self.decode_only:
            return first + start, step
        # What comes with a prompt does not delay its decode.
        tpot = step + (batch - self.clump) * prefill / self.output_tokens
        if self.wave:
            return first, tpot
        # Closed loop: each of the others prefills once while one decodes. The wait is that of an M/D/1 queue
        # of whoever is not in it already.
        load = batch * prefill / (batch * prefill + self.output_tokens * step)
        wait = prefill * load / (2 * (1 - load * (batch - 1) / batch))
        return first + wait + start, tpot


def case_of(row: GpuRow) -> GpuCase | NotApplicable:
    """What the prediction of a row is made of, or why there is none."""
    reason = _why_not(row)
    if reason is not None:
        return NotApplicable(reason)
    chip, model = gpu_chip(row.system), _model_of(row.model_path)
    assert chip is not None
    assert model is not None
    drawn = DRAWN_MEAN if has_drawn_lengths(row) else 1.0
    prompt, output = max(int(row.isl * drawn), 1), max(row.osl * drawn, 1.0)
    group = _group(row, chip, row.gpus, row.dp)
    streams = max(float(row.concurrency or row.decode_batch_size), 1.0)
    if row.disaggregated and row.concurrency is not None:
        streams = max(streams / max(row.decode_workers, 1), 1.0)
    room = (_USABLE_MEMORY * chip.hbm.value - model.weights_bytes(group)) * row.dp
    slots = room / model.stream_bytes(group, row.isl + row.osl)
    batch = max(min(streams, slots), 1.0)
    terms = model.terms(group, batch=batch, context=prompt + output / 2, prompt=prompt)
    clump, transfer_s = 1.0, 0.0
    wave = row.backend == "sglang" and drawn == 1.0 and not row.disaggregated
    if drawn == 1.0 and not row.disaggregated:
        # SGLang prefills all that wait before it decodes on, so its clumps grow to half of the streams.
        clump = (batch + 1) / 2 if wave else min(_CLUMP, (batch + 1) / 2)
    if row.disaggregated:
        there = _group(row, chip, max(row.prefill_tp, 1), 1)
        prefill = model.terms(there, batch=1.0, context=prompt, prompt=prompt)
        terms = terms._replace(**{name: getattr(prefill, name) for name in _PREFILL_TERMS})
        transfer_s = model.stream_bytes(there, prompt) / _TRANSFER_BANDWIDTH
    return GpuCase(
        row=row,
        terms=terms,
        streams=batch,
        output_tokens=output,
        queues=streams > slots or row.concurrency is None,
        clump=clump,
        wave=wave,
        held_steps=held_steps(row, batch / output),
        decode_only=row.disaggregated,
        transfer_s=transfer_s,
    )


def predict(row: GpuRow) -> Prediction | NotApplicable:
    """TTFT and TPOT of a row, with the parameters in the spec of its GPU."""
    case = case_of(row)
    if isinstance(case, NotApplicable):
        return case
    ttft_s, tpot_s = case.times(gpu_parameters(row.system))
    return Prediction(None if case.queues else ttft_s, tpot_s)


@cache
def gpu_chip(system: str) -> GpuChip | None:
    """The spec of a system such as `b200_sxm`; `None` if there is none."""
    name = system.strip().lower().replace("_", "-")
    if name not in names("chips"):
        return None
    return SpecFiles().read("chip", "chips", name, GpuChip)[0]


def gpu_parameters(system: str) -> GpuParameters:
    """Those in the spec of a system that rows have a prediction for: `_why_not` refuses all others."""
    chip = gpu_chip(system)
    parameters = GpuParameters.of(chip) if chip is not None else None
    assert parameters is not None
    return parameters


def model_name(model_path: str) -> str | None:
    """The built-in model that a checkpoint is of, whatever its case and its suffixes."""
    wanted = _plain(model_path)
    for name, checkpoints in _checkpoints().items():
        if wanted in checkpoints:
            return name
    return None


_FORMATS = (
    *("-instruct", "-it", "-thinking", "-bf16", "-fp8", "-fp4", "-nvfp4", "-mxfp4", "-v2"),
    *("-0324", "-0528", "-0905", "-2507", "-int4", "-dynamic", "-hf"),
)

_QUANTIZED = re.compile(r"(-quantized)?[-.]w\d+a\d+$")


def _plain(model_path: str) -> str:
    """The last part of a checkpoint's name, without what does not change the architecture."""
    name = model_path.strip().rsplit("/", 1)[-1].lower()
    name = _QUANTIZED.sub("", name)
    cut = True
    while cut:
        cut = False
        for suffix in _FORMATS:
            if name.endswith(suffix):
                name, cut = name.removesuffix(suffix), True
    return name.removeprefix("meta-")


@cache
def _decoder(name: str) -> Decoder:
    return load_model(name)


@cache
def _checkpoints() -> dict[str, frozenset[str]]:
    return {name: frozenset(map(_plain, _decoder(name).checkpoints)) for name in list_models()}


@cache
def _model_of(model_path: str) -> GpuModel | None:
    name = model_name(model_path)
    return None if name is None else GpuModel(ModelShape(_decoder(name)))


def _why_not(row: GpuRow) -> str | None:
    """Why the model does not apply to a row: the first rule that holds."""
    chip, model = gpu_chip(row.system), _model_of(row.model_path)
    if chip is None or GpuParameters.of(chip) is None:
        return f"no spec of system {row.system}"
    if model is None:
        return f"no spec of model {row.model_path}"
    if _may_draft(row):
        return "speculation unknown: its software was run with and without multi-token prediction"
    if row.disaggregated:
        if row.concurrency != 1 and not (row.decode_workers and (row.concurrency or row.decode_batch_size)):
            return "disaggregated, without the number of decode workers: the batch is unknown"
    elif row.concurrency is None:
        return "concurrency missing: the offered load is unknown"
    elif row.batch_size and row.batch_size * max(row.attention_dp, 1) < row.concurrency:
        return "batch limit below the concurrency: requests queue"
    if not row.disaggregated and row.gpus > NODE_GPUS:
        return "tensor parallelism over more than 8 GPUs: the split is not told"
    if Precision.of(_precision(row)) is None:
        return f"precision {row.precision} is not known"
    if row.pp > 1:
        return "pipeline parallelism: the model has none"
    return _cannot_run(row, chip, model)


def _cannot_run(row: GpuRow, chip: GpuChip, model: GpuModel) -> str | None:
    """Why the GPUs cannot serve even one stream."""
    decoder = _decoder(model_name(row.model_path) or "")
    if row.isl + row.osl > decoder.max_context.whole:
        return f"longer than the context of {decoder.name}: {decoder.max_context.whole:,} tokens"
    group = _group(row, chip, row.gpus, row.dp)
    room = _USABLE_MEMORY * chip.hbm.value - model.weights_bytes(group)
    if room <= 0:
        return "the weights do not fit"
    if model.stream_bytes(group, row.isl + row.osl) > room:
        return "one stream does not fit beside the weights"
    return None


def _precision(row: GpuRow) -> str:
    """The row's precision; if it does not tell, that of the checkpoint by its name or as it is published."""
    stated = row.precision or named_precision(row.model_path)
    if stated is not None:
        return stated
    name = model_name(row.model_path)
    if name is None:
        return "bf16"
    model = _decoder(name)
    published = model.weight_bytes.value
    return "bf16" if published > 1.0 else "fp8" if published == 1.0 else model.four_bits


def _group(row: GpuRow, chip: GpuChip, gpus: int, attention_dp: int) -> GpuGroup:
    return GpuGroup.of(chip, gpus, attention_dp, _precision(row))


_DRAFTING_IMAGES: Mapping[str, frozenset[str]] = {
    "trtllm": frozenset({"1.1.0rc2.post2", "1.2.0rc6.post3"}),
    "sglang": frozenset({"0.5.9"}),
}
"""Software that InferenceX ran DeepSeek-R1 on both with its multi-token prediction and without it.
https://github.com/SemiAnalysisAI/InferenceX, .github/configs/nvidia-master.yaml (`spec-decoding: mtp`)"""


def _may_draft(row: GpuRow) -> bool:
    """Whether a row may be of speculative decoding, which the rows do not tell."""
    if not _plain(row.model_path).startswith(("deepseek-r1", "deepseek-v3")):
        return False
    if row.disaggregated:
        return True
    if row.backend_version not in _DRAFTING_IMAGES.get(row.backend, ()):
        return False
    # SGLang's was run on B200 in FP8 alone.
    return row.backend != "sglang" or (row.system == "b200_sxm" and row.precision == "fp8")


_PREFILL_TERMS = ("prefill_weights", "prefill_products", "prefill_attention", "prefill_exchange")
