"""weka / kv-cache-tester JSON: one conversation a file, its requests in a list, sub-agents nested in it.

    {"id": "trace_0086", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 65.0, "type": "s", "model": "...", "in": 16770, "out": 167, "hash_ids": [1, 2, ...],
       "input_types": ["tool_result"], "output_types": [], "stop": "", "api_time": 6.47, "ttft": 1.75,
       "think_time": 59.0},
      {"t": 1148.0, "type": "subagent", "agent_id": "...", "duration_ms": 46656, "requests": [...]}, ...]}

A line is a record of `requests`: a request, a sub-agent marker, or a nested request. How times, triggers
and tool calls come out of them is in `_weka_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from agentload_traces._checks import wrong_block_size
from agentload_traces._errors import TraceError
from agentload_traces._importer import Head, Importer
from agentload_traces._importers._blocks import fitting_blocks
from agentload_traces._importers._weka_graph import (
    Draft,
    estimated_answer_s,
    link_first,
    link_next,
    milliseconds,
    subagent_offset_s,
)
from agentload_traces._importers._weka_records import (
    UNUSED,
    UNUSED_OF_MARKER,
    Marker,
    Request,
    decode_marker,
    decode_request,
    first_t,
    is_marker,
)
from agentload_traces._json import DECODE_ERRORS, count_unknown_fields, describe, items, members, wrong_syntax
from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import BlockScope, PrefixBlocks, ToolCall, Turn
from agentload_traces._source import Source

T = TypeVar("T")

BLOCK_TOKENS = 64
"""Block size of a file that does not say its own."""

ASSUMPTIONS = (
    "weka files tell neither names nor numbers of tool calls: a turn that a tool result triggered counts as "
    "one call of the turn before it, as long as the gap less the turn's own response time",
    "a response time that the file lacks is taken as 2.5 s and 1/58 s a token",
    "the turn after a sub-agent waits for it",
)

MAX_DEPTH = 16
"""How deep sub-agents may start sub-agents; real ones start none or a few levels."""

_REQUEST_TYPES = (None, "n", "s")  # not said, whole answer, streamed answer
_SCOPES: dict[str, BlockScope] = {"local": "session", "global": "trace"}


def _recognises(head: Head) -> bool:
    return head.is_object_naming("requests", "hash_ids") or head.is_object_naming("requests", "block_size")


def _read(source: Source, report: ImportReport) -> Iterator[tuple[Position, Turn]]:
    report.assumptions = ASSUMPTIONS
    fields, syntax_error = members(source.data())
    damage = syntax_error and (source.cut or describe(syntax_error)[1])
    records = fields.get("requests", b"")
    if not records.lstrip().startswith(b"["):
        reason = damage or "it is one JSON object with it"
        raise TraceError(f"{source.name}: a weka trace without a list `requests` ({reason})")
    conversation = _Conversation(source, report, fields, damaged=syntax_error is not None)
    conversation.add_agent(records, "requests")
    if damage and not conversation.syntax_told:
        report.fail(Position(source.name), damage)
    yield from conversation.turns()


class _Conversation:
    """The requests of one file while their graph is built."""

    def __init__(
        self, source: Source, report: ImportReport, fields: dict[str, bytes], *, damaged: bool
    ) -> None:
        self._source = source
        self._report = report
        self._damaged = damaged
        self._drafts: list[tuple[Position, Draft, Request]] = []
        self._agent_ids: set[str] = set()
        self._last_number: dict[str, int] = {}
        self._session_id = self._header(fields, "id", Path(source.name).name.split(".")[0])
        self._block_tokens = self._header(fields, "block_size", BLOCK_TOKENS, wrong_block_size)
        self._scope = _SCOPES[self._header(fields, "hash_id_scope", "local", _wrong_scope)]
        self.syntax_told = False
        """Whether a broken record was reported, so that the file need not be."""

    def add_agent(
        self,
        raw: bytes,
        path: str,
        *,
        agent_id: str | None = None,
        parent: Draft | None = None,
        offset_s: float = 0.0,
        depth: int = 0,
    ) -> Draft | None:
        """Add the records of one agent, those of its sub-agents among them; return its last turn.

        depth: 0 for the main agent, 1 for its sub-agents.
        """
        before: Draft | None = None
        subagents: list[Draft] = []
        for index, record in enumerate(items(raw)):
            self._report.lines_read += 1
            where = Position(self._source.name, record=f"{path}[{index}]")
            if is_marker(record):
                if depth == MAX_DEPTH:
                    self._report.skip(
                        where, None, f"nested too deeply: sub-agents in more than {MAX_DEPTH} levels"
                    )
                elif last := self._add_subagent(record, where, before, depth + 1):
                    subagents.append(last)
                continue
            request = self._decoded(record, where)
            if request is None:
                continue
            turn_id = str(index) if agent_id is None else f"{agent_id}/{index}"
            draft = _draft(request, turn_id, agent_id, offset_s)
            if before is None:
                link_first(draft, parent)
            else:
                link_next(draft, before, subagents)
            self._drafts.append((where, draft, request))
            before, subagents = draft, []
        return before

    def _add_subagent(self, record: bytes, where: Position, parent: Draft | None, depth: int) -> Draft | None:
        marker = self._decoded_marker(record, where)
        raw = members(record)[0].get("requests", b"[]")
        agent_id = self._unique_agent_id(marker.agent_id)
        parent_end_s = None if parent is None else parent.end_s
        duration_s = None if marker.duration_ms is None else marker.duration_ms / 1000.0
        last = self.add_agent(
            raw,
            f"{where.record}.requests",
            agent_id=agent_id,
            parent=parent,
            offset_s=subagent_offset_s(first_t(raw), marker.t, duration_s, parent_end_s),
            depth=depth,
        )
        if parent is not None:
            parent.tool_calls.append(
                ToolCall(name=marker.subagent_type, duration_ms=marker.duration_ms)
                if last is None
                else ToolCall(name=marker.subagent_type, agent_id=agent_id)
            )
        return last

    def turns(self) -> Iterator[tuple[Position, Turn]]:
        """Yield the turns, each after those it waits for."""
        for where, draft, request in self._drafts:
            yield (
                where,
                Turn(
                    session_id=self._session_id,
                    turn_id=draft.turn_id,
                    input_tokens=request.input,
                    output_tokens=request.out,
                    wait_for=draft.wait_for,
                    parent_turn_id=draft.parent_turn_id,
                    agent_id=draft.agent_id,
                    start_ms=milliseconds(draft.start_s),
                    delay_ms=None if draft.delay_s is None else milliseconds(draft.delay_s),
                    trigger=draft.trigger,
                    blocks=self._blocks(request, where),
                    tool_calls=tuple(draft.tool_calls),
                    model=request.model,
                    ttft_ms=None if request.ttft is None else milliseconds(request.ttft),
                    duration_ms=None if request.api_time is None else milliseconds(request.api_time),
                    source=where.record,
                ),
            )

    def _blocks(self, request: Request, where: Position) -> PrefixBlocks | None:
        return fitting_blocks(
            request.hash_ids,
            request.input,
            block_tokens=self._block_tokens,
            scope=self._scope,
            length_field="in",
            where=where,
            report=self._report,
        )

    def _decoded(self, record: bytes, where: Position) -> Request | None:
        try:
            request = decode_request(record)
            count_unknown_fields(record, Request, UNUSED, self._report)
        except DECODE_ERRORS as error:
            self._skip(record, where, error)
            return None
        if request.type not in _REQUEST_TYPES:
            self._report.mend(where, "type", f"unknown type {request.type!r}; read as a request")
        return request

    def _decoded_marker(self, record: bytes, where: Position) -> Marker:
        try:
            marker = decode_marker(record)
            count_unknown_fields(record, Marker, UNUSED_OF_MARKER, self._report)
        except DECODE_ERRORS as error:
            self._skip(record, where, error)
            return Marker()
        self._report.other["sub-agent marker"] += 1
        return marker

    def _skip(self, record: bytes, where: Position, error: Exception) -> None:
        if self._damaged:
            error = wrong_syntax(record) or error
        field, message = describe(error)
        if not isinstance(error, msgspec.ValidationError):
            self.syntax_told = True
            message = self._source.cut or message
        self._report.skip(where, field, message)

    def _header(
        self,
        fields: dict[str, bytes],
        field: str,
        default: T,
        wrong: Callable[[T], str | None] = lambda _: None,
    ) -> T:
        """Return a field of the file itself; report a wrong one and take the default."""
        if field not in fields:
            return default
        try:
            value = msgspec.json.decode(fields[field], type=type(default))
            message = wrong(value)
        except DECODE_ERRORS as error:
            message = describe(error)[1]
        if message is None:
            return value
        self._report.mend(Position(self._source.name), field, f"{message}; {default!r} is taken instead")
        return default

    def _unique_agent_id(self, agent_id: str | None) -> str:
        """Return the id for an agent; for all but the first of one name with a number behind it."""
        name = unique = agent_id or "agent"
        number = self._last_number.get(name, 1)
        while unique in self._agent_ids:
            number += 1
            unique = f"{name}#{number}"
        self._last_number[name] = number
        self._agent_ids.add(unique)
        return unique


def _draft(request: Request, turn_id: str, agent_id: str | None, offset_s: float) -> Draft:
    answer_s = request.api_time
    return Draft(
        turn_id=turn_id,
        agent_id=agent_id,
        start_s=request.t + offset_s,
        answer_s=estimated_answer_s(request.out) if answer_s is None else answer_s,
        stop=request.stop,
        has_tool_result="tool_result" in request.input_types,
    )


def _wrong_scope(scope: str) -> str | None:
    return None if scope in _SCOPES else f"{scope!r} is neither 'local' nor 'global'"


WEKA = Importer(
    name="weka",
    summary="weka / kv-cache-tester JSON, one conversation a file",
    recognises=_recognises,
    read=_read,
    tool_calls_known="inferred",
)
