"""`agentload backends`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from engine_driving import SPECS

from agentload._cli import cli, main
from agentload_simbackend import MODES, list_deployments, list_models, load_deployment

WRITTEN = list_deployments()


def test_backends_lists_and_shows() -> None:
    listed = CliRunner().invoke(cli, ["backends"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in [*WRITTEN, *list_models(), "MODEL/MODE"])
    shown = CliRunner().invoke(cli, ["backends", "gemma4-31b/pd"])
    assert shown.exit_code == 0
    assert "racks: 1 Vera Rubin NVL72 + 1 Groq 3 LPX" in shown.output
    assert "speeds hang on: 0.439 us an operation (fitted) on LPX; K = 7" in shown.output
    row = next(line for line in shown.output.splitlines() if line.startswith("speculation.acceptance_length"))
    assert "tokens/step" in row
    assert "fitted" in row
    assert "calibration, no validation" in shown.output


def test_backends_json() -> None:
    listed = json.loads(CliRunner().invoke(cli, ["backends", "--json"]).output)
    names = [entry["name"] for entry in listed]
    assert names[: len(WRITTEN)] == WRITTEN
    assert len(set(names)) == len(names) == len(WRITTEN) + (len(list_models()) - 1) * len(MODES)
    one = json.loads(CliRunner().invoke(cli, ["backends", "--json", "gemma4-31b/rubin"]).output)
    assert one["spec_sha256"] == load_deployment("gemma4-31b/rubin").spec_sha256
    assert one["racks"] == {"Vera Rubin NVL72": 1}
    assert one["headline"] == load_deployment("gemma4-31b/rubin").headline()
    assert one["derived"][0].keys() == {"name", "value", "unit", "kind"}
    paths = {number["path"]: number for number in one["numbers"]}
    assert paths["decode.chip.decode.layer_overhead"]["unit"] == "s"
    assert all(number.keys() >= {"value", "unit", "kind", "source"} for number in one["numbers"])


def test_unknown_backend_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["backends", "gemma4-31b/pdd"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"error: no deployment named 'gemma4-31b/pdd'; there are {', '.join(WRITTEN)}; MODEL/MODE, "
        f"with MODEL one of {', '.join(list_models())} or the path of a model's .toml file, and MODE one of "
        f"{', '.join(MODES)}; or the path of a .toml file\n"
    )


def refused(capsys: pytest.CaptureFixture[str], name: str) -> str:
    """What `agentload backends` says of a name that it does not take."""
    with pytest.raises(SystemExit) as caught:
        main(["backends", name])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


WITHOUT_MODE = "is a model, not a deployment: write"


def test_a_model_without_a_mode_is_told_to_take_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my_model.toml"
    path.write_text((SPECS / "models/llama-3.1-8b.toml").read_text())
    for name, said in (
        (str(path), f"{path}: {WITHOUT_MODE} {path}/MODE"),
        ("deepseek-r1", f"deepseek-r1 {WITHOUT_MODE} deepseek-r1/MODE"),
    ):
        assert refused(capsys, name) == f"error: {said}, with MODE one of {', '.join(MODES)}\n"


def test_a_directory_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dir.toml"
    path.mkdir()
    assert refused(capsys, str(path)) == f"error: {path}: is a directory, must be a file\n"
    assert refused(capsys, f"{path}/pd") == f"error: model: {path}: is a directory, must be a file\n"


def test_what_a_file_says_is_shown_as_it_is(tmp_path: Path) -> None:
    """Neither taken for markup, nor sent to the terminal."""
    path = tmp_path / "own.toml"
    path.write_text(
        'base = "gemma4-31b/pd"\nname = "[red]mine"\nsummary = "[/bold] on [two racks]"\n'
        '[decode.usable_memory]\nvalue = 0.9\nunit = "fraction"\nkind = "estimate"\n'
        'source = "[/i]\\u001b[2J"\nnote = "\\u001b[2J [x]"\n'
        '[speculation.acceptance_length."[/bold]\\u001b"]\nvalue = 2\nunit = "tokens/step"\n'
        'kind = "estimate"\nsource = "mine"\n[speculation]\ncontent = "[/bold]\\u001b"\n'
    )
    shown = CliRunner().invoke(cli, ["backends", str(path)])
    assert shown.exit_code == 0, shown.output
    for text in (
        "[red]mine (mode pd): [/bold] on [two racks]",
        "] [/i]\\x1b[2J",
        "acceptance_length.[/bold]\\x1b",
    ):
        assert text in shown.output
    assert "\x1b" not in shown.output


def test_a_path_that_is_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff")
    assert refused(capsys, f"{path}.toml") == f"error: no such file: {tmp_path}/\ufffd.toml\n"
    assert refused(capsys, "\udcff").startswith("error: no deployment named '\ufffd'; ")
    Path(f"{path}.toml").write_text((SPECS / "models/llama-3.1-8b.toml").read_text())
    assert f"write {tmp_path}/\ufffd.toml/MODE" in refused(capsys, f"{path}.toml")
    shown = CliRunner().invoke(cli, ["backends", "--json", f"{path}.toml/pd"])
    assert json.loads(shown.output)["name"] == f"{tmp_path}/\ufffd/pd"
