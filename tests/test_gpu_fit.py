"""The fit of the GPU parameters, and that the specs of chips hold it."""

from __future__ import annotations

from collections import Counter

import pytest
from gpu_row_cases import ROW, SYSTEMS, case

from agentload_simbackend._gpu_fit import errors, fit, fit_systems, is_held_out, split
from agentload_simbackend._gpu_rows import NotApplicable, case_of, gpu_chip, read_gpu_rows
from agentload_simbackend._gpu_terms import GpuParameters


def test_whole_configurations_are_held_out_whatever_was_measured() -> None:
    rows = read_gpu_rows()
    parts = split(rows)
    kept = {case.row.configuration for case in parts.fit}
    held = {case.row.configuration for case in parts.others}
    assert not kept & held
    assert 0.2 < len(parts.others) / (len(parts.others) + len(parts.fit)) < 0.4
    assert all(is_held_out(row) == is_held_out(row._replace(ttft_s=1.0, tpot_s=1.0)) for row in rows)
    counted = len(parts.fit) + len(parts.others) + len(parts.disaggregated) + sum(parts.left_out.values())
    assert counted == len(rows)


def test_the_fit_finds_the_parameters_that_rows_were_made_with() -> None:
    truth = GpuParameters(0.7, 90e-6, 40e-6, 0.4, 2e-3, 0.6)
    made = []
    for seen in split(read_gpu_rows()).fit:
        if seen.row.system == "b200_sxm" and not seen.queues:
            ttft_s, tpot_s = seen.times(truth)
            again = case_of(seen.row._replace(ttft_s=ttft_s, tpot_s=tpot_s))
            assert not isinstance(again, NotApplicable)
            made.append(again)
    found = fit(made)
    assert found.layer_overhead_s == pytest.approx(truth.layer_overhead_s, rel=0.1)
    assert found.hbm_efficiency == pytest.approx(truth.hbm_efficiency, rel=0.1)
    assert found.flops_efficiency == pytest.approx(truth.flops_efficiency, rel=0.1)
    off = errors(made, lambda case: found)
    assert off.tpot_p90 is not None
    assert off.tpot_p90 < 0.02
    assert off.ttft_p90 is not None
    assert off.ttft_p90 < 0.05


def test_the_specs_hold_what_the_fit_finds() -> None:
    parts = split(read_gpu_rows())
    assert parts.systems == ["b200_sxm", "h100_sxm", "h200_sxm"]
    found = fit_systems(parts.fit)
    for system in parts.systems:
        chip = gpu_chip(system)
        assert chip is not None
        parameters = GpuParameters.of(chip)
        assert parameters is not None
        assert list(parameters) == pytest.approx(list(found[system]), rel=0.01)
    assert len({parameters.stream_overhead_s for parameters in found.values()}) == 1


def test_what_the_rows_of_a_system_leave_open_is_what_the_others_show() -> None:
    near = GpuParameters(0.7, 90e-6, 40e-6, 0.4, 2e-3, 0.6)
    found = fit([case(ROW)._replace(queues=True)], near)
    assert found.prefill_layer_overhead_s == pytest.approx(near.prefill_layer_overhead_s, rel=0.15)
    assert found.stream_overhead_s == near.stream_overhead_s
    assert list(found) != pytest.approx(list(near), rel=0.05)


@pytest.mark.parametrize("system", ["b300_sxm", "gb200", "gb300"])
def test_types_without_a_fit_of_their_own_have_what_is_fitted_for_b200(system: str) -> None:
    chip, fitted = gpu_chip(system), gpu_chip("b200_sxm")
    assert chip is not None
    assert fitted is not None
    assert GpuParameters.of(chip) == GpuParameters.of(fitted)
    assert chip.prefill.latency.value == fitted.prefill.latency.value


def test_rubin_takes_from_b200_what_its_notes_say() -> None:
    rubin, fitted = gpu_chip("rubin"), gpu_chip("b200_sxm")
    assert rubin is not None
    assert fitted is not None
    for own, theirs in (
        (rubin.decode.stream_overhead, fitted.decode.stream_overhead),
        (rubin.nvlink_efficiency, fitted.nvlink_efficiency),
    ):
        assert own is not None
        assert theirs is not None
        assert own.value == theirs.value
        assert own.kind == "estimate"


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_notes_of_a_spec_tell_what_was_fitted_to_how_many_rows(system: str) -> None:
    fit_to = Counter(case.row.system for case in split(read_gpu_rows()).fit)
    chip = gpu_chip(system)
    assert chip is not None
    own = [
        chip.decode.hbm_efficiency,
        chip.decode.layer_overhead,
        chip.prefill.flops_efficiency,
        chip.prefill.layer_overhead,
        chip.nvlink_efficiency,
    ]
    expected = f"one of five parameters of this type of GPU, fitted to {fit_to[system]} measured rows"
    for quantity in own:
        assert quantity is not None
        assert quantity.note is not None
        assert quantity.note.startswith(expected if system in fit_to else "that of B200 SXM")
    common = chip.decode.stream_overhead
    assert common is not None
    assert common.note is not None
    assert common.note.startswith(f"one for all types of GPU, fitted to the {fit_to.total()} measured rows")
    assert chip.prefill.latency.value == pytest.approx(80 * own[3].value, rel=0.003)  # type: ignore[union-attr]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_a_spec_with_all_parameters(system: str) -> None:
    chip = gpu_chip(system)
    assert chip is not None
    parameters = GpuParameters.of(chip)
    assert parameters is not None
    assert all(value > 0 for value in parameters)
    kinds = {chip.decode.layer_overhead.kind, chip.decode.hbm_efficiency.kind, chip.prefill.latency.kind}
    assert kinds == {"fitted" if system in ("h100_sxm", "h200_sxm", "b200_sxm") else "estimate"}
