"""`agentload schedule`: what it prints, and what it draws."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from schedule_cases import gemma

from agentload._cli import main
from agentload_simbackend import (
    FIRST_BIT_S,
    GanttDrawing,
    ScheduledDeployment,
    gantt_html,
    gantt_svg,
    list_deployments,
    list_models,
    load_deployment,
)
from agentload_simbackend._fit import streams_that_fit
from agentload_simbackend._schedule_ops import FUNCTIONAL_UNITS
from agentload_simbackend._specs import LpuSide
from agentload_simbackend._step_time import step_model

SVG = "{http://www.w3.org/2000/svg}"


def schedule(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["schedule", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.err if code else captured.out


def content(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    found = json.loads(schedule(capsys, *arguments, "--json"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("model", list_models())
def test_every_model_has_a_schedule(capsys: pytest.CaptureFixture[str], model: str) -> None:
    found = content(capsys, model)
    assert sum(found["step"]["budget_s"].values()) == pytest.approx(found["step"]["seconds"])
    assert found["tokens_per_s"] == pytest.approx(found["acceptance_length"] / found["seconds"])
    assert any(row["holds_weights"] for row in found["ablation"] if row["lpus"] == found["lpus"])
    assert any("not run on any machine" in sentence for sentence in found["conditions"])
    fitted = [sentence for sentence in found["conditions"] if sentence.startswith("The operation time, ")]
    assert len(fitted) == 1
    assert "was fitted to a group of 256 LPUs" in fitted[0] or model == "gemma-4-31b"


def test_arguments_reach_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    plain = content(capsys, "llama-3.1-70b", "--lpus", "200", "--batch", "2", "--context", "5000")
    assert (plain["lpus"], plain["batch"], plain["context_tokens"]) == (200, 2, 5000)
    assert plain["draft_tokens"] == 0
    assert plain["draft"] is None
    same = ("llama-3.1-70b", "--lpus", "200", "--batch", "2", "--context", "5000")
    waiting = content(capsys, *same, "--no-overlap")
    arbitrated = content(capsys, *same, "--arbitrate", "2e-6")
    assert waiting["seconds"] > plain["seconds"]
    assert arbitrated["seconds"] - plain["seconds"] == pytest.approx(80 * 6 * 2e-6, rel=1e-3)
    assert content(capsys, *same, "--arbitrate")["first_bit_s"] == FIRST_BIT_S == 2e-6
    drafted = content(capsys, *same, "--draft-tokens", "3")
    assert drafted["seconds"] > plain["seconds"]
    assert drafted["tokens_per_s"] is None


def ablation(found: dict[str, Any], lpus: int) -> dict[tuple[bool, bool], dict[str, Any]]:
    """Rows of one size, by overlap and arbitration."""
    rows = [row for row in found["ablation"] if row["lpus"] == lpus]
    return {(row["overlap"], row["first_bit_s"] > 0): row for row in rows}


def test_the_ablation_has_four_combinations_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = content(capsys, "gemma4-31b/pd", "--lpus", "256")
    rows = found["ablation"]
    assert sorted({row["lpus"] for row in rows}) == [8, 16, 32, 64, 128, 256]
    assert [row["lpus"] for row in rows if not row["holds_weights"]] == sorted([8, 16, 32, 64] * 4)
    for lpus in (8, 256):
        speeds = {key: row["tokens_per_s"] for key, row in ablation(found, lpus).items()}
        assert speeds[True, False] > speeds[False, False] > speeds[True, True] > speeds[False, True]
    assert ablation(found, 256)[True, False]["tokens_per_s"] == found["tokens_per_s"]


def test_the_fastest_group_is_one_that_holds_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """Sixteen LPUs would be faster than any that do."""
    found = content(capsys, "gemma4-31b/pd")
    static = {lpus: ablation(found, lpus)[True, False] for lpus in (16, 128, 256)}
    assert static[16]["tokens_per_s"] > 1.1 * static[256]["tokens_per_s"]
    stars = [row["lpus"] for row in found["ablation"] if row["fastest"]]
    assert len(stars) == 4
    assert set(stars) <= {128, 256}
    table = schedule(capsys, "gemma4-31b/pd").partition("LPUs  overlap")[2].partition("Conditions")[0]
    marked = [line for line in table.splitlines() if "*" in line]
    assert marked
    assert all("too small" not in line for line in marked)


def test_each_size_has_the_operation_time_that_was_fitted_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    """256 LPUs have the step of the deployment that is written out for them."""
    found = content(capsys, "gemma4-31b/pd")
    times = {
        row["lpus"]: (row["operation_time_s"], row["operation_time_fitted_to"]) for row in found["ablation"]
    }
    assert times == {**dict.fromkeys((8, 16, 32, 64, 128), (4.39e-7, 128)), 256: (2.92e-7, 256)}
    whole = content(capsys, "gemma4-31b/pd-1replica")
    speed = ablation(found, 256)[True, False]["tokens_per_s"]
    assert speed / 3.87 == pytest.approx(whole["tokens_per_s"] / 3.85)
    assert content(capsys, "gemma4-31b/pd", "--lpus", "256")["seconds"] == whole["seconds"]
    assert f"{speed:,.0f}*  " in schedule(capsys, "gemma4-31b/pd")
    said = [each for each in found["conditions"] if each.startswith("The operation time, ")]
    assert said == [
        "The operation time, 0.439 us, was fitted to a group of 128 LPUs that decodes Gemma 4 31B."
    ]
    other = content(capsys, "llama-3.1-70b", "--lpus", "192")["conditions"]
    assert any("a group of 256 LPUs that decodes Gemma 4 31B, not to one of 192: " in each for each in other)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["gemma4-31b/pd"],
            "With 1 stream tensor parallelism stops paying at 128 LPUs: no larger group is more than 1% "
            "faster; with arbitration too (but 128 and 256 were each fitted to the same published speed: "
            "that they are close is no prediction).",
        ),
        (
            ["kimi-k2.5", "--batch", "2", "--context", "100000"],
            "Only 2304 LPUs hold the weights; by speed alone tensor parallelism would stop paying at 128.",
        ),
        (
            ["llama-3.1-8b", "--batch", "64", "--context", "100000"],
            "With 64 streams tensor parallelism pays up to 256 LPUs, the largest group here; with "
            "arbitration too.",
        ),
    ],
)
def test_where_tensor_parallelism_stops_paying_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert content(capsys, *arguments)["stops_paying"] == said
    assert said in " ".join(schedule(capsys, *arguments).split())


def test_the_text_states_budget_speed_ablation_and_conditions(capsys: pytest.CaptureFixture[str]) -> None:
    text = schedule(capsys, "gemma4-31b/pd", "--context", "100000")
    assert "1 stream of 100,000 tokens, 8 verified per stream" in text
    assert re.search(r"sliding attention, dense FFN +50 +16 +6 ", text)
    assert re.search(r"draft token +7 ", text)
    assert re.search(r"One token a step, no drafts: [\d,]+ tokens/s per stream\.", text)
    assert re.search(r"at [\d.]+ tokens a step [\d,]+ tokens/s per stream\.", text)
    assert text.count("SRAM too small for the weights") == 4
    assert "Also fitted to published results: speculation acceptance length" in text


def on_lpus() -> list[str]:
    found = [name for name in list_deployments() if isinstance(load_deployment(name).spec.decode, LpuSide)]
    return [*found, *(f"{model}/{mode}" for model in ("kimi-k2.5", "gpt-oss-120b") for mode in ("pd", "afd"))]


@pytest.mark.parametrize("name", on_lpus())
@pytest.mark.parametrize("context", [10_000, 100_000])
def test_what_fits_is_what_the_deployment_holds(name: str, context: int) -> None:
    deployment = load_deployment(name)
    fitting = ScheduledDeployment(deployment, context_tokens=context).streams_that_fit()
    assert fitting is not None
    assert fitting * deployment.spec.decode.replicas.whole == streams_that_fit(deployment, context)
    for batch in (fitting, fitting + 1):
        scheduled = ScheduledDeployment(deployment, context_tokens=context, batch=batch)
        assert scheduled.holds_batch == (batch == fitting)


def test_what_does_not_fit_the_memory_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The drafter has a KV cache of its own: without it two streams would fit."""
    arguments = ("kimi-k2.5", "--context", "100000", "--batch")
    one, two = (content(capsys, *arguments, batch) for batch in ("1", "2"))
    assert (one["streams_that_fit"], one["holds_batch"]) == (1, True)
    assert (two["streams_that_fit"], two["holds_batch"]) == (1, False)
    sram = (
        "SRAM of 2,304 LPUs: 1,036.8 GB usable, weights 1,026.4 GB, drafter 2.00 GB; of streams of 100,000 "
        "tokens (4.95 GB each) 1 fits."
    )
    assert sram in one["conditions"]
    text = " ".join(schedule(capsys, *arguments, "2").split())
    assert re.search(
        r"1,0\d\d tokens/s per stream \(DOES NOT FIT: of 2 such streams the memory holds 1\)\.", text
    )
    assert "holds 1 of 2 streams" in text
    assert "DOES NOT FIT" not in schedule(capsys, *arguments, "1")
    small = schedule(capsys, "gemma4-31b/pd", "--lpus", "64")
    assert "it does not hold them with one token of KV" in small
    assert "(DOES NOT FIT: of 1 such stream the memory holds none)" in small


@pytest.mark.parametrize("name", on_lpus())
@pytest.mark.parametrize(("batch", "context"), [(1, 10_000), (5, 70_000)])
def test_speed_is_that_of_the_whole_step(name: str, batch: int, context: int) -> None:
    """As the engine has it, but for the lines between its knots."""
    deployment = load_deployment(name)
    scheduled = ScheduledDeployment(deployment, batch=batch, context_tokens=context)
    expected_ns = step_model(deployment).step(batch, batch * context)[0]
    assert scheduled.seconds * 1e9 == pytest.approx(expected_ns, rel=1e-3)
    parts = scheduled.lpus_seconds + sum(part.seconds for part in scheduled.elsewhere)
    assert parts == pytest.approx(scheduled.seconds, rel=1e-12)
    assert bool(scheduled.elsewhere) == (deployment.mode == "afd")


def test_crossings_and_attention_are_lines_of_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    found = content(capsys, "gemma4-31b/afd", "--context", "100000")
    link, attention = found["elsewhere_s"].values()
    # Ten layers: twice 5 us each, and 25 us of the GPUs, besides bytes and what these read.
    assert 100e-6 < link < 103e-6
    assert attention > 250e-6
    assert found["tokens_per_s"] == pytest.approx(2_593, rel=0.005)
    text = " ".join(schedule(capsys, "gemma4-31b/afd", "--context", "100000").split())
    assert re.search(r"crossings, out and back 10 10\d\.\d attention on Rubin 10 ", text)
    assert re.search(r"step with drafts 1 1,\d{3}\.\d ", text)
    caveat = r"crossings and attention on Rubin, which it includes, are estimates\)\."
    assert len(re.findall(r"[\d,]+ tokens/s per stream \(" + caveat, text)) == 2


def test_micro_batches_are_called_a_bound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "gemma4-31b/afd"\nname = "mine"\n[attention]\nmicro_batches = { value = 4, unit = "count", '
        'kind = "estimate", source = "a test" }\n'
    )
    whole = content(capsys, "gemma4-31b/afd", "--batch", "4")
    parts = content(capsys, path, "--batch", "4")
    hidden = parts["elsewhere_s"]["hidden by micro-batches (a bound)"]
    assert hidden == pytest.approx(parts["seconds"] - whole["seconds"])
    assert hidden < 0
    assert "are estimates, micro-batches a bound)." in " ".join(
        schedule(capsys, path, "--batch", "4").split()
    )
    assert "bound" not in schedule(capsys, path)


def test_what_is_left_out_of_large_groups_and_latent_attention_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*arguments: str) -> tuple[bool, bool]:
        text = " ".join(content(capsys, *arguments)["conditions"])
        racks = "each part crossing between racks once" in text and "4 x 100 Gbit/s per LPU" in text
        return racks, "not the absorbed queries of latent attention (128 x 576)" in text

    assert said("deepseek-r1") == (True, True)
    assert said("gemma4-31b/pd") == (False, False)
    assert said("gemma4-31b/pd", "--lpus", "768") == (True, False)


def test_a_model_file_is_scheduled_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import agentload_simbackend

    built_in = Path(agentload_simbackend.__file__).parent / "specs/models/llama-3.1-8b.toml"
    path = tmp_path / "mine.toml"
    path.write_text(built_in.read_text(encoding="utf-8"), encoding="utf-8")
    assert content(capsys, path)["seconds"] == content(capsys, "llama-3.1-8b")["seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["gemma4-31b/rubin"],
            "error: gemma4-31b/rubin: decode runs on Vera Rubin NVL72, but only LPUs have",
        ),
        (["gemma-4-31b", "--lpus", "5000"], "no latency for a group of 5000 chips; its table ends at 2304"),
        (["gemma-4-31b", "--out", "chart.png"], "chart.png must end in .svg or .html"),
        (["gemma-4-31b", "--out", "none/chart.svg"], "there is no directory none"),
        (["no-such-model"], "no-such-model"),
        ([f"{300 * chr(97)}.toml"], "error: no such file: aaa"),
        (["gemma-4-31b", "--arbitrate", "7"], "--arbitrate"),
        (
            ["gemma-4-31b", "--context", "262145"],
            "262,145 tokens of context, but Gemma 4 31B has at most 262,144",
        ),
        (["gemma-4-31b", "--batch", "0"], "--batch"),
    ],
)
def test_bad_input_is_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in schedule(capsys, *arguments, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["layer.svg", "layer.html"])
def test_the_chart_needs_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert f"wrote {path}" in schedule(capsys, "gpt-oss-120b", "--out", path)
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    for word in (
        "GPT-OSS 120B",
        "sliding attention, 128 experts",
        "full attention, 128 experts",
        "Estimates",
    ):
        assert word in text


def test_a_page_shows_the_whole_chart_at_any_width() -> None:
    schedule = gemma(chips=128).schedule()
    page = gantt_html(GanttDrawing("A chart", [], schedule.layers, schedule.clock_hz))
    assert re.search(r"<svg [^>]*viewBox=\"0 0 [\d.]+ [\d.]+\"", page)
    assert "svg { display: block; width: 100%; height: auto; }" in page
    assert "overflow" not in page
    # A file of its own never is wider than its window either.
    assert "max-width: 100%; height: auto;" in page


def test_the_chart_has_a_bar_for_each_operation_and_each_vector_of_the_shown_links() -> None:
    schedule = gemma(chips=128).schedule()
    chart = ElementTree.fromstring(
        gantt_svg(GanttDrawing("A <title> & more", ["all of it"], schedule.layers, schedule.clock_hz))
    )
    texts = [each.text for each in chart.iter(f"{SVG}text")]
    assert texts[:2] == ["A <title> & more", "all of it"]
    assert set(FUNCTIONAL_UNITS) <= set(texts)
    hovers = [each.text or "" for each in chart.iter(f"{SVG}title")]
    for layer in schedule.layers:
        for operation in layer.operations:
            unit, start = operation.unit, operation.start
            assert any(
                hover.startswith(f"{operation.name} ({unit}), ") and f"\ncycles {start:,} to" in hover
                for hover in hovers
            )
        for transfers in layer.transfers:
            shown = [each for each in transfers if each.link < 4]
            assert shown
            for each in shown:
                words = f"vector {each.vector} to LPU +{each.to}\ncycles {each.start:,} to {each.end:,}, "
                assert any(words in hover for hover in hovers)
    width = float(chart.attrib["viewBox"].split()[2])
    for bar in chart.iter(f"{SVG}rect"):
        assert float(bar.attrib.get("x", 0)) + float(bar.attrib["width"]) <= width
