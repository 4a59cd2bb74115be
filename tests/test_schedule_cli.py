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
from agentload_simbackend import list_models
from agentload_simbackend._gantt import Drawing, gantt_svg
from agentload_simbackend._schedule import UNITS

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
    assert any(sentence.startswith("Fitted to published results: ") for sentence in found["conditions"])


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
    assert content(capsys, *same, "--arbitrate")["first_bit_s"] == 4e-6
    drafted = content(capsys, *same, "--draft-tokens", "3")
    assert drafted["seconds"] > plain["seconds"]
    assert drafted["tokens_per_s"] is None


def test_the_ablation_has_four_combinations_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = content(capsys, "gemma4-31b/pd", "--lpus", "256")
    rows = found["ablation"]
    assert sorted({row["lpus"] for row in rows}) == [8, 16, 32, 64, 128, 256]
    assert [row["lpus"] for row in rows if not row["holds_weights"]] == sorted([8, 16, 32, 64] * 4)
    for lpus in (8, 256):
        speeds = {
            (row["overlap"], row["first_bit_s"] > 0): row["tokens_per_s"]
            for row in rows
            if row["lpus"] == lpus
        }
        assert speeds[True, False] > speeds[False, False] > speeds[True, True] > speeds[False, True]
    own = [
        row["tokens_per_s"]
        for row in rows
        if row["lpus"] == 256 and row["overlap"] and not row["first_bit_s"]
    ]
    assert own == [found["tokens_per_s"]]


def test_the_text_states_budget_speed_ablation_and_conditions(capsys: pytest.CaptureFixture[str]) -> None:
    text = schedule(capsys, "gemma4-31b/pd", "--context", "100000")
    assert "1 stream of 100,000 tokens, 8 verified per stream" in text
    assert re.search(r"sliding attention, dense FFN +50 +16 +6 ", text)
    assert re.search(r"draft token +7 ", text)
    assert re.search(r"One token a step, no drafts: [\d,]+ tokens/s per stream\.", text)
    assert re.search(r"at [\d.]+ tokens a step [\d,]+ tokens/s per stream\.", text)
    assert text.count("SRAM too small for the weights") == 4
    assert "Fitted to published results: operation time" in text


def test_what_does_not_fit_the_sram_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def unfit(*arguments: str) -> list[str]:
        conditions: list[str] = content(capsys, *arguments)["conditions"]
        return [sentence for sentence in conditions if "does not hold" in sentence]

    assert unfit("gemma4-31b/pd", "--lpus", "128") == []
    assert unfit("gemma4-31b/pd", "--lpus", "64") == [
        "The SRAM of 64 LPUs does not hold the weights (31.2 GB) and the KV cache (0.8 GB)."
    ]
    assert len(unfit("gemma4-31b/pd", "--lpus", "128", "--context", "100000", "--batch", "16")) == 1


def test_attention_that_runs_elsewhere_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    text = schedule(capsys, "gpt-oss-120b/afd")
    assert "Without the attention over the context" in text
    assert "full attention" not in text


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
        (["gemma-4-31b", "--out", "chart.png"], "chart.png: the name must end in .svg or .html"),
        (["gemma-4-31b", "--out", "none/chart.svg"], "none/chart.svg: cannot be written: "),
        (["no-such-model"], "no-such-model"),
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


def test_the_chart_has_a_bar_for_each_operation_and_each_vector_of_the_shown_links() -> None:
    schedule = gemma(chips=128).schedule()
    chart = ElementTree.fromstring(
        gantt_svg(Drawing("A <title> & more", ["all of it"], schedule.layers, schedule.clock_hz))
    )
    texts = [each.text for each in chart.iter(f"{SVG}text")]
    assert texts[:2] == ["A <title> & more", "all of it"]
    assert set(UNITS) <= set(texts)
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
    width = float(chart.attrib["width"])
    for bar in chart.iter(f"{SVG}rect"):
        assert float(bar.attrib.get("x", 0)) + float(bar.attrib["width"]) <= width
