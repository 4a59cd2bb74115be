"""How commands end that are not done: nobody reads their output, they are interrupted, a stream is closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

import agentload._virtual
import agentload_analysis
from agentload._cli import main
from agentload_traces import RequestRow, RunReader, RunWriter, Turn, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [Turn(session_id="s", turn_id="t", input_tokens=100, output_tokens=10)])
    return path


def _interrupt(*args: Any, **values: Any) -> NoReturn:
    raise KeyboardInterrupt


def _terminate(*args: Any, **values: Any) -> NoReturn:
    signal.raise_signal(signal.SIGTERM)
    raise AssertionError("it went on after SIGTERM")


def exit_code(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["fidelity", "--help"], ["backends"], ["backends", "--json"], ["schedule", "gemma-4-31b"]],
)
def test_a_pipe_that_nobody_reads_ends_a_command_as_sigpipe_does(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "agentload", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "function"),
    [
        (["fidelity"], "agentload_simbackend.fidelity"),
        (["backends"], "agentload_simbackend.list_deployments"),
        (["schedule", "gemma-4-31b"], "agentload_simbackend.deployment_to_schedule"),
        (["run"], "agentload._replay.load_deployment"),
    ],
)
@pytest.mark.parametrize("stop", [_interrupt, _terminate])
def test_ctrl_c_and_sigterm_of_what_keeps_nothing_are_130(
    arguments: list[str],
    function: str,
    stop: Callable[..., NoReturn],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(function, stop)
    assert exit_code(*arguments) == 130
    said = capsys.readouterr()
    assert (said.out, said.err.split()) == ("", ["interrupted"])


def test_ctrl_c_while_modules_are_imported_is_no_traceback() -> None:
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from agentload._cli import main\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("stop", [_interrupt, _terminate])
@pytest.mark.parametrize("where", ["VirtualRun", "write_html"])
def test_ctrl_c_and_sigterm_name_the_directory_that_stays(
    where: str,
    stop: Callable[..., NoReturn],
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = agentload._virtual if where == "VirtualRun" else agentload_analysis
    with monkeypatch.context() as patched:
        patched.setattr(module, where, stop)
        assert exit_code("run", trace, "--out", tmp_path / "run") == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"is kept in {tmp_path / 'run'}" in said[0]
    if where == "VirtualRun":
        assert f"--resume {tmp_path / 'run'}" in said[0]
        assert exit_code("replay", "--resume", tmp_path / "run") == 0
    assert not RunReader(tmp_path / "run").incomplete


def _before(path: Path, manifest: object) -> NoReturn:
    raise KeyboardInterrupt


def _after(path: Path, manifest: Any) -> NoReturn:
    RunWriter(path, manifest).close()
    raise KeyboardInterrupt


@pytest.mark.parametrize(("opened", "code"), [(_before, 130), (_after, 1)])
def test_ctrl_c_while_the_directory_is_made(
    opened: Callable[..., NoReturn],
    code: int,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("agentload._run_keeping.RunWriter", opened)
        assert exit_code("replay", trace, "--out", tmp_path / "run") == code
    assert (tmp_path / "run").exists() == (str(tmp_path / "run") in capsys.readouterr().err) == (code == 1)
    if code == 1:
        assert exit_code("replay", "--resume", tmp_path / "run") == 0


class _StoppedAgain(RunWriter):
    """Is told to stop while it keeps what was recorded."""

    number = signal.SIGINT

    def finish(self, status: Literal["complete", "interrupted"]) -> None:
        signal.raise_signal(self.number)
        super().finish(status)


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_ctrl_c_does_not_keep_an_interrupted_run_from_being_ended(
    again: signal.Signals,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with monkeypatch.context() as patched:
        patched.setattr(_StoppedAgain, "number", again)
        patched.setattr("agentload._run_keeping.RunWriter", _StoppedAgain)
        patched.setattr(agentload._virtual, "VirtualRun", _interrupt)
        assert exit_code("replay", trace, "--out", tmp_path / "run") == 1
    assert RunReader(tmp_path / "run").manifest.status == "interrupted"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    said = capsys.readouterr()
    assert said.out == f"0 of 1 planned turns (interrupted), 0 failed, 0 not sent: {tmp_path / 'run'}\n"
    assert len(said.err.splitlines()) == 1
    assert exit_code("replay", "--resume", tmp_path / "run") == 0
    assert capsys.readouterr().out == f"1 turns, 0 failed, 0 not sent: {tmp_path / 'run'}\n"


@pytest.mark.parametrize(
    ("options", "played"),
    [
        ([], "1,100 of 1,200 planned turns"),
        (["--concurrency", 1], "1,100 turns"),  # the trace is read as it is played: nobody knows its length
    ],
)
def test_an_interrupted_replay_says_how_much_of_the_plan_was_played(
    options: list[object],
    played: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns = [
        Turn(session_id=f"s{number}", turn_id="t", start_ms=float(number), input_tokens=10, output_tokens=1)
        for number in range(1_200)
    ]
    write_trace(tmp_path / "long.jsonl", turns)
    add, rows = RunWriter.add_request, 0

    def until_stopped(writer: RunWriter, row: RequestRow) -> None:
        nonlocal rows
        if rows == 1_100:
            raise KeyboardInterrupt
        rows += 1
        add(writer, row)

    monkeypatch.setattr(RunWriter, "add_request", until_stopped)
    assert exit_code("replay", tmp_path / "long.jsonl", "--out", tmp_path / "run", *options) == 1
    assert capsys.readouterr().out.startswith(f"{played} (interrupted), 0 failed, 0 not sent: ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_wall_clock_run_needs_no_standard_stream(closed: str, trace: Path, tmp_path: Path) -> None:
    command = f'"$0" -m agentload run "$1" --out "$2" --clock wall {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, trace, tmp_path / "run"], capture_output=True, check=False
    )
    # A busy machine may add that its client did not keep up.
    told = [line for line in done.stderr.splitlines() if not line.startswith(b"warning: not valid")]
    assert (done.returncode, told) == (0, [])
    assert not RunReader(tmp_path / "run").incomplete
