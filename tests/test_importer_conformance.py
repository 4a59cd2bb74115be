"""What holds for every importer. A new format adds a `Case` and gets all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_traces import (
    PrefixBlocks,
    TraceError,
    TraceProblemError,
    TraceReader,
    Turn,
    list_samples,
    open_trace,
    sample_path,
    write_trace,
)
from agentload_traces._importer import Head
from agentload_traces._importers import IMPORTERS

TURNS = 12


@dataclass(frozen=True)
class Case:
    """A format's way to write a small trace.

    records: `TURNS` records, each one turn. bad_record: one that cannot be used, at any place among them.
    join: makes the content of a file of records. A format without records in its bytes
    (Parquet) has neither, but content.
    """

    format: str
    records: list[bytes]
    bad_record: bytes = b""
    join: Callable[[list[bytes]], bytes] = b"\n".join
    compressible: bool = True

    def content(self, records: list[bytes] | None = None) -> bytes:
        return self.join(self.records if records is None else records)

    def with_bad_record(self, place: int) -> bytes:
        return self.content([*self.records[:place], self.bad_record, *self.records[place:]])


def native_turns() -> list[Turn]:
    return [
        Turn(
            session_id=f"s{number // 4}",
            turn_id=str(number % 4),
            input_tokens=130 * (number + 1),
            output_tokens=number,
            wait_for=(str(number % 4 - 1),) if number % 4 else (),
            blocks=PrefixBlocks(ids=(1, number), block_tokens=64),
        )
        for number in range(TURNS)
    ]


def parquet_content(_: list[bytes]) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        write_trace(path, native_turns())
        return path.read_bytes()


def mooncake_row(number: int, **more: object) -> bytes:
    row = {
        "timestamp": number * 3000,
        "input_length": 600 + number,
        "output_length": 20,
        "hash_ids": [0, number],
    }
    return msgspec.json.encode({**row, **more})


def weka_request(number: int, **more: object) -> bytes:
    request = {"t": number * 10.0, "type": "n", "in": 130 + number, "out": 20, "hash_ids": [1, 2]}
    types = {"input_types": ["tool_result"], "output_types": ["text"], "stop": "tool_use", "api_time": 2.5}
    return msgspec.json.encode({**request, **types, **more})


def weka_file(requests: list[bytes]) -> bytes:
    return (
        b'{"id":"c1","models":["m"],"block_size":64,"hash_id_scope":"local","requests":[\n'
        + b",\n".join(requests)
        + b'],"totals":{}}'
    )


CASES = [
    Case("agentload-jsonl", [msgspec.json.encode(turn) for turn in native_turns()], b'{"session_id":"s0"}'),
    Case("agentload-parquet", [], join=parquet_content, compressible=False),
    Case("mooncake", [mooncake_row(n) for n in range(TURNS)], b'{"timestamp":0,"input_length":"x"}'),
    Case(
        "mooncake",
        [mooncake_row(n, session_id=f"s{n % 3}", delay=100) for n in range(TURNS)],
        b'{"timestamp":0,"input_length":-1}',
    ),
    Case("weka", [weka_request(n) for n in range(TURNS)], weka_request(0, t="soon"), weka_file),
]
TEXT_CASES = [case for case in CASES if case.records]
IDS = [f"{case.format}-{number}" for number, case in enumerate(CASES)]
TEXT_IDS = [name for name, case in zip(IDS, CASES, strict=True) if case.records]

every_format = pytest.mark.parametrize("case", CASES, ids=IDS)
every_text_format = pytest.mark.parametrize("case", TEXT_CASES, ids=TEXT_IDS)


def reader_of(
    folder: Path, content: bytes, *, format: str | None = None, strict: bool = False
) -> TraceReader:
    path = folder / "file"  # no ending: formats are recognised by content
    path.write_bytes(content)
    return open_trace(path, format=format, strict=strict)


def test_every_format_has_a_case() -> None:
    assert {case.format for case in CASES} == {importer.name for importer in IMPORTERS}


@every_format
def test_exactly_one_importer_recognises_a_file(tmp_path: Path, case: Case) -> None:
    head = Head(case.content())
    assert [importer.name for importer in IMPORTERS if importer.recognises(head)] == [case.format]
    assert reader_of(tmp_path, case.content()).format == case.format


@pytest.mark.parametrize("name", list_samples())
def test_exactly_one_importer_recognises_a_sample(name: str) -> None:
    data = sample_path(name).read_bytes()
    head = Head(
        zstandard.ZstdDecompressor().stream_reader(data).read(1 << 20) if name.endswith(".zst") else data
    )
    assert [i.name for i in IMPORTERS if i.recognises(head)] == [open_trace(sample_path(name)).format]


@every_text_format
def test_a_bad_first_record_does_not_hide_the_format(tmp_path: Path, case: Case) -> None:
    damaged = case.content([b'{"broken":', *case.records])
    assert reader_of(tmp_path, damaged).format == case.format


@every_format
def test_all_records_become_turns(tmp_path: Path, case: Case) -> None:
    reader = reader_of(tmp_path, case.content(), strict=True)
    turns = list(reader.turns())
    assert len(turns) == TURNS
    assert (reader.report.turns, reader.report.lines_read, reader.report.lines_accounted) == (TURNS,) * 3
    assert len({(turn.session_id, turn.turn_id) for turn in turns}) == TURNS
    assert reader.progress == 1.0


@every_format
def test_a_trace_can_be_read_again(tmp_path: Path, case: Case) -> None:
    reader = reader_of(tmp_path, case.content())
    first = list(reader.turns())
    assert list(reader.turns()) == first
    assert [turn for session in reader.sessions() for turn in session.turns] == first
    assert reader.report.lines_read == TURNS


@every_format
def test_an_imported_trace_can_be_written(tmp_path: Path, case: Case) -> None:
    turns = list(reader_of(tmp_path, case.content()).turns())
    for ending in (".jsonl", ".parquet"):
        write_trace(tmp_path / f"out{ending}", turns)
        assert list(open_trace(tmp_path / f"out{ending}").turns()) == turns


@every_format
def test_zstd_makes_no_difference(tmp_path: Path, case: Case) -> None:
    plain = list(reader_of(tmp_path, case.content()).turns())
    packed = zstandard.compress(case.content())
    if case.compressible:
        assert list(reader_of(tmp_path, packed).turns()) == plain
    else:
        with pytest.raises(TraceError, match="format not recognised"):
            reader_of(tmp_path, packed)


@every_text_format
@pytest.mark.parametrize("place", [0, 5, TURNS])
def test_a_bad_record_is_skipped_and_the_rest_kept(tmp_path: Path, case: Case, place: int) -> None:
    good = [turn.input_tokens for turn in reader_of(tmp_path, case.content()).turns()]
    reader = reader_of(tmp_path, case.with_bad_record(place))
    assert [turn.input_tokens for turn in reader.turns()] == good
    report = reader.report
    assert (report.turns, report.lines_skipped) == (TURNS, 1)
    assert report.lines_accounted == report.lines_read == TURNS + 1
    (problem,) = report.problems
    assert problem.path == str(tmp_path / "file")
    assert problem.field is not None
    assert problem.line is not None or "[" in problem.field
    assert "\n" not in str(problem)


@every_text_format
def test_strict_raises_at_a_bad_record(tmp_path: Path, case: Case) -> None:
    lenient = reader_of(tmp_path, case.with_bad_record(5))
    list(lenient.turns())
    strict = reader_of(tmp_path, case.with_bad_record(5), strict=True)
    with pytest.raises(TraceProblemError) as caught:
        list(strict.turns())
    assert [caught.value.problem] == lenient.report.problems == strict.report.problems


@every_text_format
def test_a_truncated_file_keeps_the_records_before_the_cut(tmp_path: Path, case: Case) -> None:
    whole = list(reader_of(tmp_path, case.content()).turns())
    content = case.content()
    cut = content.index(case.records[-3]) + len(case.records[-3]) // 2
    reader = reader_of(tmp_path, content[:cut])
    kept = list(reader.turns())
    assert len(kept) == TURNS - 3
    assert {turn.input_tokens for turn in kept} < {turn.input_tokens for turn in whole}
    assert [(p.message, p.kept) for p in reader.report.problems] == [("not valid JSON: it ends early", False)]


@every_text_format
def test_a_truncated_zstd_frame_is_one_problem(tmp_path: Path, case: Case) -> None:
    content = case.content()
    cut = content.index(case.records[-3]) + len(case.records[-3]) // 2
    # Two frames, so that the part before the cut can be decompressed whatever the block size.
    packed = zstandard.compress(content[:cut]) + zstandard.compress(content[cut:])[:5]
    reader = reader_of(tmp_path, packed)
    assert len(list(reader.turns())) == TURNS - 3
    assert [p.message for p in reader.report.problems] == ["the zstd frame ends early (truncated file)"]


@settings(max_examples=200)
@given(data=st.data(), case=st.sampled_from(CASES))
def test_damage_anywhere_is_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, case: Case
) -> None:
    """Whatever bytes change, nothing is raised but `TraceError`, and every line is accounted for."""
    content = bytearray(case.content())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.integers(0, 4))
        content[place : place + length] = data.draw(st.binary(max_size=4))
        if not content:
            return
    refused: str | None = None
    try:
        reader = reader_of(tmp_path_factory.mktemp("damaged"), bytes(content), format=case.format)
        turns = list(reader.turns())
    except TraceError as caught:
        refused = str(caught)
    if refused is not None:
        assert "\n" not in refused
        return
    report = reader.report
    assert report.lines_accounted == report.lines_read
    assert report.turns == len(turns)
    assert report.lines_skipped <= report.problem_count
    assert all("\n" not in str(problem) for problem in report.problems)
