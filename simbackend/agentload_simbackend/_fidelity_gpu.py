"""Measured rows of GPU systems beside the predicted ones: errors by model and system, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from agentload_simbackend._fidelity_row import AICONFIGURATOR, FidelityRow, fidelity_row
from agentload_simbackend._gpu_fit import (
    Errors,
    cases_of,
    errors,
    is_held_out,
    leave_one_out,
)
from agentload_simbackend._gpu_rows import (
    MEASURED,
    GpuCase,
    GpuRow,
    Prediction,
    gpu_chip,
    predict,
    read_gpu_rows,
)
from agentload_simbackend._gpu_terms import GpuGroup, GpuModel, GpuParameters
from agentload_simbackend._load import load_model
from agentload_simbackend._model import ModelShape

TPOT_LIMIT, TTFT_LIMIT = 0.15, 0.25
"""Median absolute errors on rows that were not fitted to; beyond them the fit has drifted."""


class GpuErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute relative errors over some rows; `None` where there are none. TTFT has fewer rows than TPOT."""

    rows: int
    tpot_median: float | None
    tpot_p90: float | None
    ttft_rows: int
    ttft_median: float | None
    ttft_p90: float | None


class GpuGroupErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one model on one system.

    fitted_on: rows that its parameters were fitted to. not_fitted_on: all others. model_left_out: all rows,
    with parameters fitted without this model (only for the built-in rows).
    """

    model: str
    system: str
    fitted_on: GpuErrors
    not_fitted_on: GpuErrors
    model_left_out: GpuErrors | None = None


class GpuSystem(msgspec.Struct, frozen=True, kw_only=True):
    """One type of GPU: `fitted_rows` is 0 where its parameters are those of another type."""

    system: str
    rows: int
    fitted_rows: int
    parameters: dict[str, float]


class GpuFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """All of a file of measured rows. `left_out`: rows by the reason for which they have no prediction."""

    file: str
    rows: int
    fitted_on: GpuErrors
    not_fitted_on: GpuErrors
    model_left_out: GpuErrors | None
    disaggregated: GpuErrors
    by_model_and_system: list[GpuGroupErrors]
    systems: list[GpuSystem]
    left_out: dict[str, int]
    tpot_limit: float
    ttft_limit: float
    drifted: bool


def gpu_fidelity(path: str | Path | None = None) -> GpuFidelity:
    """Evaluate a file of measured rows (`None`: the built-in one). Raises `SpecError` if it is wrong."""
    measured = read_gpu_rows() if path is None else read_gpu_rows(path)
    found, left_out = cases_of(measured)
    built_in = found if path is None else cases_of(read_gpu_rows())[0]
    aggregated = [case for case in found if not case.row.disaggregated]
    fitted = _fitted(built_in)
    trained = {_key(case.row) for case in fitted}
    seen = [case for case in aggregated if _key(case.row) in trained]
    others = [case for case in aggregated if _key(case.row) not in trained]
    not_fitted_on = _errors(others, _parameters)
    without = leave_one_out([case for case in aggregated if _is_fitted(case)]) if path is None else {}
    left = [case for case in aggregated if (case.row.system, case.row.model_path) in without]
    return GpuFidelity(
        file=str(path or MEASURED.name),
        rows=len(measured),
        fitted_on=_errors(seen, _parameters),
        not_fitted_on=not_fitted_on,
        model_left_out=_errors(left, _left_out(without)) if path is None else None,
        disaggregated=_errors((case for case in found if case.row.disaggregated), _parameters),
        by_model_and_system=list(_groups(seen, others, without)),
        systems=list(_systems(found, fitted)),
        left_out=dict(Counter(left_out).most_common()),
        tpot_limit=TPOT_LIMIT,
        ttft_limit=TTFT_LIMIT,
        drifted=path is None and not _holds(not_fitted_on),
    )


def gpu_rows() -> Iterator[FidelityRow]:
    """Published single figures of GPU systems."""
    for isl, tp, ttft_ms, tpot_ms in ((1024, 4, 37.5, 1.90), (8192, 8, 107.0, 1.87)):
        found = predict(_alone(isl, tp))
        assert isinstance(found, Prediction)
        assert found.ttft_s is not None
        conditions = (
            f"disaggregated, decode TP{tp}, concurrency 1, {isl // 1024}K in, 1K out; parameters of the B200"
        )
        name = f"GPT-OSS-120B FP4 on GB200, {isl // 1024}K/1K"
        source = AICONFIGURATOR
        yield fidelity_row(
            f"{name}, TPOT", tpot_ms, found.tpot_s * 1e3, "ms", "predicted", conditions, source
        )
        yield fidelity_row(
            f"{name}, TTFT", ttft_ms, found.ttft_s * 1e3, "ms", "predicted", conditions, source
        )
    prompt, gpus = 2_000, 8
    yield fidelity_row(
        "DeepSeek-R1 prefill on GB200",
        26_156,
        prompt / (_deepseek_prefill_s("gb200", prompt, gpus, gpus, reading=False) * gpus),
        "tokens/s/GPU",
        "predicted",
        "prompts of 2,000 tokens, FP4; taken as 8 GPUs, each with the attention of its own prompts, and so "
        "many prompts at a time that reading weights does not matter; parameters of the B200",
        "https://lmsys.org/blog/2025-09-25-gb200-part-2",
    )
    prompt, gpus = 131_072, 8
    yield fidelity_row(
        "DeepSeek-R1 on GB300, TTFT of 128K",
        8.6,
        _deepseek_prefill_s("gb300", prompt, gpus, 1),
        "s",
        "predicted",
        "one prompt, FP4; taken as TP8, for the number of GPUs is not told; parameters of the B200",
        "https://www.lmsys.org/blog/2026-02-19-gb300-longctx",
    )


def fitted_parameters() -> tuple[int, int]:
    """How many GPU parameters are fitted, and to how many rows.

    Common to all types are the time of a stream and how many prompts of one length come at a time.
    """
    cases = _fitted(cases_of(read_gpu_rows())[0])
    return len({case.row.system for case in cases}) * (len(GpuParameters._fields) - 1) + 2, len(cases)


def _deepseek_prefill_s(
    system: str, prompt: int, gpus: int, attention_dp: int, *, reading: bool = True
) -> float:
    chip = gpu_chip(system)
    assert chip is not None
    parameters = GpuParameters.of(chip)
    assert parameters is not None
    model = GpuModel(ModelShape(load_model("deepseek-r1")))
    terms = model.terms(GpuGroup.of(chip, gpus, attention_dp, "fp4"), batch=1, context=prompt, prompt=prompt)
    if not reading:
        terms = terms._replace(prefill_weights=0.0)
    return terms.prefill_s(parameters)


def _alone(isl: int, tp: int) -> GpuRow:
    return GpuRow(
        line=0,
        model_path="openai/gpt-oss-120b",
        system="gb200",
        backend="trtllm",
        backend_version="",
        precision="fp4",
        disaggregated=True,
        concurrency=1,
        isl=isl,
        osl=1024,
        batch_size=0,
        tp=0,
        attention_dp=0,
        moe_tp=0,
        moe_ep=0,
        prefill_workers=1,
        prefill_tp=tp,
        decode_batch_size=0,
        decode_workers=1,
        decode_tp=tp,
        decode_attention_dp=1,
        ttft_s=1.0,
        tpot_s=1.0,
    )


def _fitted(cases: Iterable[GpuCase]) -> list[GpuCase]:
    """The rows that the specs' parameters were fitted to."""
    return [
        case
        for case in cases
        if _is_fitted(case) and not case.row.disaggregated and not is_held_out(case.row)
    ]


def _is_fitted(case: GpuCase) -> bool:
    """Whether the row's type of GPU has parameters of its own."""
    chip = gpu_chip(case.row.system)
    return chip is not None and chip.decode.layer_overhead.kind == "fitted"


def _key(row: GpuRow) -> tuple[str, int | None, float, float]:
    return row.configuration, row.concurrency, row.ttft_s, row.tpot_s


def _parameters(case: GpuCase) -> GpuParameters:
    chip = gpu_chip(case.row.system)
    parameters = GpuParameters.of(chip) if chip is not None else None
    assert parameters is not None
    return parameters


def _left_out(without: dict[tuple[str, str], GpuParameters]) -> Callable[[GpuCase], GpuParameters]:
    return lambda case: without[case.row.system, case.row.model_path]


def _errors(cases: Iterable[GpuCase], parameters: Callable[[GpuCase], GpuParameters]) -> GpuErrors:
    found: Errors = errors(cases, parameters)
    return GpuErrors(**found._asdict())


def _holds(found: GpuErrors) -> bool:
    tpot, ttft = found.tpot_median, found.ttft_median
    return tpot is not None and ttft is not None and tpot <= TPOT_LIMIT and ttft <= TTFT_LIMIT


def _groups(
    seen: list[GpuCase], others: list[GpuCase], without: dict[tuple[str, str], GpuParameters]
) -> Iterator[GpuGroupErrors]:
    for model, system in sorted({(case.row.model_path, case.row.system) for case in seen + others}):
        own = [
            [case for case in part if (case.row.model_path, case.row.system) == (model, system)]
            for part in (seen, others)
        ]
        left = without.get((system, model))
        yield GpuGroupErrors(
            model=model,
            system=system,
            fitted_on=_errors(own[0], _parameters),
            not_fitted_on=_errors(own[1], _parameters),
            model_left_out=_errors(own[0] + own[1], _left_out(without)) if left else None,
        )


def _systems(found: list[GpuCase], fitted: list[GpuCase]) -> Iterator[GpuSystem]:
    rows = Counter(case.row.system for case in found)
    fitted_rows = Counter(case.row.system for case in fitted)
    for system in sorted(rows | fitted_rows):
        chip = gpu_chip(system)
        parameters = GpuParameters.of(chip) if chip is not None else None
        assert parameters is not None
        yield GpuSystem(
            system=system,
            rows=rows[system],
            fitted_rows=fitted_rows[system],
            parameters=parameters._asdict(),
        )
