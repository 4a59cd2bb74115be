"""Run directories: what a row and a file in them may be, and whose files they leave alone."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from small_runs import FINISHED, a_call, a_manifest, a_row, dicts, expected

from agentload_traces import RunDirectoryError, RunReader, RunWriter


@pytest.mark.parametrize(
    "wrong",
    [{"end_ns": 2**63}, {"tool_ns": -(2**63) - 1}, {"arrival_dt_us": [1, 2**63]}, {"input_tokens": 10**400}],
)
def test_a_row_that_no_column_can_hold_is_refused_and_the_others_stay_readable(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    limits = {"end_ns": 2**63 - 1, "tool_ns": -(2**63), "arrival_dt_us": [-(2**63), 2**63 - 1]}
    rows = [a_row(0, 0), msgspec.structs.replace(a_row(0, 1), **limits)]
    (field,) = wrong
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        for row in rows:
            writer.add_request(row)
        with pytest.raises(RunDirectoryError, match=rf"{field} of turn 't2' of session 's0' does not fit"):
            writer.add_request(msgspec.structs.replace(a_row(0, 2), **wrong))
        with pytest.raises(RunDirectoryError, match="start_ns of turn 't0' of session 's0' does not fit"):
            writer.add_tool_call(msgspec.structs.replace(a_call(0, 0), start_ns=2**64))
    assert dicts(RunReader(tmp_path / "run").requests()) == expected(rows)
    RunWriter.resume(tmp_path / "run").finish("complete")
    assert dicts(RunReader(tmp_path / "run").requests()) == expected(rows)


def test_a_journal_with_an_integer_that_no_column_can_hold_is_read_up_to_it(tmp_path: Path) -> None:
    rows = [a_row(0, turn) for turn in range(2)]
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        for row in rows:
            writer.add_request(row)
    with (tmp_path / "run" / "requests.jsonl").open("ab") as journal:
        journal.write(msgspec.json.encode(msgspec.structs.replace(a_row(0, 2), end_ns=2**63)) + b"\n")
    reader = RunReader(tmp_path / "run")
    assert dicts(reader.requests()) == expected(rows)
    assert reader.torn_lines == 1


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    for use in (RunReader, RunWriter.resume, lambda path: RunWriter(path, a_manifest())):
        with pytest.raises(RunDirectoryError, match="File name too long") as caught:
            use(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["requests.parquet", "requests.jsonl"])
def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    RunWriter(tmp_path / "run", a_manifest()).finish("interrupted")
    table = tmp_path / "run" / name
    table.unlink(missing_ok=True)
    table.mkdir()
    with pytest.raises(RunDirectoryError, match=f"{name}: is a directory, where a run has a file"):
        RunReader(tmp_path / "run").requests()
    with pytest.raises(RunDirectoryError, match=f"{name}: is a directory, where a run has a file"):
        RunWriter.resume(tmp_path / "run")


def test_a_directory_name_need_not_be_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    writer = RunWriter(path, a_manifest())
    writer.add_request(a_row(0, 0))
    writer.finish("interrupted")
    RunWriter.resume(path).finish("complete")
    assert dicts(RunReader(path).requests()) == expected([a_row(0, 0)])


def test_a_run_directory_is_begun_where_a_killed_one_left_nothing_but_an_unfinished_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".manifest.json.0123456789abcdef.tmp").write_bytes(b"{")
    RunWriter(path, a_manifest()).finish("complete")
    assert sorted(p.name for p in path.iterdir()) == FINISHED


def test_files_that_are_not_the_runs_own_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    writer = RunWriter(path, a_manifest())
    writer.add_request(a_row(0, 0))
    writer.finish("interrupted")
    others = [
        "manifest.json.tmp",
        "requests.parquet.tmp",
        "requests.jsonl.tmp",
        ".report.html.0123456789abcdef.tmp",
    ]
    for name in others:
        (path / name).write_text("mine")
    with RunWriter.resume(path) as writer:
        writer.keep_sessions(set())
        writer.finish("complete")
    assert sorted(p.name for p in path.iterdir()) == sorted([*FINISHED, *others])
    assert {(path / name).read_text() for name in others} == {"mine"}
