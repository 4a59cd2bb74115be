"""Reading JSON that may be damaged: lines, and the records of one document, each on its own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from agentload_traces._problems import ImportReport, Position
from agentload_traces._source import Source

T = TypeVar("T")

DECODE_ERRORS = (msgspec.DecodeError, RecursionError)
"""What decoding raises on bad data: syntax, encoding, types, and nesting thousands deep."""

_AT = re.compile(r"^(?P<message>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_KEY = re.compile(rb'\s*("(?:[^"\\\n]|\\.)*")\s*:\s*')
_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|["{}\[\],]')
_OPENS = (b"{", b"[")
_CLOSES = {b"}": b"{", b"]": b"["}


def describe(error: Exception) -> tuple[str | None, str]:
    """Return (field, message) of a decoding error: `("blocks.ids[1]", "expected `int`, got `str`")`."""
    if isinstance(error, RecursionError):
        return None, "nested too deeply"
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        if text.startswith("Input data was truncated"):
            return None, "not valid JSON: it ends early"
        return None, f"not valid JSON: {text.removeprefix('JSON is malformed: ')}"
    at = _AT.match(text)
    assert at is not None
    field = (at["path"] or "").removeprefix(".")
    message = at["message"]
    if missing := _MISSING.match(message):
        field = ".".join(part for part in (field, missing["name"]) if part)
        message = "missing"
    return field or None, message[:1].lower() + message[1:]


def json_lines(
    source: Source, report: ImportReport, decode: Callable[[bytes], T]
) -> Iterator[tuple[Position, T]]:
    """Yield the lines of a JSONL file, decoded; count and report those that cannot be.

    `decode` raises one of `DECODE_ERRORS`. Blank lines are counted as `other`. The caller counts the rest.
    """
    name, number, cut_told = source.name, 0, False
    for number, line in enumerate(source.lines(), 1):
        report.lines_read = number
        try:
            value = decode(line)
        except DECODE_ERRORS as error:
            if not line.strip():
                report.other["blank line"] += 1
                continue
            field, message = describe(error)
            if source.cut and not isinstance(error, msgspec.ValidationError):
                cut_told, message = True, source.cut
            report.skip(Position(name, number), field, message)
            continue
        yield Position(name, number), value
    if source.cut and not cut_told:
        report.fail(Position(name, number + 1), source.cut)


def members(data: bytes) -> tuple[dict[str, bytes], Exception | None]:
    """Return the members of a JSON object, undecoded, and what is wrong with its syntax.

    Of damaged data, those members that can still be told apart. A list among them then goes on to the end of
    the data, for its own end cannot be relied on; `items` finds it.
    """
    try:
        return {key: bytes(raw) for key, raw in _decode_members(data).items()}, None
    except DECODE_ERRORS as error:
        found: dict[str, bytes] = {}
        for begin, end in _pieces(data, data.find(b"{") + 1, end=b"}"):
            if key := _KEY.match(data, begin, end):
                value = data[key.end() : end].strip()
                whole = data[key.end() :] if value.startswith(b"[") else value
                with contextlib.suppress(*DECODE_ERRORS):
                    found.setdefault(msgspec.json.decode(key[1], type=str), whole)
        return found, error


def items(data: bytes) -> list[bytes]:
    """Return the items of a JSON array, undecoded; of damaged data, what looks like its items."""
    try:
        return [bytes(raw) for raw in _decode_items(data)]
    except DECODE_ERRORS:
        pieces = (data[begin:end].strip() for begin, end in _pieces(data, data.find(b"[") + 1, end=b"]"))
        return [piece for piece in pieces if piece]


def wrong_syntax(data: bytes) -> Exception | None:
    """Return what is wrong with a value's syntax, whatever its type."""
    try:
        _decode_raw(data)
    except DECODE_ERRORS as error:
        return error
    return None


def count_unknown_fields(
    record: bytes, known: type[msgspec.Struct], unused: frozenset[str], report: ImportReport
) -> None:
    """Count in `report.ignored_fields` what a JSON object has beyond the fields of `known` and `unused`.

    Raises one of `DECODE_ERRORS` if the object cannot be decoded.
    """
    for key in _decode_members(record):
        if key not in known.__struct_encode_fields__ and key not in unused:
            report.ignored_fields[key] += 1


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _pieces(data: bytes, start: int, *, end: bytes) -> Iterator[tuple[int, int]]:
    """Split at the commas of the level that `start` is in, up to its `end` bracket; yield where pieces lie.

    So that damage in one item does not swallow the next: a closing bracket that fits an outer open one closes
    those within, one that fits none is passed over, and where an object begins in place of a key, the object
    around it is taken as ended.
    """
    opened: list[bytes] = []
    begin = comma = start
    for token in _TOKEN.finditer(data, start):
        mark = token[0]
        if mark in _CLOSES:
            if not opened and mark == end:
                yield begin, token.start()
                return
            if _CLOSES[mark] in opened:
                while opened.pop() != _CLOSES[mark]:
                    pass
        elif mark in _OPENS:
            in_place_of_key = mark == b"{" and opened[-1:] == [b"{"]
            if in_place_of_key and data[comma : token.start()].strip() == b",":
                opened.pop()
                if not opened:
                    yield begin, comma
                    begin = comma + 1
            opened.append(mark)
        elif mark == b",":
            comma = token.start()
            if not opened:
                yield begin, comma
                begin = comma + 1
    yield begin, len(data)
