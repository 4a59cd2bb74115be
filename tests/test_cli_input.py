"""Values of options that would go wrong later, and paths that are no text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import agentload._virtual
import agentload_simbackend
from agentload._cli import main
from agentload_traces import RunReader, Turn, write_trace

PACKAGE = Path(agentload_simbackend.__file__).parent
ODD = os.fsdecode(b"\xff")
DRAIN = '[[faults]]\ntype = "drain"\nat_s = 1\nreplica = {}\n'


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_trace("trace.jsonl", [Turn(session_id="s", turn_id="t", input_tokens=100, output_tokens=10)])
    return Path("trace.jsonl")


def exit_code(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line by which a command refuses its arguments, before it prints anything."""
    assert exit_code(*arguments) == 2
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line and not line.startswith(("Usage:", "Try "))]
    assert (len(lines), said.out) == (1, "")
    return lines[0]


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("run trace.jsonl", "--timeout", "nan"),
        ("run trace.jsonl", "--speed", "nan"),
        ("run trace.jsonl", "--seed", str(2**63)),
        ("replay trace.jsonl", "--seed", str(2**63)),
        ("serve", "--seed", str(2**63)),
        ("schedule gemma-4-31b", "--arbitrate", "nan"),
        ("schedule gemma-4-31b", "--batch", "99999999999999999999"),
        ("schedule gemma-4-31b", "--out", "nowhere/x.svg"),
        ("run trace.jsonl", "--faults", ""),
        ("serve", "--faults", ""),
    ],
)
def test_a_value_that_cannot_be_used_names_its_option(
    command: str, option: str, value: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option in refused(capsys, *command.split(), option, value)


def test_the_largest_seed_is_one(trace: Path) -> None:
    assert exit_code("replay", trace, "--out", "run", "--seed", 2**63 - 1) == 0
    assert RunReader("run").manifest.seed == 2**63 - 1


@pytest.mark.parametrize(
    "command", [["run", "--clock", "virtual"], ["run", "--clock", "wall", "--max-turns", "1"], ["serve"]]
)
def test_a_fault_that_cannot_befall_the_deployment_is_named_before_a_server_starts(
    command: list[str], trace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentload._replay_wall.simulator_process", None)
    Path("f.toml").write_text(DRAIN.format(0) + DRAIN.format(7))
    said = refused(capfd, *command, "--faults", "f.toml")
    for part in ("f.toml", "at 1 s", "gemma4-31b/pd", "drain", "replica: is 7, must be 0 to 1"):
        assert part in said
    Path("f.toml").write_text('[[faults]]\ntype = "link_down"\nat_s = 2.5\nfor_s = 1\n')
    said = refused(capfd, *command, *_on("gemma4-31b/lpx", command), "--faults", "f.toml")
    for part in ("f.toml", "at 2.5 s", "gemma4-31b/lpx", "link_down", "there is no link"):
        assert part in said


def _on(deployment: str, command: list[str]) -> list[str]:
    return [deployment] if command == ["serve"] else ["--target", deployment]


def test_a_run_of_files_whose_names_are_no_text_is_recorded_and_finished(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, faults = f"{ODD}.toml", f"{ODD}2.toml"
    Path(target).write_text((PACKAGE / "specs/deployments/gemma4-31b/pd.toml").read_text())
    Path(faults).write_text(DRAIN.format(0))

    def interrupt(*args: object, **values: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(agentload._virtual, "VirtualRun", interrupt)
        args = ("--target", target, "--faults", faults, "--clock", "virtual")
        assert exit_code("replay", trace, "--out", "run", *args) == 1
    manifest = RunReader("run").manifest
    assert (manifest.target, manifest.options["faults"]) == ("\ufffd.toml", "\ufffd2.toml")
    capsys.readouterr()
    assert "--resume run --faults FILE" in refused(capsys, "replay", "--resume", "run")
    assert "--resume run --target FILE" in refused(capsys, "replay", "--resume", "run", "--faults", faults)
    assert exit_code("replay", "--resume", "run", "--faults", faults, "--target", target) == 0
    assert not RunReader("run").incomplete


def test_rows_of_a_file_whose_name_is_no_text_are_json(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (PACKAGE / "data/gpu_measured.csv").read_text().splitlines(keepends=True)
    Path(f"{ODD}.csv").write_text("".join(lines[:20]))
    assert exit_code("fidelity", "--json", "--prompts", "100", "--gpu-rows", f"{ODD}.csv") in (0, 1)
    assert json.loads(capsys.readouterr().out)["gpu"]["file"] == "\ufffd.csv"
