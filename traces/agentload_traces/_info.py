"""What is in a trace, in numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentload_traces._importer import ToolCallsKnown
from agentload_traces._reader import TraceReader, open_trace
from agentload_traces._records import Turn


class TraceInfo(msgspec.Struct, kw_only=True):
    """Totals of a trace. A *turn* is a request of a main agent; those of sub-agents are counted apart.

    input_tokens: whole prompts, cached part included. output_tokens: of the turns that tell them;
        `turns_without_output_tokens` (sub-agents included) tell none.
    tool_calls: of main agents and sub-agents, calls that start a sub-agent included. `tool_calls_known` says
        how they are known: "recorded", "inferred" by the importer (see `assumptions`), or "not in the file".
    turns_with_blocks: turns, sub-agents included, that carry prefix block ids.
    max_input_tokens: the longest prompt. last_start_ms: when the last turn was sent, from the trace's start.
    lines_read: every line, and what became of it: turns + subagent_turns + lines_merged + lines_other +
        lines_skipped (see `ImportReport`).
    """

    file: str
    format: str
    sessions: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    subagents: int = 0
    subagent_turns: int = 0
    subagent_input_tokens: int = 0
    subagent_output_tokens: int = 0
    tool_calls: int = 0
    tool_calls_known: ToolCallsKnown
    turns_without_output_tokens: int = 0
    turns_with_blocks: int = 0
    max_input_tokens: int = 0
    last_start_ms: float | None = None
    models: list[str] = []
    lines_read: int = 0
    lines_merged: dict[str, int] = {}
    lines_other: dict[str, int] = {}
    lines_skipped: int = 0
    skipped_by_field: dict[str, int] = {}
    problems: int = 0
    first_problem: str | None = None
    ignored_fields: dict[str, int] = {}
    assumptions: tuple[str, ...] = ()


def trace_info(trace: TraceReader | str | Path) -> TraceInfo:
    """Read a trace through and return its totals; raises as `open_trace` and `TraceReader.turns` do."""
    reader = trace if isinstance(trace, TraceReader) else open_trace(trace)
    info = TraceInfo(file=reader.name, format=reader.format, tool_calls_known=reader.tool_calls_known)
    models: set[str] = set()
    agents: set[str] = set()
    session_id: str | None = None
    for turn in reader.turns():
        if turn.session_id != session_id:
            session_id = turn.session_id
            info.sessions += 1
            agents.clear()
        if turn.agent_id is not None and turn.agent_id not in agents:
            agents.add(turn.agent_id)
            info.subagents += 1
        if turn.model is not None:
            models.add(turn.model)
        _add(info, turn)
    info.models = sorted(models)
    _add_report(info, reader)
    return info


def _add(info: TraceInfo, turn: Turn) -> None:
    output_tokens = turn.output_tokens or 0
    if turn.agent_id is None:
        info.turns += 1
        info.input_tokens += turn.input_tokens
        info.output_tokens += output_tokens
    else:
        info.subagent_turns += 1
        info.subagent_input_tokens += turn.input_tokens
        info.subagent_output_tokens += output_tokens
    info.tool_calls += len(turn.tool_calls)
    info.turns_without_output_tokens += turn.output_tokens is None
    info.turns_with_blocks += turn.blocks is not None
    info.max_input_tokens = max(info.max_input_tokens, turn.input_tokens)
    if turn.start_ms is not None:
        info.last_start_ms = max(info.last_start_ms or 0.0, turn.start_ms)


def _add_report(info: TraceInfo, reader: TraceReader) -> None:
    report = reader.report
    info.lines_read = report.lines_read
    info.lines_merged = dict(report.merged)
    info.lines_other = dict(report.other)
    info.lines_skipped = report.lines_skipped
    info.skipped_by_field = dict(report.skipped)
    info.problems = report.problem_count
    info.first_problem = str(report.problems[0]) if report.problems else None
    info.ignored_fields = dict(report.ignored_fields)
    info.assumptions = report.assumptions
