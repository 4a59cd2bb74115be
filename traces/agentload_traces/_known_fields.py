"""Turns from what a newer version may have written: fields that are not known are left out and reported."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

import msgspec

from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import Turn


class TurnDecoder:
    """Makes turns of the lines of one file, in order, and reports each unknown field once.

    A known field of a wrong type is an error: `msgspec.ValidationError`, other `DECODE_ERRORS` for bad JSON.
    """

    def __init__(self, name: str, report: ImportReport) -> None:
        self._name = name
        self._report = report
        self._decode = msgspec.json.Decoder(Turn).decode

    def from_json(self, line: bytes) -> Turn:
        """Return the turn of a JSON line, the one that `report.lines_read` counts."""
        try:
            return self._decode(line)
        except msgspec.ValidationError as error:
            if not _is_unknown_field(error):
                raise
        return self._from_known(msgspec.json.decode(line))

    def from_fields(self, fields: dict[str, Any]) -> Turn:
        """Return the turn of the same fields as Python objects."""
        try:
            return msgspec.convert(fields, Turn)
        except msgspec.ValidationError as error:
            if not _is_unknown_field(error):
                raise
        return self._from_known(fields)

    def _from_known(self, fields: Any) -> Turn:
        unknown: dict[str, None] = {}
        turn = msgspec.convert(_known(fields, Turn, "", unknown), Turn)
        for field in unknown:
            self._report.ignore(Position(self._name, self._report.lines_read), field)
        return turn


def _is_unknown_field(error: msgspec.ValidationError) -> bool:
    return str(error).startswith("Object contains unknown field")


def _known(value: Any, record: type[msgspec.Struct] | None, path: str, unknown: dict[str, None]) -> Any:
    """Return a value without the fields that `record` lacks; put their names into `unknown`."""
    if isinstance(value, list):
        return [_known(item, record, path, unknown) for item in value] if record else value
    if not isinstance(value, dict) or record is None:
        return value
    records = _records_in(record)
    for field in value:
        if field not in records:
            unknown[path + field] = None
    return {
        field: _known(inner, records[field], f"{path}{field}.", unknown)
        for field, inner in value.items()
        if field in records
    }


@cache
def _records_in(record: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """The fields of a record, each with the record that it holds, or holds a list of."""
    return {field: _record_of(hint) for field, hint in typing.get_type_hints(record).items()}


def _record_of(hint: Any) -> type[msgspec.Struct] | None:
    if isinstance(hint, type):
        return hint if issubclass(hint, msgspec.Struct) else None
    return next((found for inner in typing.get_args(hint) if (found := _record_of(inner))), None)
