"""The native trace: what is written is read back, in every form, as a stream."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload_traces import (
    Message,
    PrefixBlocks,
    Session,
    ToolCall,
    TraceError,
    Turn,
    open_trace,
    write_trace,
)

ENDINGS = [".jsonl", ".jsonl.zst", ".parquet"]

T = TypeVar("T")

COUNT = st.integers(0, 2**53)
MS = st.floats(0, 1e10)
TEXT = st.text(max_size=8)
NAME = st.text(min_size=1, max_size=5)


def maybe(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | strategy


CALLS = st.builds(
    ToolCall,
    name=maybe(TEXT),
    duration_ms=maybe(MS),
    arguments_tokens=maybe(COUNT),
    result_tokens=maybe(COUNT),
    agent_id=maybe(TEXT),
)
MESSAGES = st.builds(Message, role=TEXT, content=maybe(TEXT))


@st.composite
def blocks(draw: st.DrawFn, input_tokens: int) -> PrefixBlocks | None:
    if draw(st.booleans()):
        return None
    block_tokens = draw(st.integers(1, 2**53))
    most = min(5, -(-input_tokens // block_tokens))
    ids = draw(st.lists(st.integers(0, 2**64 - 1), max_size=most))
    return PrefixBlocks(
        ids=tuple(ids), block_tokens=block_tokens, scope=draw(st.sampled_from(["session", "trace"]))
    )


@st.composite
def sessions(draw: st.DrawFn, session_id: str) -> Session:
    turn_ids = draw(st.lists(NAME, min_size=1, max_size=4, unique=True))
    turns = []
    for index, turn_id in enumerate(turn_ids):
        input_tokens = draw(COUNT)
        earlier = st.sampled_from(turn_ids[:index]) if index else st.nothing()
        turns.append(
            Turn(
                session_id=session_id,
                turn_id=turn_id,
                input_tokens=input_tokens,
                output_tokens=draw(maybe(COUNT)),
                output_quality=draw(
                    st.sampled_from(["measured", "max_of_lines", "estimated", "placeholder"])
                ),
                wait_for=tuple(draw(st.lists(earlier, max_size=3, unique=True))) if index else (),
                parent_turn_id=draw(maybe(earlier)) if index else None,
                agent_id=draw(maybe(TEXT)),
                start_ms=draw(maybe(MS)),
                delay_ms=draw(maybe(MS)),
                trigger=draw(st.sampled_from([None, "user", "tool", "compaction"])),
                new_input_tokens=draw(maybe(st.integers(0, input_tokens))),
                cached_input_tokens=draw(maybe(st.integers(0, input_tokens))),
                blocks=draw(blocks(input_tokens)),
                tool_calls=tuple(draw(st.lists(CALLS, max_size=2))),
                model=draw(maybe(TEXT)),
                ttft_ms=draw(maybe(MS)),
                duration_ms=draw(maybe(MS)),
                messages=draw(maybe(st.lists(MESSAGES, max_size=2).map(tuple))),
                source=draw(maybe(TEXT)),
            )
        )
    return Session(session_id, tuple(turns))


@st.composite
def traces(draw: st.DrawFn) -> list[Session]:
    names = draw(st.lists(NAME, min_size=1, max_size=3, unique=True))
    return [draw(sessions(name)) for name in names]


def turns_of(trace: list[Session]) -> list[Turn]:
    return [turn for session in trace for turn in session.turns]


@given(trace=traces(), ending=st.sampled_from(ENDINGS), other=st.sampled_from(ENDINGS))
def test_round_trip_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, trace: list[Session], ending: str, other: str
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    first, second = folder / f"first{ending}", folder / f"second{other}"
    written = write_trace(first, turns_of(trace))
    write_trace(second, open_trace(first).turns())
    reader = open_trace(second, strict=True)
    assert list(reader.sessions()) == trace
    assert written == reader.report.turns == reader.report.lines_read


@pytest.mark.parametrize("ending", ENDINGS)
def test_unknown_stays_unknown(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trace{ending}"
    only_needed = Turn(session_id="s", turn_id="0", input_tokens=0)
    empty_lists = Turn(session_id="s", turn_id="1", input_tokens=0, messages=(), output_tokens=0, model="")
    write_trace(path, [only_needed, empty_lists])
    assert list(open_trace(path).turns()) == [only_needed, empty_lists]


def test_a_turn_is_one_line_of_json_in_the_documented_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    blocks = PrefixBlocks(ids=(2**64 - 1,), block_tokens=64)
    write_trace(path, [Turn(session_id="s", turn_id="0", input_tokens=64, blocks=blocks)])
    assert path.read_bytes() == (
        b'{"session_id":"s","turn_id":"0","input_tokens":64,'
        b'"blocks":{"ids":[18446744073709551615],"block_tokens":64,"scope":"session"}}\n'
    )


def test_parquet_has_the_fields_of_a_turn_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(path, [Turn(session_id="s", turn_id="0", input_tokens=64)])
    assert tuple(pl.read_parquet_schema(path)) == Turn.__struct_fields__
    assert pl.read_parquet_metadata(path)["agentload_trace_format"] == "1"


def endless() -> Iterator[Turn]:
    number = 0
    while True:
        yield Turn(session_id=f"s{number}", turn_id="0", input_tokens=number)
        number += 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_writing_and_reading_take_turns_as_they_come(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trace{ending}"
    some = (turn for turn, _ in zip(endless(), range(5_000), strict=False))
    write_trace(path, some)
    reader = open_trace(path)
    turns = reader.turns()
    assert next(turns).session_id == "s0"
    assert reader.report.lines_read < 5_000  # the rest is not read yet
    assert sum(1 for _ in turns) == 4_999
    assert reader.progress == 1.0


MEMORY = """
import sys
from agentload_traces import PrefixBlocks, Turn, open_trace, write_trace

def turns():
    for n in range(6_000):
        ids = tuple(range(n * 8_000, (n + 1) * 8_000))
        yield Turn(session_id=str(n), turn_id="0", input_tokens=512_000,
                   blocks=PrefixBlocks(ids=ids, block_tokens=64))

write_trace(sys.argv[1], turns())
print(sum(len(turn.blocks.ids) for turn in open_trace(sys.argv[1]).turns()))
# Of this program alone: what getrusage tells begins with what its parent had when it forked.
(peak_kib,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(peak_kib) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".jsonl.zst", ".parquet"])
def test_memory_does_not_grow_with_the_trace(tmp_path: Path, ending: str) -> None:
    """48 million block ids are 384 MB packed and 1.9 GB as Python integers; a stream holds few of them.

    It takes about 220 MiB, and has been seen to take 400 on a busy machine.
    """
    command = [sys.executable, "-c", MEMORY, str(tmp_path / f"trace{ending}")]
    ids, peak_mib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(ids) == 48_000_000
    assert int(peak_mib) < 600


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_of_a_failed_write(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trace{ending}"
    path.write_bytes(b"what was there before")

    def breaks() -> Iterator[Turn]:
        yield Turn(session_id="s", turn_id="0", input_tokens=1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_trace(path, breaks())
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"what was there before"


@pytest.mark.parametrize("ending", ENDINGS)
def test_turns_that_a_reader_would_refuse_are_not_written(tmp_path: Path, ending: str) -> None:
    turn = Turn(session_id="s", turn_id="0", input_tokens=1)
    for wrong, message in (
        (
            [msgspec.structs.replace(turn, input_tokens=-1)],
            "turn '0' of session 's' .*: input_tokens: must be 0",
        ),
        ([turn, turn], "turn_id: '0' was already used"),
        ([msgspec.structs.replace(turn, wait_for=("x",))], "wait_for: 'x' is no earlier turn"),
        ([], "there is no turn to write"),
    ):
        with pytest.raises(TraceError, match=message):
            write_trace(tmp_path / f"trace{ending}", wrong)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv: .*\.jsonl, \.jsonl\.zst, \.parquet"):
        write_trace(tmp_path / "trace.csv", [])


def test_a_session_that_comes_back_is_a_problem_of_each_later_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [("a", "0"), ("a", "1"), ("b", "0"), ("a", "2"), ("c", "0")]
    path.write_bytes(
        b"\n".join(msgspec.json.encode(Turn(session_id=s, turn_id=t, input_tokens=1)) for s, t in rows)
    )
    reader = open_trace(path)
    assert [(s.session_id, len(s.turns)) for s in reader.sessions()] == [("a", 2), ("b", 1), ("c", 1)]
    (problem,) = reader.report.problems
    assert (problem.line, problem.field) == (4, "session_id")
    assert "'a' ended on an earlier line" in problem.message
    assert reader.report.lines_skipped == 1
