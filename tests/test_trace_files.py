"""The files of traces: where they may lie, what they may be, and what is left of one that is not finished."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import zstandard

from agentload._cli import main
from agentload_traces import (
    PrefixBlocks,
    TraceError,
    Turn,
    open_trace,
    replacing_file,
    trace_info,
    write_trace,
)

ENDINGS = [".jsonl", ".jsonl.zst", ".parquet"]
TURN = Turn(session_id="s", turn_id="0", input_tokens=1)
LINE = '{"session_id":"s","turn_id":"0","input_tokens":1}\n'

Captured = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_other_file_is_touched(tmp_path: Path, ending: str) -> None:
    other = tmp_path / f"out{ending}.tmp"
    other.write_text(LINE)
    assert run("trace", "convert", str(other), str(tmp_path / f"out{ending}")) == 0
    assert other.read_text() == LINE
    assert names(tmp_path) == [f"out{ending}", f"out{ending}.tmp"]
    with pytest.raises(TraceError, match="no turn"):
        write_trace(tmp_path / f"out{ending}", [])
    assert other.read_text() == LINE


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_has_the_permission_bits_of_any_new_file(tmp_path: Path, ending: str) -> None:
    before = os.umask(0o026)
    try:
        write_trace(tmp_path / f"out{ending}", [TURN])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / f"out{ending}").stat().st_mode) == 0o640


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_symlink_is_written_through(tmp_path: Path, ending: str) -> None:
    (tmp_path / "real").mkdir()
    for target in (tmp_path / "real" / "there", tmp_path / "real" / "not there yet"):
        link = tmp_path / f"{target.name}{ending}"
        link.symlink_to(target)
        (tmp_path / "real" / "there").write_text("old")
        write_trace(link, [TURN])
        assert link.is_symlink()
        assert list(open_trace(target).turns()) == [TURN]
    assert names(tmp_path / "real") == ["not there yet", "there"]


def test_convert_does_not_write_over_its_input_by_another_name(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(LINE)
    (tmp_path / "link.parquet").symlink_to(path)
    assert run("trace", "convert", str(path), str(tmp_path / "link.parquet")) == 2
    assert capsys.readouterr().err.endswith("link.parquet: is the file that is read; give another name\n")
    assert path.read_text() == LINE


@pytest.mark.parametrize("kind", ["pipe", "directory"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_no_regular_file_is_not_replaced(
    tmp_path: Path, capsys: Captured, kind: str, ending: str
) -> None:
    path = tmp_path / f"out{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert run("generate", "-o", str(path), "--sessions", "1", "--turns", "1") == 2
    assert capsys.readouterr().err == (
        f"error: {path}: cannot be written (is a {kind}; give the name of a file)\n"
    )
    assert names(tmp_path) == [path.name]
    assert not path.is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file/out", "Not a directory"),
        ("x" * 256, "File name too long"),
        ("no/out", "No such file or directory"),
    ],
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_where_nothing_can_be_written_one_line_says_so(
    tmp_path: Path, capsys: Captured, name: str, reason: str, ending: str
) -> None:
    source = tmp_path / "file"
    source.write_text(LINE)
    out = str(tmp_path / f"{name}{ending}")
    assert run("trace", "convert", str(source), out) == 2
    assert capsys.readouterr().err == f"error: {out}: cannot be written ({reason})\n"
    assert run("generate", "-o", out, "--sessions", "1", "--turns", "1") == 2
    assert capsys.readouterr().err == f"error: {out}: cannot be written ({reason})\n"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, ending: str) -> None:
    path = tmp_path / ("é" * 120 + "e" * (15 - len(ending)) + ending)
    assert len(os.fsencode(path.name)) == 255
    write_trace(path, [TURN])
    assert names(tmp_path) == [path.name]


def test_a_file_that_cannot_be_removed_hides_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def goes_wrong() -> None:
        with replacing_file(folder / "out"):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            raise RuntimeError("what the user must know")

    with pytest.raises(RuntimeError, match="what the user must know"):
        goes_wrong()


KILLED_COMMAND = """
import os, signal, sys
import agentload_traces
from agentload._cli import main
from agentload_traces import Turn

write_trace = agentload_traces.write_trace

def told_to_end(path, turns):
    def more():
        yield from turns
        for number in range(300_000):
            if number == 20_000:
                os.kill(os.getpid(), signal.Signals[sys.argv[1]])
            yield Turn(session_id=f"more {number}", turn_id="0", input_tokens=1)
    return write_trace(path, more())

agentload_traces.write_trace = told_to_end
main(sys.argv[2:])
"""


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("command", ["convert", "generate"])
def test_nothing_is_left_of_a_file_whose_writing_is_ended(
    tmp_path: Path, command: str, ending: str, signal_name: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    out = str(folder / f"out{ending}")
    (tmp_path / "in.jsonl").write_text(LINE)
    arguments = {
        "convert": ["trace", "convert", str(tmp_path / "in.jsonl"), out],
        "generate": ["generate", "-o", out, "--sessions", "1", "--turns", "1"],
    }[command]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_COMMAND, signal_name, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"interrupted: {out} is not written\n"
    assert names(folder) == []


@pytest.mark.parametrize("command", ["info", "validate"])
def test_a_pipe_is_no_trace(tmp_path: Path, capsys: Captured, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run("trace", command, str(tmp_path / "pipe")) == 2
    says = "is a pipe; a trace is read more than once: save it to a file\n"
    assert capsys.readouterr().err == f"error: {tmp_path}/pipe: {says}"
    done = subprocess.run(
        [sys.executable, "-m", "agentload", "trace", command, "/dev/stdin"],
        input=LINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"error: /dev/stdin: {says}")


@pytest.mark.parametrize("command", ["info", "validate"])
def test_a_name_that_is_too_long_is_one_line(tmp_path: Path, capsys: Captured, command: str) -> None:
    path = tmp_path / ("x" * 300)
    assert run("trace", command, str(path)) == 2
    assert capsys.readouterr().err == f"error: {path}: cannot be read (File name too long)\n"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_that_is_not_utf_8(tmp_path: Path, capsys: Captured, ending: str) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9" + ending.encode())
    shown = f"{tmp_path}/caf�{ending}"
    assert run("generate", "-o", str(path), "--sessions", "2", "--turns", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["path"] == shown
    assert run("trace", "info", str(path), "--json") == 0
    totals = json.loads(capsys.readouterr().out)
    assert (totals["file"], totals["turns"]) == (shown, 6)
    assert run("trace", "validate", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["file"] == shown
    assert run("trace", "convert", str(path), str(path.with_name(f"out{ending}"))) == 0
    assert list(open_trace(path.with_name(f"out{ending}")).turns()) == list(open_trace(path).turns())


def test_names_that_are_not_utf_8_reach_other_formats(tmp_path: Path) -> None:
    weka = tmp_path / os.fsdecode(b"caf\xe9.json")
    weka.write_text('{"block_size": 64, "requests": [{"t": 0, "in": 5}, {"t": -1, "in": 5}]}')
    write_trace(tmp_path / "out.jsonl", open_trace(weka).turns())  # the session has its name from the file
    mooncake = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    mooncake.write_text('{"input_length": 5, "session_id": "s"}\n{"input_length": 5}\n')
    assert trace_info(mooncake).turns == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_encoding_of_the_terminal_does_not_break_json(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE.replace("}", ',"model":"modèle 模"}'), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "agentload", "trace", "info", str(path), "--json"],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout.decode("utf-8"))["models"] == ["modèle 模"]


ODD = "a\nb\x1b[31m\u2028\u202e"
ODD_SHOWN = r"a\nb\x1b[31m\u2028\u202e"


def test_foreign_names_stay_on_their_line(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "trace.jsonl"
    fields = {"session_id": ODD, "turn_id": ODD, "input_tokens": 1, "model": ODD, ODD: 1}
    path.write_text(f"{json.dumps(fields)}\n{json.dumps(fields)}\n")
    assert run("trace", "info", str(path)) == 0
    told = capsys.readouterr()
    assert ODD_SHOWN in told.out.partition("models")[2].splitlines()[0]
    assert ODD_SHOWN in told.out.partition("fields not read")[2].splitlines()[0]
    assert told.err == (
        f"problem: {path}:1: {ODD_SHOWN}: unknown field, not read (the first of 2 problems)\n"
    )
    assert run("trace", "validate", str(path)) == 1
    told = capsys.readouterr()
    assert told.out.count("\n") == 3
    assert not set("\x1b\u2028\u202e") & set(told.out)
    assert run("trace", "convert", str(path), str(tmp_path / "out.jsonl")) == 1
    assert f"fields not read: {ODD_SHOWN} 2\n" in capsys.readouterr().err
    assert run("trace", "info", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"] == [ODD]


@pytest.mark.parametrize("command", ["info", "validate", "convert"])
def test_a_trace_without_rows_is_empty_in_every_form(tmp_path: Path, capsys: Captured, command: str) -> None:
    as_lines, as_rows = tmp_path / "empty.jsonl", tmp_path / "empty.parquet"
    as_lines.touch()
    pl.DataFrame(schema={"session_id": str, "turn_id": str, "input_tokens": int}).write_parquet(as_rows)
    for path in (as_lines, as_rows):
        more = [str(tmp_path / "out.jsonl")] if command == "convert" else []
        assert run("trace", command, str(path), *more) == 2
        assert capsys.readouterr().err == f"error: {path}: is empty; a trace has at least one turn\n"


@pytest.mark.parametrize("blank_lines", [0, 1_200_000])
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst"])
def test_a_long_first_line_is_recognised_by_keys_at_its_end(
    tmp_path: Path, ending: str, blank_lines: int
) -> None:
    ids = tuple(range(10**6, 10**6 + 300_000))
    blocks = PrefixBlocks(ids=ids, block_tokens=64)
    begin = f'{{"blocks":{{"ids":{list(ids)},"block_tokens":64}},'
    data = b"\n" * blank_lines + LINE.replace("{", begin).encode()
    path = tmp_path / f"trace{ending}"
    path.write_bytes(zstandard.compress(data) if ending.endswith(".zst") else data)
    problem_of_blocks = "has 300000 ids, but input_tokens 1 makes 1 blocks of 64 tokens"
    reader = open_trace(path)
    assert list(reader.turns()) == []
    assert [problem.message for problem in reader.report.problems] == [problem_of_blocks]
    path.write_bytes(data.replace(b'"input_tokens":1}', b'"input_tokens":%d}' % (64 * len(ids))))
    (turn,) = open_trace(path).turns()
    assert turn.blocks == blocks
