"""Mooncake's JSON lines, one request a line, and the session fields that AIPerf adds to them.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

`timestamp` and `delay` are milliseconds, `hash_ids` name blocks of 512 tokens (the last one may be
partial), equal ids mean equal text in the whole file. Mooncake's own traces know no sessions: each row is
one. AIPerf's rows with one `session_id` are the turns of a session, in the order of the file, each `delay`
ms after the answer to the one before; they need not stand together in the file. A session's first row is sent
at its `timestamp`; where it has a `delay` too, that time is over by then.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Annotated

import msgspec

from agentload_traces._checks import MAX_COUNT, MAX_START_MS, MAX_WAIT_MS
from agentload_traces._importer import Head, Importer
from agentload_traces._importers._blocks import fitting_blocks
from agentload_traces._json import count_unknown_fields, json_lines
from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import Turn
from agentload_traces._source import Source

BLOCK_TOKENS = 512

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_SentMs = Annotated[float, msgspec.Meta(ge=0, le=MAX_START_MS)]
_WaitMs = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_MS)]
_GAP_UNKNOWN = (
    "a row with a timestamp and no delay is sent as soon as the row before it in its session is answered: "
    "the file does not tell how long that answer took"
)
_FIRST_DELAY_UNUSED = "a session's first row is sent at its timestamp; its delay does not come on top"

_TEXT_FIELDS = ("text_input", "messages", "payload")


class _Row(msgspec.Struct, frozen=True):
    input_length: _Count
    output_length: _Count | None = None
    timestamp: _SentMs | None = None
    hash_ids: list[int] | None = None
    session_id: str | int | None = None
    delay: _WaitMs | None = None


class _Keys(msgspec.Struct, frozen=True):
    """What the first pass needs; any type, so that a bad row is reported once, in the second pass."""

    session_id: msgspec.Raw = msgspec.Raw()


_decode_row = msgspec.json.Decoder(_Row).decode
_decode_keys = msgspec.json.Decoder(_Keys).decode
_decode_session_id = msgspec.json.Decoder(str | int | None).decode


def _recognises(head: Head) -> bool:
    return head.has_line_with("input_length", without=("chat_id", "turn_id")) or any(
        head.has_line_with("timestamp", field) or head.has_line_with("output_length", field)
        for field in _TEXT_FIELDS
    )


def _read(source: Source, report: ImportReport) -> Iterator[tuple[Position, Turn]]:
    last_line = _last_line_of_sessions(source)
    open_sessions: dict[str, list[tuple[Position, Turn]]] = {}
    for where, row in json_lines(source, report, lambda line: _decode(line, report)):
        assert where.line is not None
        if row.session_id is None:
            yield where, _turn(row, _unused(f"line-{where.line}", last_line), [], where, report)
            continue
        session_id = str(row.session_id)
        session = open_sessions.setdefault(session_id, [])
        session.append((where, _turn(row, session_id, session, where, report)))
        if last_line.get(session_id) == where.line:
            yield from open_sessions.pop(session_id)
    for session in open_sessions.values():  # the last row of these sessions was a bad one
        yield from session


def _decode(line: bytes, report: ImportReport) -> _Row:
    try:
        row = _decode_row(line)
    except msgspec.ValidationError as error:
        if "input_length" not in str(error) or not any(
            f'"{field}"'.encode() in line for field in _TEXT_FIELDS
        ):
            raise
        raise msgspec.ValidationError(
            "Missing; a row that carries text in place of a length cannot be read - at `$.input_length`"
        ) from error
    count_unknown_fields(line, _Row, frozenset(), report)
    return row


def _unused(name: str, session_ids: Container[str]) -> str:
    """Return a name for a row without session that none of the file's sessions has."""
    while name in session_ids:
        name += "'"
    return name


def _delay_ms(row: _Row, is_first: bool, report: ImportReport) -> float | None:
    if row.timestamp is None:
        return row.delay
    if is_first and row.delay is not None:
        report.assume(_FIRST_DELAY_UNUSED)
        return None
    if not is_first and row.delay is None:
        report.assume(_GAP_UNKNOWN)
    return row.delay


def _turn(
    row: _Row, session_id: str, before: list[tuple[Position, Turn]], where: Position, report: ImportReport
) -> Turn:
    return Turn(
        session_id=session_id,
        turn_id=str(len(before)),
        input_tokens=row.input_length,
        output_tokens=row.output_length,
        wait_for=(before[-1][1].turn_id,) if before else (),
        start_ms=row.timestamp,
        delay_ms=_delay_ms(row, not before, report),
        blocks=fitting_blocks(
            row.hash_ids,
            row.input_length,
            block_tokens=BLOCK_TOKENS,
            scope="trace",
            length_field="input_length",
            where=where,
            report=report,
        ),
        source=f"line {where.line}",
    )


def _last_line_of_sessions(source: Source) -> dict[str, int]:
    """Return the last line of each session, so that a session is held no longer than it is open."""
    last: dict[str, int] = {}
    for number, line in enumerate(Source(source.path).lines(), 1):
        if b'"session_id"' in line:
            try:
                session_id = _decode_session_id(_decode_keys(line).session_id)
            except (msgspec.DecodeError, RecursionError):
                continue
            if session_id is not None:
                last[str(session_id)] = number
    return last


MOONCAKE = Importer(
    name="mooncake",
    summary="Mooncake JSON lines, with or without AIPerf's session_id and delay",
    recognises=_recognises,
    read=_read,
    tool_calls_known="not in the file",
)
