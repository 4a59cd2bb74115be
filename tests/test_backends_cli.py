"""`agentload backends`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

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
    assert one["derived"][0].keys() == {"name", "value", "unit", "kind"}
    paths = {number["path"]: number for number in one["numbers"]}
    assert paths["decode.chip.decode.layer_overhead"]["unit"] == "s"
    assert all(number.keys() >= {"value", "unit", "kind", "source"} for number in one["numbers"])


def test_unknown_backend_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["backends", "gemma4-31b/pdd"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"error: no deployment named 'gemma4-31b/pdd'; there are {', '.join(WRITTEN)}, "
        "any MODEL/MODE (see `agentload backends`), or the path of a .toml file\n"
    )
