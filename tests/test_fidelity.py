"""`agentload fidelity`: published against simulated, what is pinned, and what a user's own rows show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from click.testing import CliRunner, Result
from engine_driving import drive, request

import agentload_simbackend
from agentload._cli import cli
from agentload_simbackend import Finished, _gpu_fit, build_engine, fidelity, load_deployment
from agentload_simbackend import _fidelity_lpx as lpx
from agentload_simbackend._acceptance import Acceptance, yields
from agentload_simbackend._fidelity import Fidelity
from agentload_simbackend._fidelity_row import ErrorKind, FidelityRow, fidelity_row
from agentload_simbackend._gpu_rows import MEASURED
from agentload_simbackend._output_speed import median_scatter, output_speeds
from agentload_simbackend._plan import build_plan
from agentload_traces import SpecError


@pytest.fixture(scope="module")
def found() -> Fidelity:
    return fidelity()


def rows_with(found: Fidelity, *words: str) -> list[FidelityRow]:
    return [row for row in found.rows if all(word in row.name for word in words)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fidelity", *arguments])


def test_no_pinned_figure_drifts(found: Fidelity) -> None:
    assert found.drifted == []
    pinned = [row for row in found.rows if row.tolerance is not None]
    assert len(pinned) >= 65
    for row in pinned:
        assert row.tolerance is not None
        assert abs(row.error) <= row.tolerance, row


@pytest.mark.parametrize("group", ["TP128", "TP256"])
def test_published_lpx_speeds_come_out(found: Fidelity, group: str) -> None:
    for name, published in (
        ("AA 10K", 3382),
        ("AA 100K", 3431),
        ("coding output speed, median", 4767),
        ("coding output speed, P80", 5520),
    ):
        (row,) = rows_with(found, name, group)
        assert row.published == published
        assert row.simulated == pytest.approx(published, rel=0.03)
    (change,) = rows_with(found, "change from 10K to 100K", group)
    assert change.kind == "predicted"
    assert abs(change.simulated - (3431 / 3382 - 1)) <= 0.03


def test_the_scatter_of_simulated_medians_is_below_half_a_percent(found: Fidelity) -> None:
    scattered = [row for row in found.rows if row.simulated_scatter is not None]
    assert len(scattered) == 8
    for row in scattered:
        assert row.simulated_scatter is not None
        assert row.published_scatter is not None
        assert row.simulated_scatter < 0.005 < row.published_scatter


def test_how_near_the_change_is_to_its_limit_is_said(found: Fidelity) -> None:
    for group in ("TP128", "TP256"):
        (change,) = rows_with(found, "change from 10K to 100K", group)
        assert change.tolerance is not None
        left = (change.tolerance - abs(change.error)) * 100
        assert f"{left:.2f} points are left of the tolerance" in change.conditions


def test_the_modes_come_out_in_their_order(found: Fidelity) -> None:
    speeds = {
        mode: rows_with(found, f"in mode {mode}")[0].simulated for mode in ("rubin", "drafter", "afd", "pd")
    }
    assert speeds["rubin"] < min(speeds["drafter"], speeds["afd"])
    assert max(speeds["drafter"], speeds["afd"]) < speeds["pd"]
    (order,) = rows_with(found, "order of the modes")
    assert order.simulated == order.published == 4, "drafter and afd are level in the claim: no pair of them"
    assert order.tolerance == 0


def test_what_is_times_rubin_states_the_overhead_and_the_group(found: Fidelity) -> None:
    compared = [*rows_with(found, "over Rubin alone"), *rows_with(found, "order of the modes")]
    assert len(compared) == 4
    for row in compared:
        assert "TP4; o, the GPU overhead of a layer, 65 us" in row.conditions
    for mode in ("rubin", "drafter"):
        assert "o, the GPU overhead of a layer, 65 us" in rows_with(found, f"in mode {mode}")[0].conditions
    (afd,) = rows_with(found, "in mode afd")
    assert "25 us of the GPUs and 2 x 5 us of link" in afd.conditions
    assert "65 us" not in afd.conditions, "attention on GPUs does not pay the overhead of a layer"


def test_what_was_worked_out_on_paper_comes_out_by_arithmetic(found: Fidelity) -> None:
    for words, least, within in (
        (("KV of",), 12, 0.01),
        (("LPX racks",), 8, 0.025),
        (("prefill of",), 8, 0.01),
        (("hand-off",), 3, 0.1),
        (("streams of 100K (TP256)",), 6, 0.03),
        # Eight GPUs hold each of four KV heads twice, which the calibration on paper leaves out.
        (("Rubin alone", "no speculation"), 8, 0.08),
        (("Rubin alone", "MTP"), 8, 0.2),
    ):
        rows = rows_with(found, *words)
        assert len(rows) >= least
        assert all(abs(row.error) <= within and row.kind == "paper" for row in rows), rows


def test_one_time_per_layer_gives_the_speeds_of_the_older_lpu(found: Fidelity) -> None:
    rows = rows_with(found, "Groq LPU v1")
    assert len(rows) == 5
    assert all(abs(row.error) < 0.25 for row in rows)


def test_rows_that_were_not_fitted_on_are_near_enough(found: Fidelity) -> None:
    gpu = found.gpu
    assert gpu.not_fitted_on.rows >= 300
    assert gpu.not_fitted_on.tpot_median is not None
    assert gpu.not_fitted_on.tpot_median <= 0.15
    assert gpu.not_fitted_on.ttft_median is not None
    assert gpu.not_fitted_on.ttft_median <= 0.25
    assert gpu.model_left_out is not None
    assert gpu.model_left_out.tpot_median is not None
    assert gpu.model_left_out.tpot_median <= 0.15
    assert gpu.rows == 2765
    (fitted,) = (part for part in found.parameters if part.part == "GPU")
    assert fitted.fitted == 5 * sum(system.fitted_rows > 0 for system in gpu.systems) + 1
    assert gpu.fitted_on.rows == sum(system.fitted_rows for system in gpu.systems)
    # A row whose streams wait for memory has no TTFT to fit to.
    assert fitted.targets == gpu.fitted_on.rows + gpu.fitted_on.ttft_rows < 2 * gpu.fitted_on.rows


def test_every_row_of_a_file_is_predicted_or_left_out_for_a_reason(found: Fidelity) -> None:
    gpu = found.gpu
    predicted = gpu.fitted_on.rows + gpu.not_fitted_on.rows + gpu.disaggregated.rows
    assert predicted + sum(gpu.left_out.values()) == gpu.rows
    by_group = sum(group.fitted_on.rows + group.not_fitted_on.rows for group in gpu.by_model_and_system)
    assert by_group + gpu.disaggregated.rows == predicted


def test_rows_of_other_models_and_systems_are_counted_and_named(tmp_path: Path) -> None:
    header, *lines = MEASURED.read_text().splitlines()
    llama = [line for line in lines if "Llama-3.1-70B,b200_sxm" in line][:5]
    smaller = [line.replace("Llama-3.1-70B", "Llama-3.1-8B-Instruct") for line in llama]
    unknown = [line.replace("Llama-3.1-70B", "Else-7B") for line in llama[:2]]
    elsewhere = [line.replace("b200_sxm", "tpu_v9") for line in llama[:3]]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *smaller, *unknown, *elsewhere]) + "\n")
    answer = run("--json", "--prompts", "4000", "--gpu-rows", str(path))
    assert answer.exit_code == 0, answer.output
    gpu = json.loads(answer.stdout)["gpu"]
    assert gpu["rows"] == 10
    assert gpu["fitted_on"]["rows"] == 0
    assert gpu["not_fitted_on"]["rows"] == 5
    assert gpu["left_out"] == {
        "no spec of system tpu_v9": 3,
        "no spec of model meta-llama/Else-7B": 2,
    }
    assert [group["model"] for group in gpu["by_model_and_system"]] == ["meta-llama/Llama-3.1-8B-Instruct"]


def test_the_json_has_what_a_script_reads(found: Fidelity) -> None:
    content = json.loads(msgspec.json.encode(found))
    assert content["unknown"]
    for row in content["rows"]:
        assert {"name", "published", "simulated", "error", "kind", "source"} <= set(row)
        assert row["kind"] in ("fitted", "predicted", "paper")
        assert row["source"]
        assert row["conditions"]
    assert len({row["name"] for row in content["rows"]}) == len(content["rows"])


def test_the_table_says_what_is_fitted_and_what_is_not_known() -> None:
    answer = run("--prompts", "4000")
    assert answer.exit_code == 0, answer.output
    for text in (
        *("fitted", "predicted", "Not known", "Sources", "LPX: 4 for 5 targets", "not fitted on"),
        *("Pinned medians", "GPU: 16 for 1,703 targets", "Chosen by hand"),
    ):
        assert text in answer.stdout
    assert max(map(len, answer.stdout.split("\nSources\n")[0].splitlines())) <= 120


def test_a_pinned_figure_that_drifts_is_named_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lpx.PUBLISHED, "coding", 6000.0)
    answer = run("--json", "--prompts", "1000")
    assert answer.exit_code == 1
    assert "drifted: SPEED-Bench coding output speed, median (TP128)" in answer.stderr
    drifted = [row["name"] for row in json.loads(answer.stdout)["rows"] if row["drifted"]]
    assert all("coding output speed, median" in name for name in drifted)
    assert len(drifted) == 2


def test_a_wrong_file_is_one_line_and_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n")
    answer = run("--gpu-rows", str(path))
    assert isinstance(answer.exception, SpecError)  # the command line makes an exit code of 2 of it
    assert str(answer.exception) == f"{path}: column attention_dp_size is missing"


def test_a_second_comparison_does_not_fit_again(found: Fidelity, monkeypatch: pytest.MonkeyPatch) -> None:
    def fitting(*_: object) -> None:
        raise AssertionError("fits again")

    monkeypatch.setattr(_gpu_fit, "_descend", fitting)
    again = fidelity(100)
    assert again.gpu == found.gpu


def test_all_types_of_a_comparison_are_exported() -> None:
    seen = set()

    def visit(kind: object) -> None:
        for inner in getattr(kind, "__args__", ()):
            visit(inner)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
            seen.add(kind)
            assert getattr(agentload_simbackend, kind.__name__) is kind
            assert kind.__name__ in agentload_simbackend.__all__
            for field in get_type_hints(kind).values():
                visit(field)

    visit(Fidelity)
    assert len(seen) >= 6


def test_errors_are_shares_points_or_counts() -> None:
    def row(published: float, simulated: float, kind: ErrorKind, tolerance: float) -> FidelityRow:
        return fidelity_row(
            "n", published, simulated, "u", "predicted", "c", "s", error_kind=kind, tolerance=tolerance
        )

    assert row(100, 103, "relative", 0.03).error == pytest.approx(0.03)
    assert row(100, 96, "relative", 0.03).drifted
    assert row(0.014, -0.01, "points", 0.03).error == pytest.approx(-0.024)
    assert not row(0.014, -0.01, "points", 0.03).drifted
    assert row(12, 11, "count", 0.0).drifted
    assert row(100, float("nan"), "relative", 0.03).drifted


def test_the_engine_gives_the_same_output_speed() -> None:
    deployment = load_deployment("gemma4-31b/pd-1replica")
    speculation = deployment.spec.speculation
    assert speculation is not None
    asked = request(1, 10_000, 1_000)
    emissions = drive(build_engine(deployment, 0), [(0, asked)])
    (finished,) = (each for each in emissions if isinstance(each, Finished))
    arrivals = finished.arrivals()
    tokens = sum(arrival.tokens for arrival in arrivals[1:])
    engine_speed = tokens / (arrivals[-1].at_ns - arrivals[0].at_ns) * 1e9

    class Drawn(Acceptance):
        def draw(self, session_id: str, turn_id: str, tokens: int):  # type: ignore[no-untyped-def]
            return super().draw(asked.session_id, asked.turn_id, tokens)

    length = speculation.acceptance_length["general"].value
    acceptance = Drawn(0, deployment.draft_tokens, length, speculation.prompt_cv.value)
    assert yields(acceptance.draw("", "", 1_000), 1_000) == [arrival.tokens for arrival in arrivals]
    steps = build_plan(deployment).replicas[0].steps
    (speed,) = output_speeds(steps, acceptance, input_tokens=10_000, output_tokens=1_000, prompts=1)
    assert speed == pytest.approx(engine_speed, rel=2e-3)


def test_the_scatter_of_a_median_shrinks_with_the_root_of_the_samples() -> None:
    values = [100.0 + index % 11 for index in range(1100)]
    assert median_scatter(values, 400) == pytest.approx(median_scatter(values, 100) / 2)
    assert median_scatter(values, 1) == pytest.approx(1.2533 * 10**0.5 / 105, rel=1e-3)
