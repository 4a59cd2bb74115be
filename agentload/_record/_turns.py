"""From exchanges to turns of a native trace.

What a turn waited for is worked out from the times: after tool calls, the gap from the end of the answer to
the next request is how long the calls took, all of them in parallel; otherwise it is think time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from agentload._record._answer import Answered, Call, read_answer
from agentload._record._content import UnreadableError, content
from agentload._record._exchange import Exchange
from agentload._record._journal import Journal, SessionFile
from agentload._record._new_tokens import Counted, new_tokens
from agentload._record._prompt import Prompt, PromptReader, digest_of, text_digest
from agentload._record._sessions import Place, SessionFinder
from agentload._record._sessions import Said as SaidBefore
from agentload._record._text import kept_messages
from agentload_simbackend import TURN_HEADER
from agentload_traces import ToolCall, Turn

_MOST_FAILED = 1_000
_MOST_UNSETTLED = 256
"""Turns of a session that a later request may still change; earlier ones are settled."""

_RETRIED_WITHIN_NS = 600 * 10**9
"""The same request sent again after longer than this is another one."""

_RECENT = 8


class Totals(msgspec.Struct, kw_only=True):
    """What became of the exchanges. turns: recorded.

    counted_inputs, counted_outputs: turns whose endpoint told no usage, so that their texts were counted in
    o200k_base. unreadable: answers that could not be read, by reason; their turns have no output tokens.
    retries: turns that had been tried before, with the same body, and failed. failed: answers that were no
    whole ones, by kind; cancelled: given up by the client before they were. not_requests: bodies that are no
    request of their API. misread: exchanges on which the recorder itself failed.
    """

    sessions: int = 0
    sessions_by_header: int = 0
    turns: int = 0
    subagents: int = 0
    compactions: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    counted_inputs: int = 0
    counted_outputs: int = 0
    retries: int = 0
    cancelled: int = 0
    failed: dict[str, int] = {}
    unreadable: dict[str, int] = {}
    not_requests: int = 0
    misread: int = 0


class _Sent(NamedTuple):
    turn_id: str
    start_ns: int
    end_ns: int


@dataclass
class _Agent:
    """An agent of a session. last: its latest turn, open until the next one tells how its calls ended."""

    agent_id: str | None
    recent: deque[_Sent] = field(default_factory=lambda: deque(maxlen=_RECENT))
    turns: int = 0
    last: str | None = None
    calls: tuple[Call, ...] = ()
    counted: Counted | None = None
    started_by: str | None = None


@dataclass
class _Session:
    file: SessionFile
    start_ns: int
    agents: dict[str | None, _Agent] = field(default_factory=dict)
    turn_ids: set[str] = field(default_factory=set)


class TurnMaker:
    """Takes exchanges in the order in which their answers ended, and writes their turns to the journal.

    origin_ns: of the recording's clock. keep_text: record the messages too.
    """

    def __init__(
        self, journal: Journal, *, origin_ns: int, session_field: str | None = None, keep_text: bool = False
    ) -> None:
        self._journal, self._origin_ns, self._keep_text = journal, origin_ns, keep_text
        self._reader = PromptReader()
        self._finder = SessionFinder(session_field)
        self._sessions: dict[str, _Session] = {}
        self._tried: OrderedDict[bytes, int] = OrderedDict()
        """Bodies whose answers failed, and when each was first sent."""
        self._failed: Counter[str] = Counter()
        self._unreadable: Counter[str] = Counter()
        self._totals = Totals()

    def totals(self) -> Totals:
        """What was made so far."""
        totals = msgspec.structs.replace(
            self._totals, failed=dict(self._failed), unreadable=dict(self._unreadable)
        )
        totals.sessions = len(self._sessions)
        totals.sessions_by_header = len(self._finder.named_sessions & self._sessions.keys())
        return totals

    def misread(self) -> None:
        """Count an exchange that could not be taken."""
        self._totals.misread += 1

    def take(self, exchange: Exchange) -> None:
        """Make a turn of an exchange, if it is one."""
        answered = read_answer(exchange)
        body = b"".join(exchange.body)
        key = digest_of(exchange.target.encode(), repr(sorted(exchange.sent_fields.items())).encode(), body)
        if isinstance(answered, str):
            self._note_failure(answered, key, exchange.start_ns)
            return
        try:
            body = b"".join(content(exchange.body, exchange.sent_fields))
            prompt = self._reader.read(exchange.api, body)
        except UnreadableError:
            self._totals.not_requests += 1
            return
        first_ns = self._first_try(key, exchange.start_ns)
        place = self._finder.place(exchange.api, prompt, exchange.sent_fields)
        self._add(exchange, prompt, answered, place, first_ns)
        said = None
        if answered.unreadable is None:
            said = SaidBefore(text_digest(answered.text), tuple(call.call_id for call in answered.calls))
        self._finder.update(place, prompt, said, answered.response_id)

    def _note_failure(self, kind: str, key: bytes, start_ns: int) -> None:
        if kind == "cancelled":
            self._totals.cancelled += 1
        else:
            self._failed[kind] += 1
        self._tried.setdefault(key, start_ns)
        if len(self._tried) > _MOST_FAILED:
            self._tried.popitem(last=False)

    def _first_try(self, key: bytes, start_ns: int) -> int:
        """When a request was sent first, if this is a retry."""
        first_ns = self._tried.pop(key, None)
        if first_ns is None or start_ns - first_ns > _RETRIED_WITHIN_NS:
            return start_ns
        self._totals.retries += 1
        return first_ns

    def _add(
        self, exchange: Exchange, prompt: Prompt, answered: Answered, place: Place, first_ns: int
    ) -> None:
        context = place.context
        session = self._session(context.session_id, first_ns)
        agent = session.agents.get(context.agent_id)
        if agent is None:
            agent = session.agents[context.agent_id] = _Agent(context.agent_id)
            self._totals.subagents += context.agent_id is not None
        trigger = _trigger(prompt, place)
        waits = _waits(session, agent, context.parent, exchange.start_ns)
        released_ns = max((sent.end_ns for sent in waits.sent), default=session.start_ns)
        gap_ms = _ms(first_ns - released_ns)
        tool_gap = self._end_calls(session, agent, waits, first_ns, prompt) if trigger == "tool" else False
        tokens = new_tokens(exchange.api, prompt, answered, place, agent.counted)
        turn = Turn(
            session_id=context.session_id,
            turn_id=_turn_id(session, agent, exchange.sent_fields.get(TURN_HEADER)),
            agent_id=context.agent_id,
            wait_for=tuple(sent.turn_id for sent in waits.sent) if waits.parent is None else (),
            parent_turn_id=waits.parent,
            trigger=trigger,
            start_ms=_ms(first_ns - self._origin_ns),
            delay_ms=_delay(first=not session.turn_ids, tool_gap=tool_gap, gap_ms=gap_ms),
            model=prompt.model,
            input_tokens=tokens.input_tokens,
            new_input_tokens=tokens.new_tokens,
            cached_input_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            output_quality="measured" if answered.output_tokens is not None else "estimated",
            tool_calls=tuple(
                ToolCall(name=call.name, arguments_tokens=call.arguments_tokens) for call in answered.calls
            ),
            ttft_ms=_ttft_ms(exchange, answered),
            duration_ms=_ms(answered.end_ns - exchange.start_ns),
            messages=kept_messages(prompt, place, answered) if self._keep_text else None,
            source=None if answered.input_tokens is not None else "input_tokens counted in o200k_base",
        )
        session.turn_ids.add(turn.turn_id)
        session.file.turns.append(turn)
        agent.recent.append(_Sent(turn.turn_id, exchange.start_ns, answered.end_ns))
        agent.last, agent.calls, agent.counted = turn.turn_id, answered.calls, tokens
        agent.turns += 1
        session.file.write(_settled(session))
        self._count(turn, answered)

    def _session(self, session_id: str, start_ns: int) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            file = self._journal.session(_ms(start_ns - self._origin_ns))
            session = self._sessions[session_id] = _Session(file, start_ns)
        return session

    def _end_calls(
        self, session: _Session, agent: _Agent, waits: _Waits, first_ns: int, prompt: Prompt
    ) -> bool:
        """Note on the agent's latest turn how its calls ended; return whether the gap is in them."""
        place = next((at for at, turn in enumerate(session.file.turns) if turn.turn_id == agent.last), None)
        if place is None or agent.last not in [sent.turn_id for sent in waits.sent]:
            return False
        turn = session.file.turns[place]
        results = {call_id: tokens for item in prompt.items for call_id, tokens in item.results}
        started = _started(session, turn)
        gap_ms = _ms(first_ns - next(sent.end_ns for sent in waits.sent if sent.turn_id == agent.last))
        calls = []
        for call, said in zip(_with_agents(turn.tool_calls, started), agent.calls, strict=True):
            duration_ms = gap_ms if call.agent_id is None else None
            ended = msgspec.structs.replace(
                call, duration_ms=duration_ms, result_tokens=results.get(said.call_id)
            )
            calls.append(ended)
        session.file.turns[place] = msgspec.structs.replace(turn, tool_calls=tuple(calls))
        return any(call.agent_id is None for call in calls)

    def _count(self, turn: Turn, answered: Answered) -> None:
        totals = self._totals
        totals.turns += 1
        totals.compactions += turn.trigger == "compaction"
        totals.tool_calls += len(turn.tool_calls)
        totals.input_tokens += turn.input_tokens
        totals.output_tokens += turn.output_tokens or 0
        totals.counted_inputs += answered.input_tokens is None
        if answered.unreadable is not None:
            self._unreadable[answered.unreadable] += 1
        else:
            totals.counted_outputs += answered.output_tokens is None


class _Waits(NamedTuple):
    """What a turn waited for: sent, or for an agent's first turn the response of its parent."""

    sent: tuple[_Sent, ...]
    parent: str | None


def _waits(session: _Session, agent: _Agent, parent: str | None, start_ns: int) -> _Waits:
    before = _latest(agent, start_ns)
    if before is None:
        if agent.agent_id is None or agent.turns:
            return _Waits((), None)
        of = session.agents.get(parent)
        started_by = _latest(of, start_ns) if of is not None else None
        if started_by is None:
            return _Waits((), None)
        agent.started_by = started_by.turn_id
        return _Waits((started_by,), started_by.turn_id)
    # Agents that the turn before has started and that had ended by now; others run on beside.
    joined = [
        last
        for each in session.agents.values()
        if each.started_by == before.turn_id and (last := _latest(each, start_ns, only_last=True)) is not None
    ]
    return _Waits((before, *joined), None)


def _latest(agent: _Agent, start_ns: int, *, only_last: bool = False) -> _Sent | None:
    """The agent's latest turn that was answered by then. only_last: its latest turn of all, or nothing."""
    recent = list(agent.recent)[-1:] if only_last else list(agent.recent)
    return next((sent for sent in reversed(recent) if sent.end_ns <= start_ns), None)


def _started(session: _Session, turn: Turn) -> list[str]:
    """The agents that a turn has started."""
    return [
        each.agent_id
        for each in session.agents.values()
        if each.started_by == turn.turn_id and each.agent_id is not None
    ]


def _with_agents(calls: tuple[ToolCall, ...], started: list[str]) -> list[ToolCall]:
    """Calls with the agents that they started: those whose name speaks of agents or tasks, else the first."""
    names = [(call.name or "").lower() for call in calls]
    likely = sorted(range(len(calls)), key=lambda at: not ("agent" in names[at] or "task" in names[at]))
    linked = list(calls)
    for at, agent_id in zip(likely, started, strict=False):
        linked[at] = msgspec.structs.replace(calls[at], agent_id=agent_id)
    return linked


def _settled(session: _Session) -> int:
    """How many of the turns that the file may still change never will be: those before the first open one."""
    open_turns = {agent.last for agent in session.agents.values() if agent.calls}
    turns = session.file.turns
    first = next((at for at, turn in enumerate(turns) if turn.turn_id in open_turns), len(turns))
    return max(first, len(turns) - _MOST_UNSETTLED)


def _trigger(prompt: Prompt, place: Place) -> Literal["user", "tool", "compaction"] | None:
    if place.how == "compacted" and place.context.agent_id is None:
        return "compaction"
    last = prompt.items[-1].kind if prompt.items else "user"
    return last if last == "user" or last == "tool" else None


def _turn_id(session: _Session, agent: _Agent, told: str | None) -> str:
    if told and told not in session.turn_ids:
        return told
    number = agent.turns
    while True:
        turn_id = str(number) if agent.agent_id is None else f"{agent.agent_id}/{number}"
        if turn_id not in session.turn_ids:
            return turn_id
        number += 1


def _delay(*, first: bool, tool_gap: bool, gap_ms: float) -> float | None:
    if first:
        return None
    return 0.0 if tool_gap else gap_ms


def _ttft_ms(exchange: Exchange, answered: Answered) -> float | None:
    if answered.first_token_ns is None:
        return None
    return _ms(answered.first_token_ns - exchange.start_ns)


def _ms(nanoseconds: int) -> float:
    """Milliseconds to the microsecond; never less than none."""
    return round(max(0, nanoseconds) / 1e6, 3)
