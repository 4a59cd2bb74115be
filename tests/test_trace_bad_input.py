"""Bad input: one clear line with file, line and field, and nothing else lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
import zstandard
from file_limits import file_size_limit

from agentload_traces import ToolCall, TraceError, TraceProblemError, Turn, open_trace, write_trace


def good(number: int) -> bytes:
    return msgspec.json.encode(Turn(session_id="s", turn_id=str(number), input_tokens=number))


def turn_ids(path: Path) -> tuple[list[str], list[str]]:
    reader = open_trace(path)
    ids = [turn.turn_id for turn in reader.turns()]
    report = reader.report
    assert report.lines_accounted == report.lines_read
    return ids, [str(problem).removeprefix(f"{path}:") for problem in report.problems]


BAD_LINES = [
    (b'{"session_id":"s","turn_id":"9","input_tokens":', "not valid JSON: it ends early"),
    (b"no JSON", "not valid JSON: invalid character (byte 4)"),
    (good(9) + b" {}", "not valid JSON: trailing characters (byte 51)"),
    (b"[1, 2]", "expected `object`, got `array`"),
    (b'{"session_id":"s","input_tokens":1}', "turn_id: missing"),
    (b'{"session_id":"s","turn_id":"9","input_tokens":"1"}', "input_tokens: expected `int`, got `str`"),
    (b'{"session_id":"s","turn_id":"9","input_tokens":1.5}', "input_tokens: expected `int`, got `float`"),
    (
        b'{"colour":"red","session_id":"s","turn_id":"9","input_tokens":"1"}',
        "input_tokens: expected `int`, got `str`",
    ),
    (
        b'{"session_id":"s","turn_id":"9","input_tokens":1,"tool_calls":[{"ms":1,"name":[]}]}',
        "tool_calls[0].name: expected `str | null`, got `array`",
    ),
    (
        b'{"session_id":"s","turn_id":"9","input_tokens":1,"tool_calls":{"ms":1}}',
        "tool_calls: expected `array`, got `object`",
    ),
    (
        b'{"session_id":"s","turn_id":"9","input_tokens":1,"blocks":{"ids":[1,"x"],"block_tokens":1}}',
        "blocks.ids[1]: expected `int`, got `str`",
    ),
    (
        b'{"session_id":"s","turn_id":"9","input_tokens":1,"trigger":"cron"}',
        "trigger: invalid enum value 'cron'",
    ),
    (b'{"session_id":"s","turn_id":"9","input_tokens":1,"delay_ms":1e999}', "delay_ms: number out of range"),
    (b'{"session_id":"s","turn_id":"9","input_tokens":-3}', "input_tokens: must be 0 or more, is -3"),
    (
        b'{"session_id":"s","turn_id":"\xff\xfe","input_tokens":1}',
        "not valid JSON: Invalid UTF-8 encoded string",
    ),
    (b'{"session_id":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
    (good(9)[:-1] + b',"colour":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_reported_and_the_rest_kept(tmp_path: Path, line: bytes, message: str | None) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join([good(0), line, good(1), b"", good(2)]) + b"\n")
    ids, problems = turn_ids(path)
    assert ids == ["0", "1", "2"]
    (problem,) = problems
    assert "\n" not in problem
    assert problem == f"2: {message}" if message else problem.startswith("2: ")


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_strict_stops_at_the_first_bad_line(tmp_path: Path, line: bytes, message: str | None) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join([good(0), line, line, good(1)]))
    turns = open_trace(path, strict=True).turns()
    assert next(turns).turn_id == "0"
    with pytest.raises(TraceProblemError, match=r"trace\.jsonl:2: ") as caught:
        next(turns)
    assert caught.value.problem.line == 2


def test_all_problems_are_counted_and_the_first_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join([good(0), *[b"{}"] * 250, b"[]"]))
    reader = open_trace(path)
    assert len(list(reader.turns())) == 1
    report = reader.report
    assert (report.problem_count, len(report.problems)) == (251, 100)
    assert report.skipped == {"session_id": 250, "not readable": 1}


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + good(0) + b"\r\n" + good(1))
    assert turn_ids(path) == (["0", "1"], [])


def many_lines() -> bytes:
    return b"".join(good(number) + b"\n" for number in range(3_000))


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.8])
def test_a_truncated_zstd_frame_keeps_what_stood_before_the_cut(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "trace.jsonl.zst"
    data = b"".join(
        zstandard.compress(many_lines()[start : start + 20_000])
        for start in range(0, len(many_lines()), 20_000)
    )
    path.write_bytes(data[: int(len(data) * kept)])
    ids, problems = turn_ids(path)
    assert len(ids) > 100
    assert ids == [str(number) for number in range(len(ids))]
    assert problems == [f"{len(ids) + 1}: the zstd frame ends early (truncated file)"]


def test_a_cut_between_two_lines_is_reported_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.zst"
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(good(0) + b"\n")
    path.write_bytes(whole[:-2])  # all data is there, the checksum is not
    assert turn_ids(path) == (["0"], ["2: the zstd frame ends early (truncated file)"])


def test_a_damaged_zstd_frame_keeps_the_frames_before_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.zst"
    path.write_bytes(zstandard.compress(good(0) + b"\n" + good(1) + b"\n") + b"\x00garbage")
    ids, (problem,) = turn_ids(path)
    assert ids == ["0", "1"]
    assert problem.startswith("3: damaged zstd frame, nothing after this can be read (")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; a trace has at least one turn"),
        (b"\n \n", "is empty; a trace has at least one turn"),
        (b"hello\n", "format not recognised from its content; formats: agentload-parquet, agentload-jsonl"),
        ("session_id é".encode("latin-1"), "format not recognised, the text is not UTF-8"),
        (zstandard.compress(many_lines())[:8], "the zstd frame ends early"),
        (b"PAR1 and nothing more", "not a readable Parquet file"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        list(open_trace(path).turns())
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory; give a trace file"):
        open_trace(tmp_path)
    with pytest.raises(TraceError, match=r"nothing\.jsonl: cannot be read \(No such file or directory\)"):
        open_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(TraceError, match="unknown trace format 'csv'; formats: agentload-parquet, "):
        open_trace(tmp_path / "nothing.jsonl", format="csv")


def test_parquet_of_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pl.DataFrame({"session_id": ["s"], "turn_id": ["0"]}).write_parquet(path)
    with pytest.raises(TraceError, match="Parquet without column 'input_tokens'"):
        list(open_trace(path).turns())
    pl.DataFrame(
        {"session_id": ["s", "s"], "turn_id": ["0", None], "input_tokens": [1, 2], "note": ["x", "y"]}
    ).write_parquet(path)
    ids, problems = turn_ids(path)
    assert ids == ["0"]
    assert problems == [" note: unknown field, not read", "2: turn_id: missing"]


def newer_turns() -> list[dict[str, Any]]:
    """As a later version may write them: with a new field in each kind of record."""
    return [
        {
            "session_id": "s",
            "turn_id": str(number),
            "input_tokens": 64,
            "tool_calls": [{"name": "bash", "exit": 1}],
            "blocks": {"ids": [2**64 - 1], "block_tokens": 64, "scope": "session", "hash": "xxh3"},
            "priority": number,
        }
        for number in range(3)
    ]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_field_of_a_later_version_is_told_once_and_costs_no_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trace{ending}"
    if ending == ".jsonl":
        path.write_bytes(b"\n".join(map(msgspec.json.encode, newer_turns())))
    else:
        ids = {
            "blocks": pl.Struct(
                {
                    "ids": pl.List(pl.UInt64()),
                    "block_tokens": pl.Int64(),
                    "scope": pl.String(),
                    "hash": pl.String(),
                }
            )
        }
        pl.DataFrame(newer_turns(), schema_overrides=ids).write_parquet(path)
    reader = open_trace(path)
    turns = list(reader.turns())
    assert [(turn.turn_id, turn.tool_calls) for turn in turns] == [
        (str(number), (ToolCall(name="bash"),)) for number in range(3)
    ]
    assert all(turn.blocks and turn.blocks.ids == (2**64 - 1,) for turn in turns)
    report = reader.report
    assert {(p.field, p.message, p.kept) for p in report.problems} == {
        (field, "unknown field, not read", True) for field in ("priority", "tool_calls.exit", "blocks.hash")
    }
    assert report.problem_count == 3
    assert report.ignored_fields == {"priority": 3, "tool_calls.exit": 3, "blocks.hash": 3}
    assert report.lines_skipped == 0
    with pytest.raises(TraceProblemError, match="unknown field, not read"):
        list(open_trace(path, strict=True).turns())


def test_parquet_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    frame = pl.DataFrame({"session_id": ["s"], "turn_id": ["0"], "input_tokens": [1]})
    frame.write_parquet(path, metadata={"agentload_trace_format": "2"})
    with pytest.raises(TraceError, match="trace format 2, this version reads format 1; update agentload"):
        list(open_trace(path).turns())


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst", ".parquet"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, ending: str) -> None:
    turns = [
        Turn(session_id=str(number), turn_id="0", input_tokens=number * 7919 % 10**9)
        for number in range(20_000)
    ]
    path = tmp_path / f"trace{ending}"
    with file_size_limit(10_000), pytest.raises(TraceError, match=r"cannot be written \(.*File too large"):
        write_trace(path, turns)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?b"])
def test_a_path_is_no_pattern(tmp_path: Path, name: str) -> None:
    for ending in (".jsonl", ".parquet"):
        path = tmp_path / name / f"{name}{ending}"
        path.parent.mkdir(exist_ok=True)
        write_trace(path, [Turn(session_id="s", turn_id="0", input_tokens=1)])
        assert turn_ids(path) == (["0"], [])


def test_a_trace_without_one_good_line_has_no_turns_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"session_id":"s","turn_id":"9","input_tokens":-3}\n')
    reader = open_trace(path)
    assert list(reader.sessions()) == []
    assert (reader.report.turns, reader.report.problem_count) == (0, 1)


def test_truncated_parquet(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(path, [Turn(session_id="s", turn_id="0", input_tokens=1)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TraceError, match="not a readable Parquet file"):
        list(open_trace(path).turns())
