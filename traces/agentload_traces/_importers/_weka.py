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

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, TypeVar

import msgspec

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

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    t: _Seconds
    input: _Count = msgspec.field(name="in")
    out: _Count | None = None
    model: str | None = None
    hash_ids: list[int] | None = None
    input_types: tuple[str, ...] = ()
    stop: str | None = None
    api_time: _Seconds | None = None
    ttft: _Seconds | None = None


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    t: _Seconds | None = None
    agent_id: str | None = None
    subagent_type: str | None = None
    duration_ms: _Seconds | None = None


class _Kind(msgspec.Struct, frozen=True):
    type: str | None = None


# Known to the format, and of no use to a trace.
_UNUSED = frozenset({"type", "output_types", "think_time"})
_UNUSED_OF_MARKER = frozenset(
    {"type", "requests", "total_tokens", "tool_use_count", "status", "models", "tool_tokens", "system_tokens"}
)

_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_request = msgspec.json.Decoder(_Request).decode
_decode_marker = msgspec.json.Decoder(_Marker).decode


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
        self._drafts: list[tuple[Position, Draft, _Request]] = []
        self._agents: Counter[str] = Counter()
        self._session_id = self._header(fields, "id", source.path.name.split(".")[0])
        self._block_tokens = max(1, self._header(fields, "block_size", BLOCK_TOKENS))
        scope = self._header(fields, "hash_id_scope", "local")
        self._scope: BlockScope = "trace" if scope == "global" else "session"
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
    ) -> Draft | None:
        """Add the records of one agent, those of its sub-agents among them; return its last turn."""
        before: Draft | None = None
        subagents: list[Draft] = []
        for index, record in enumerate(items(raw)):
            self._report.lines_read += 1
            where = Position(self._source.name, record=f"{path}[{index}]")
            if _is_marker(record):
                if last := self._add_subagent(record, where, before):
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

    def _add_subagent(self, record: bytes, where: Position, parent: Draft | None) -> Draft | None:
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
            offset_s=subagent_offset_s(_first_t(raw), marker.t, duration_s, parent_end_s),
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

    def _blocks(self, request: _Request, where: Position) -> PrefixBlocks | None:
        return fitting_blocks(
            request.hash_ids,
            request.input,
            block_tokens=self._block_tokens,
            scope=self._scope,
            length_field="in",
            where=where,
            report=self._report,
        )

    def _decoded(self, record: bytes, where: Position) -> _Request | None:
        try:
            request = _decode_request(record)
            count_unknown_fields(record, _Request, _UNUSED, self._report)
        except DECODE_ERRORS as error:
            self._skip(record, where, error)
            return None
        return request

    def _decoded_marker(self, record: bytes, where: Position) -> _Marker:
        try:
            marker = _decode_marker(record)
            count_unknown_fields(record, _Marker, _UNUSED_OF_MARKER, self._report)
        except DECODE_ERRORS as error:
            self._skip(record, where, error)
            return _Marker()
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

    def _header(self, fields: dict[str, bytes], field: str, default: T) -> T:
        """Return a field of the file itself; report a wrong one and take the default."""
        try:
            return msgspec.json.decode(fields[field], type=type(default)) if field in fields else default
        except DECODE_ERRORS as error:
            message = f"{describe(error)[1]}; {default!r} is taken instead"
            self._report.mend(Position(self._source.name), field, message)
            return default

    def _unique_agent_id(self, agent_id: str | None) -> str:
        name = agent_id or "agent"
        self._agents[name] += 1
        return name if self._agents[name] == 1 else f"{name}#{self._agents[name]}"


def _draft(request: _Request, turn_id: str, agent_id: str | None, offset_s: float) -> Draft:
    answer_s = request.api_time
    return Draft(
        turn_id=turn_id,
        agent_id=agent_id,
        start_s=request.t + offset_s,
        answer_s=estimated_answer_s(request.out) if answer_s is None else answer_s,
        stop=request.stop,
        has_tool_result="tool_result" in request.input_types,
    )


def _is_marker(record: bytes) -> bool:
    try:
        return _decode_kind(record).type == "subagent"
    except msgspec.ValidationError:
        return False
    except DECODE_ERRORS:
        return b'"subagent"' in record and b'"requests"' in record


def _first_t(raw: bytes) -> float:
    """Return the send time of the first nested request that can be read; 0 without any."""
    for record in items(raw):
        try:
            return _decode_request(record).t
        except DECODE_ERRORS:
            continue
    return 0.0


WEKA = Importer(
    name="weka",
    summary="weka / kv-cache-tester JSON, one conversation a file",
    recognises=_recognises,
    read=_read,
    tool_calls_known="inferred",
)
