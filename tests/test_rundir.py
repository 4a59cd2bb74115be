"""Run directories: what is written is what is read, whenever the writer is killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import FINISHED, a_call, a_manifest, a_row, dicts, expected

from agentload_traces import RequestRow, RunDirectoryError, RunReader, RunWriter, ToolCallRow

small_ints = st.integers(0, 10**12)
optional_ints = st.none() | small_ints
texts = st.none() | st.text(max_size=8)
request_rows = st.builds(
    RequestRow,
    session_id=st.sampled_from(["s0", "s1", "ü\n2"]),
    turn_id=st.text(max_size=4),
    turn_index=st.integers(0, 300),
    agent_id=texts,
    status=st.sampled_from(["ok", "failed", "skipped"]),
    error=texts,
    scheduled_ns=optional_ints,
    end_ns=optional_ints,
    tool_ns=small_ints,
    queue_ns=optional_ints,
    input_tokens=st.integers(0, 10**6),
    arrival_dt_us=st.none() | st.lists(small_ints, max_size=5),
    arrival_tokens=st.none() | st.lists(st.integers(1, 9), max_size=5),
)
tool_call_rows = st.builds(
    ToolCallRow,
    session_id=st.sampled_from(["s0", "s1"]),
    turn_id=st.text(max_size=4),
    call_index=st.integers(0, 9),
    name=texts,
    start_ns=small_ints,
    end_ns=small_ints,
)


@settings(max_examples=25, deadline=None)
@given(requests=st.lists(request_rows, max_size=8), calls=st.lists(tool_call_rows, max_size=4))
def test_rows_come_back_from_journal_parquet_and_resumed_journal(
    tmp_path_factory: pytest.TempPathFactory, requests: list[RequestRow], calls: list[ToolCallRow]
) -> None:
    path = tmp_path_factory.mktemp("r") / "run"
    with RunWriter(path, a_manifest()) as writer:
        for row in requests:
            writer.add_request(row)
        for call in calls:
            writer.add_tool_call(call)
    for step in ("journal", "interrupted", "resumed", "complete"):
        if step == "interrupted" or step == "complete":
            RunWriter.resume(path).finish("complete" if step == "complete" else "interrupted")
        elif step == "resumed":
            RunWriter.resume(path).close()
        reader = RunReader(path)
        assert dicts(reader.requests()) == expected(requests)
        assert dicts(reader.tool_calls()) == expected(calls)
        assert reader.incomplete == (step != "complete")
        assert reader.torn_lines == 0
    assert sorted(p.name for p in path.iterdir()) == FINISHED


def test_a_resumed_run_keeps_the_sessions_it_is_told_to_and_drops_all_others(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        for turn in range(3):
            for session in range(3):
                if (session, turn) != (1, 2):
                    writer.add_tool_call(a_call(session, turn))
                    writer.add_request(a_row(session, turn))
        failed = a_row(3, 0)
        failed.status = "failed"
        writer.add_request(failed)
    writer = RunWriter.resume(tmp_path / "run")
    assert writer.keep_sessions({"s0", "s2"}) == 3
    writer.add_request(a_row(1, 0))
    writer.finish("complete")
    reader = RunReader(tmp_path / "run")
    assert reader.requests().collect()["session_id"].to_list() == ["s0", "s2"] * 3 + ["s1"]
    assert set(reader.tool_calls().collect()["session_id"]) == {"s0", "s2"}
    assert not reader.incomplete


def test_equal_rows_give_equal_parquet_bytes_with_any_number_of_threads(tmp_path: Path) -> None:
    script = """
import sys
from agentload_traces import Manifest, RequestRow, RunWriter
m = Manifest(status="running", clock="virtual", seed=0, target="x", mode="pd", trace="t")
w = RunWriter(sys.argv[1], m)
for i in range(45_000):
    w.add_request(RequestRow(session_id=f"s{i % 70}", turn_id=f"t{i}", turn_index=i // 70, end_ns=i * i,
                             arrival_dt_us=[i % 7, i], arrival_tokens=[1, 2]))
w.finish("complete")
"""
    digests = set()
    for threads in ("1", "4"):
        path = tmp_path / threads
        environment = {**os.environ, "POLARS_MAX_THREADS": threads}
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=environment)
        digests.add(hashlib.sha256((path / "requests.parquet").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_empty_tables_have_all_columns_with_their_types(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", a_manifest()).finish("complete")
    schema = RunReader(tmp_path / "run").requests().collect_schema()
    assert schema.names() == list(RequestRow.__struct_fields__)
    assert schema["end_ns"] == pl.Int64
    assert schema["error"] == pl.String
    assert schema["arrival_dt_us"] == pl.List(pl.Int64)


def test_the_manifest_says_what_the_caller_set(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", a_manifest())
    writer.manifest.turns_planned = 12
    writer.manifest.ended_at = "2026-01-01T00:00:00Z"
    writer.finish("interrupted")
    manifest = RunReader(tmp_path / "run").manifest
    assert (manifest.status, manifest.ended_at) == ("interrupted", "2026-01-01T00:00:00Z")
    assert manifest.conditions == ("concurrency 1", "the link is an estimate")


@pytest.mark.parametrize(
    ("status", "words"), [("complete", "never overwritten"), ("interrupted", "resume it or give another")]
)
def test_a_directory_with_a_run_is_not_overwritten(tmp_path: Path, status: str, words: str) -> None:
    writer = RunWriter(tmp_path / "run", a_manifest())
    writer.add_request(a_row(0, 0))
    writer.finish("complete" if status == "complete" else "interrupted")
    with pytest.raises(RunDirectoryError, match=words):
        RunWriter(tmp_path / "run", a_manifest())
    assert RunReader(tmp_path / "run").requests().collect().height == 1


def test_an_empty_directory_may_be_used_and_one_with_other_files_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    RunWriter(tmp_path / "empty", a_manifest()).finish("complete")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match="holds other files"):
        RunWriter(tmp_path / "other", a_manifest())
    with pytest.raises(RunDirectoryError, match="is a file"):
        RunWriter(tmp_path / "other" / "thesis.tex", a_manifest())


def test_a_complete_run_is_not_resumed(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", a_manifest()).finish("complete")
    with pytest.raises(RunDirectoryError, match="nothing to resume"):
        RunWriter.resume(tmp_path / "run")


def test_missing_and_foreign_directories_give_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_bytes(b'{"status": "done"}')
    (tmp_path / "future").mkdir()
    future = msgspec.to_builtins(a_manifest()) | {"format": 99}
    (tmp_path / "future" / "manifest.json").write_bytes(msgspec.json.encode(future))
    for name, words in {
        "missing": "no such run directory",
        "foreign": "not a run directory",
        "file": "is a file",
        "broken": "not a run's manifest",
        "future": "format 99",
    }.items():
        with pytest.raises(RunDirectoryError, match=words) as caught:
            RunReader(tmp_path / name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "x=1"])
def test_a_directory_name_is_no_pattern(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with RunWriter(path, a_manifest()) as writer:
        writer.add_request(a_row(0, 0))
        writer.add_tool_call(a_call(0, 0))
        writer.finish("interrupted")
    RunWriter.resume(path).finish("complete")
    assert dicts(RunReader(path).requests()) == expected([a_row(0, 0)])
    assert dicts(RunReader(path).tool_calls()) == expected([a_call(0, 0)])


def test_a_column_that_an_older_version_did_not_write_is_unknown(tmp_path: Path) -> None:
    row = a_row(0, 0)
    row.session_turns = 1
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        writer.add_request(row)
        writer.finish("interrupted")
    table = tmp_path / "run" / "requests.parquet"
    assert RunReader(tmp_path / "run").requests().collect()["session_turns"].to_list() == [1]
    pl.read_parquet(table).drop("session_turns").with_columns(later=pl.lit(1)).write_parquet(table)
    assert dicts(RunReader(tmp_path / "run").requests()) == expected([a_row(0, 0)])
    RunWriter.resume(tmp_path / "run").finish("complete")
    assert dicts(RunReader(tmp_path / "run").requests()) == expected([a_row(0, 0)])


def test_reading_and_writing_rows_does_not_import_polars_before_it_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys, agentload_traces as t\n"
        "m = t.Manifest(status='running', clock='wall', seed=0, target='x', mode='pd', trace='t')\n"
        "w = t.RunWriter(sys.argv[1], m)\n"
        "w.add_request(t.RequestRow(session_id='s', turn_id='t', turn_index=0))\n"
        "w.close(); t.RunReader(sys.argv[1]); sys.exit('polars' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=True)
