"""Run directories when something goes wrong: kills, full disks, damage, two writers at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from file_limits import file_size_limit
from small_runs import FINISHED, a_call, a_manifest, a_row, dicts, expected

from agentload_traces import RunDirectoryError, RunReader, RunWriter


def test_a_journal_torn_at_any_byte_reads_to_its_last_whole_line_and_resumes(tmp_path: Path) -> None:
    rows = [a_row(0, turn) for turn in range(3)]
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        for row in rows:
            writer.add_request(row)
    journal = tmp_path / "run" / "requests.jsonl"
    whole = journal.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        journal.write_bytes(whole[:length])
        kept = sum(end <= length for end in ends)
        reader = RunReader(tmp_path / "run")
        assert reader.requests().collect().height == kept
        assert reader.torn_lines == (0 if length in (0, *ends) else 1)
        assert reader.incomplete
    for length in (0, 1, ends[0], ends[1] - 1, ends[2] - 2):
        journal.write_bytes(whole[:length])
        kept = sum(end <= length for end in ends)
        with RunWriter.resume(tmp_path / "run") as writer:
            writer.add_request(rows[2])
        assert dicts(RunReader(tmp_path / "run").requests()) == expected([*rows[:kept], rows[2]])


def test_rows_reach_the_disk_after_a_second_of_the_callers_clock(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", a_manifest())
    writer.tick(5_000_000_000)
    writer.add_request(a_row(0, 0))
    writer.add_tool_call(a_call(0, 0))
    writer.tick(5_999_999_999)
    assert RunReader(tmp_path / "run").requests().collect().height == 0
    writer.tick(6_000_000_000)
    assert RunReader(tmp_path / "run").requests().collect().height == 1
    assert RunReader(tmp_path / "run").tool_calls().collect().height == 1
    writer.close()


def test_many_rows_reach_the_disk_without_a_tick(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        for turn in range(2_000):
            writer.add_request(a_row(0, turn))
        assert RunReader(tmp_path / "run").requests().collect().height >= 1_000


def test_a_killed_writer_leaves_a_readable_incomplete_directory(tmp_path: Path) -> None:
    script = """
import os, sys
from agentload_traces import Manifest, RequestRow, RunWriter
m = Manifest(status="running", clock="wall", seed=0, target="x", mode="endpoint", trace="t")
w = RunWriter(sys.argv[1], m)
for i in range(3):
    w.add_request(RequestRow(session_id="s", turn_id=str(i), turn_index=i))
w.tick(10**9)
w.add_request(RequestRow(session_id="s", turn_id="3", turn_index=3))
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False)
    assert done.returncode == 9
    reader = RunReader(tmp_path / "run")
    assert reader.incomplete
    assert reader.manifest.status == "running"
    assert reader.requests().collect()["turn_id"].to_list() == ["0", "1", "2"]


def test_a_kill_between_the_steps_of_finish_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    writer = RunWriter(path, a_manifest())
    writer.add_request(a_row(0, 0))
    writer.add_tool_call(a_call(0, 0))
    writer.flush()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    writer.finish("complete")
    after = {file.name: file.read_bytes() for file in path.iterdir()}
    steps = [
        {**before, "requests.parquet": after["requests.parquet"]},
        {
            **before,
            "requests.parquet": after["requests.parquet"],
            ".tool_calls.parquet.0123456789abcdef.tmp": b"PAR",
        },
        {**before, **{k: v for k, v in after.items() if k != "manifest.json"}},
        {k: v for k, v in {**after, **before}.items() if k != "requests.jsonl"},
        {**after, "manifest.json": before["manifest.json"]},
    ]
    for number, files in enumerate(steps):
        copy = tmp_path / str(number)
        copy.mkdir()
        for name, content in files.items():
            (copy / name).write_bytes(content)
        reader = RunReader(copy)
        assert reader.incomplete
        assert dicts(reader.requests()) == expected([a_row(0, 0)])
        assert dicts(reader.tool_calls()) == expected([a_call(0, 0)])
        RunWriter.resume(copy).finish("complete")
        assert (copy / "requests.parquet").read_bytes() == after["requests.parquet"]
        assert not RunReader(copy).incomplete


@pytest.mark.parametrize(
    "damage",
    [
        b"hello\n",
        b"\n",
        b'{"session_id":"s0"}\n',
        b'{"session_id":"s0","turn_',
        b"[" * 5_000 + b"\n",
        b"\xff\n",
    ],
)
def test_a_journal_is_read_and_resumed_up_to_a_damaged_line(tmp_path: Path, damage: bytes) -> None:
    rows = [a_row(0, turn) for turn in range(4)]
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        for row in rows:
            writer.add_request(row)
    journal = tmp_path / "run" / "requests.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    lost = 2 + damage.count(b"\n")
    reader = RunReader(tmp_path / "run")
    assert dicts(reader.requests()) == expected(rows[:2])
    assert reader.torn_lines == lost
    with RunWriter.resume(tmp_path / "run") as writer:
        assert writer.torn_lines == lost
        writer.add_request(rows[3])
    assert dicts(RunReader(tmp_path / "run").requests()) == expected([*rows[:2], rows[3]])
    assert RunReader(tmp_path / "run").torn_lines == 0


@pytest.mark.parametrize("limit", [1, 100, 5_000])
def test_a_disk_that_is_full_for_a_while_costs_no_row_and_repeats_none(tmp_path: Path, limit: int) -> None:
    rows = [a_row(0, turn) for turn in range(30)]
    calls = [a_call(0, turn) for turn in range(30)]
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        writer.add_request(rows[0])
        writer.add_tool_call(calls[0])
        writer.flush()
        for row, call in zip(rows[1:], calls[1:], strict=True):
            writer.add_request(row)
            writer.add_tool_call(call)
        for _ in range(2):
            with (
                file_size_limit(limit),
                pytest.raises(RunDirectoryError, match="cannot be written: File too large"),
            ):
                writer.flush()
            reader = RunReader(tmp_path / "run")
            read = dicts(reader.requests())
            assert read == expected(rows[: len(read)])
            assert len(read) >= 1
    reader = RunReader(tmp_path / "run")
    assert dicts(reader.requests()) == expected(rows)
    assert dicts(reader.tool_calls()) == expected(calls)
    assert reader.torn_lines == 0


def test_a_disk_that_stays_full_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    rows = [a_row(0, turn) for turn in range(30)]
    writer = RunWriter(tmp_path / "run", a_manifest())
    for row in rows:
        writer.add_request(row)
    with file_size_limit(5_000), pytest.raises(RunDirectoryError, match="cannot be written"):
        writer.close()
    kept = RunReader(tmp_path / "run").requests().collect().height
    assert 0 < kept < 30
    with RunWriter.resume(tmp_path / "run") as writer:
        for row in rows[kept:]:
            writer.add_request(row)
        writer.flush()
        with file_size_limit(500), pytest.raises(RunDirectoryError, match="cannot be written"):
            writer.finish("complete")
    RunWriter.resume(tmp_path / "run").finish("complete")
    assert dicts(RunReader(tmp_path / "run").requests()) == expected(rows)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == FINISHED


def two_sessions_and_a_stray_call(path: Path) -> None:
    with RunWriter(path, a_manifest()) as writer:
        for session in range(2):
            writer.add_tool_call(a_call(session, 0))
            writer.add_request(a_row(session, 0))
        writer.add_tool_call(a_call(2, 0))  # its turn was not answered before the kill


def test_sessions_are_kept_in_both_tables_or_in_none(tmp_path: Path) -> None:
    two_sessions_and_a_stray_call(tmp_path / "run")
    with RunWriter.resume(tmp_path / "run") as writer:
        assert writer.keep_sessions({"s1"}) == 1
        assert writer.keep_sessions({"s1", "s9"}) == 0
    reader = RunReader(tmp_path / "run")
    assert dicts(reader.requests()) == expected([a_row(1, 0)])
    assert dicts(reader.tool_calls()) == expected([a_call(1, 0)])
    with RunWriter.resume(tmp_path / "run") as writer:
        assert writer.keep_sessions(set()) == 1
    assert dicts(RunReader(tmp_path / "run").tool_calls()) == []


@pytest.mark.parametrize("replaced", ["requests.jsonl", "tool_calls.jsonl"])
def test_a_kill_between_the_tables_of_keep_sessions_is_mended_by_the_next(
    tmp_path: Path, replaced: str
) -> None:
    path = tmp_path / "run"
    two_sessions_and_a_stray_call(path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with RunWriter.resume(path) as writer:
        writer.keep_sessions({"s1"})
    after = (path / replaced).read_bytes()
    for name, content in {**before, replaced: after, ".tool_calls.jsonl.0123456789abcdef.tmp": b"{"}.items():
        (path / name).write_bytes(content)
    with RunWriter.resume(path) as writer:
        writer.keep_sessions({"s1"})
        writer.finish("complete")
    assert dicts(RunReader(path).requests()) == expected([a_row(1, 0)])
    assert dicts(RunReader(path).tool_calls()) == expected([a_call(1, 0)])
    assert sorted(p.name for p in path.iterdir()) == FINISHED


def test_keep_sessions_on_a_full_disk_leaves_both_tables_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run"
    two_sessions_and_a_stray_call(path)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix == ".jsonl"}
    size = len(before["tool_calls.jsonl"])
    with RunWriter.resume(path) as writer, file_size_limit(size // 2), pytest.raises(RunDirectoryError):
        writer.keep_sessions({"s0", "s1", "s2"})
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.suffix != ".json"} == before


def test_a_run_that_is_still_going_is_neither_resumed_nor_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunWriter(path, a_manifest()) as writer:
        writer.add_request(a_row(0, 0))
        with pytest.raises(RunDirectoryError, match="this run is still going"):
            RunWriter.resume(path)
        with pytest.raises(RunDirectoryError, match="a run that is still going"):
            RunWriter(path, a_manifest())
        writer.keep_sessions({"s0"})
        with pytest.raises(RunDirectoryError, match="this run is still going"):
            RunWriter.resume(path)
    with RunWriter.resume(path) as writer:
        with pytest.raises(RunDirectoryError, match="this run is still going"):
            RunWriter.resume(path)
        writer.finish("complete")
    assert dicts(RunReader(path).requests()) == expected([a_row(0, 0)])
    assert sorted(p.name for p in path.iterdir()) == FINISHED


def test_another_process_that_goes_on_is_seen_and_a_killed_one_is_not(tmp_path: Path) -> None:
    script = """
import sys
from agentload_traces import Manifest, RunWriter
m = Manifest(status="running", clock="wall", seed=0, target="x", mode="endpoint", trace="t")
w = RunWriter(sys.argv[1], m)
print("begun", flush=True)
sys.stdin.read()
"""
    path = tmp_path / "run"
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        with pytest.raises(RunDirectoryError, match="this run is still going") as caught:
            RunWriter.resume(path)
        assert "\n" not in str(caught.value)
        other.kill()
        other.wait()
    with pytest.raises(RunDirectoryError, match="resume it or give another"):
        RunWriter(path, a_manifest())
    RunWriter.resume(path).finish("complete")
    assert not RunReader(path).incomplete


@pytest.mark.parametrize("status", ["complete", "interrupted"])
@pytest.mark.parametrize("table", ["requests", "tool_calls"])
def test_a_finished_run_without_a_table_is_an_error(tmp_path: Path, status: str, table: str) -> None:
    writer = RunWriter(tmp_path / "run", a_manifest())
    writer.add_request(a_row(0, 0))
    writer.finish("complete" if status == "complete" else "interrupted")
    (tmp_path / "run" / f"{table}.parquet").unlink()
    reader = RunReader(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=rf"{table}\.parquet: is missing; the run is {status}"):
        reader.requests() if table == "requests" else reader.tool_calls()
    if status == "interrupted":
        with pytest.raises(RunDirectoryError, match="is missing; without it the run cannot be resumed"):
            RunWriter.resume(tmp_path / "run")


def test_a_run_that_ends_while_it_is_looked_at_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(tmp_path / "run", a_manifest())
    writer.add_request(a_row(0, 0))
    reader = RunReader(tmp_path / "run")
    open_now = Path.read_bytes

    def ends_first(path: Path) -> bytes:
        if path.name == "requests.jsonl" and path.exists():
            writer.finish("complete")
        return open_now(path)

    monkeypatch.setattr(Path, "read_bytes", ends_first)
    assert dicts(reader.requests()) == expected([a_row(0, 0)])
    assert reader.torn_lines == 0
