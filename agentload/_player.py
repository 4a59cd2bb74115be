"""The session player: which turns of a session may be sent now, and when the next one is due.

Sans-IO: it is told the time in integer nanoseconds on a clock that starts with the run.

A turn is released when everything that it waits for has ended: each turn in `wait_for` with its tool
calls (they run in parallel, so the one that ends last counts; in a pool of few slots they queue, with those
of all other sessions), and the response of `parent_turn_id` without them.
What ended last is the turn's *gate*. The turn is due `delay_ms` after its release.

A session may start at a later turn. What stands before it is history, over when the session starts: a turn
that waited for history alone is due at once, for its think time lies before the start.

A run that was interrupted goes on from what it had recorded of a session. A turn that should have been sent
while nobody did is due when the run goes on, and that wait counts as think time, so that the times still add
up from the end of the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from agentload._tool_pool import ToolPool
from agentload._turn_graph import TurnGraph
from agentload_traces import Session, ToolCall, ToolCallRow, Turn

_NS_PER_MS = 1_000_000

_WAITING, _TAKEN, _FAILED, _KEPT_BACK, _OVER = range(5)
"""States of a turn: of those that were taken, _TAKEN are on their way or answered. _OVER: history, or known
from before."""


class Pace(NamedTuple):
    """How much faster than recorded tools and think time pass (2 halves them).

    max_gap_ns: none of them takes longer than this, before its speed; `None` is as long as it takes.
    """

    tool_speed: float = 1.0
    think_speed: float = 1.0
    max_gap_ns: int | None = None

    def tool_ns(self, ns: float) -> int:
        """How long a tool call of `ns` takes."""
        return self._passing_ns(ns, self.tool_speed)

    def think_ns(self, ns: float) -> int:
        """How long think time of `ns` takes."""
        return self._passing_ns(ns, self.think_speed)

    def _passing_ns(self, ns: float, speed: float) -> int:
        if self.max_gap_ns is not None and ns > self.max_gap_ns:
            ns = self.max_gap_ns
        return round(min(ns / speed, 1e30))


class PlannedTurn(NamedTuple):
    """A turn with the place and time that its session gives it.

    position: place in the session. turn_index: position among the turns of the same agent.
    session_turns: how many turns of the session are played.
    tool_ns, think_ns: what lies between the end of the gate's response and `scheduled_ns`; the wait of tools
    for a slot is in the former.
    """

    position: int
    turn: Turn
    turn_index: int
    session_turns: int
    agent_depth: int
    gate_turn_id: str | None
    scheduled_ns: int
    tool_ns: int
    think_ns: int


class KnownEnd(NamedTuple):
    """What became of a turn before the run was interrupted.

    end_ns: end of its answer; `None` if it was not sent. tools_end_ns: end of its last tool call; `None` if
    that was not recorded, and is then what it would be with free slots.
    """

    status: Literal["ok", "failed", "skipped"]
    end_ns: int | None
    tools_end_ns: int | None = None


CallTime = Callable[[str, str, int, ToolCall], int]
"""How long a tool call takes, in ns: of its session id, turn id, index in its turn, and what was recorded."""


class SessionPlayer:
    """Plays one session; see the module's docstring for the rules.

    first_position: turns before it, in the order of the trace, are history.
    max_turns: play only so many turns of the session, in the order of the trace.
    tools: where tool calls run, the same pool for all sessions of a run.
    unfit: why a turn must not be sent, `None` if it may be; neither is then what waits for it.
    call_ns: how long tool calls take other than recorded; not asked for sub-agents.
    on_failure: what becomes of what waits for failed turns of `answered`, see `fail` and `continue_after`.
    answered: what is known from before the run was interrupted, by turn id. resume_ns: no turn is due before.
    """

    def __init__(
        self,
        session: Session,
        *,
        start_ns: int,
        pace: Pace | None = None,
        first_position: int = 0,
        max_turns: int | None = None,
        tools: ToolPool | None = None,
        unfit: Callable[[Turn], str | None] | None = None,
        call_ns: CallTime | None = None,
        on_failure: Literal["end", "continue"] = "end",
        answered: Mapping[str, KnownEnd] | None = None,
        resume_ns: int = 0,
    ) -> None:
        self.session_id = session.session_id
        self.start_ns = start_ns
        last = len(session.turns) if max_turns is None else first_position + max_turns
        self._turns = session.turns[:last]
        self._first = first_position
        self._pace = pace or Pace()
        self._tools = tools or ToolPool()
        self._unfit = unfit
        self._call_ns = call_ns
        self._resume_ns = resume_ns
        self._why: dict[str, str] = {}
        self._due: list[tuple[int, int]] = []
        self._in_flight = 0
        self._left = max(0, len(self._turns) - first_position)
        self._state = bytearray(len(self._turns))
        self._ended_by_cap = False
        graph = TurnGraph(self._turns, first_position)
        self._after, self._children, self._missing = graph.after, graph.children, graph.waits
        self._place = graph.places
        self._gate: list[tuple[int, int, int | None]] = [(start_ns, 0, None)] * len(self._turns)
        free = self._free()
        if answered:
            self._take_over(answered, on_failure)
        for index in free:
            if self._state[index] == _WAITING:
                self._release(index)

    def _free(self) -> list[int]:
        """The turns to be played that wait for none. Of those that must not be sent this holds them back."""
        free = []
        for index, turn in enumerate(self._turns):
            if index < self._first:
                self._state[index] = _OVER
            elif self._unfit is not None and self._hold_back(turn):
                # It waits for what never comes.
                self._missing[index] += 1
            elif not self._missing[index]:
                free.append(index)
        return free

    def _take_over(self, answered: Mapping[str, KnownEnd], on_failure: Literal["end", "continue"]) -> None:
        """Take what was recorded of the session as done, in the order of the trace."""
        known = [
            (index, before)
            for index, turn in enumerate(self._turns)
            if index >= self._first and (before := answered.get(turn.turn_id)) is not None
        ]
        for index, before in known:
            self._state[index] = _FAILED if before.status in ("failed", "skipped") else _OVER
        self._left -= len(known)
        for index, before in known:
            if before.end_ns is None:
                continue
            if before.status == "ok":
                tools_end_ns = before.tools_end_ns
                if tools_end_ns is None:
                    calls = enumerate(self._turns[index].tool_calls)
                    tools_end_ns = before.end_ns + max(
                        (self._takes_ns(index, *call) for call in calls), default=0
                    )
                self._let_go(index, before.end_ns, max(before.end_ns, tools_end_ns))
            elif before.status == "failed" and on_failure == "continue":
                self._let_go(index, before.end_ns, before.end_ns)

    def _hold_back(self, turn: Turn) -> bool:
        """Whether a turn must not be sent, by itself or for one that it waits for; `_why` then knows why."""
        assert self._unfit is not None
        why = self._unfit(turn)
        waits = (*turn.wait_for, turn.parent_turn_id)
        if why is None and (held := next((each for each in waits if each in self._why), None)) is not None:
            why = f"turn {held}, which it waits for, is not sent"
        if why is not None:
            self._why[turn.turn_id] = why
        return why is not None

    def why_unsent(self, planned: PlannedTurn) -> str:
        """Why a turn of `unsent` was not sent."""
        return self._why.get(planned.turn.turn_id, "a turn that it waits for failed")

    def _release(self, index: int) -> None:
        release_ns = self._gate[index][0]
        turn = self._turns[index]
        think_ns = self._pace.think_ns(turn.delay_ms * _NS_PER_MS) if turn.delay_ms else 0
        if think_ns and self._gate[index][2] is None and (turn.wait_for or turn.parent_turn_id is not None):
            think_ns = 0  # it waited for history alone
        heappush(self._due, (max(release_ns + think_ns, self._resume_ns), index))

    def _satisfy(self, index: int, release_ns: int, tool_ns: int, gate: int) -> None:
        held = self._gate[index]
        if held[2] is None or release_ns > held[0]:
            self._gate[index] = (release_ns, tool_ns, gate)
        self._missing[index] -= 1
        if not self._missing[index] and self._state[index] == _WAITING:
            self._release(index)

    def _let_go(self, index: int, end_ns: int, tools_end_ns: int) -> None:
        """Release what waited for a turn that ended at `end_ns`, and its tools at `tools_end_ns`."""
        for child in self._children[index]:
            self._satisfy(child, end_ns, 0, index)
        for later in self._after[index]:
            self._satisfy(later, tools_end_ns, tools_end_ns - end_ns, index)

    @property
    def finished(self) -> bool:
        """Nothing is in flight and nothing can ever become due."""
        return not self._in_flight and not self._due

    @property
    def ended_by_cap(self) -> bool:
        """A turn of the session was kept back."""
        return self._ended_by_cap

    def next_due_ns(self) -> int | None:
        """When the next released turn is due; `None` when none is released."""
        return self._due[0][0] if self._due else None

    def take_due(self, now_ns: int) -> list[PlannedTurn]:
        """Take the turns due at `now_ns` or before.

        Each must be answered by `complete`, `fail`, `continue_after` or `keep_back`.
        """
        taken = []
        while self._due and self._due[0][0] <= now_ns:
            scheduled_ns, index = heappop(self._due)
            self._state[index] = _TAKEN
            taken.append(self._plan(index, scheduled_ns))
        self._in_flight += len(taken)
        self._left -= len(taken)
        return taken

    def _plan(self, index: int, scheduled_ns: int) -> PlannedTurn:
        release_ns, tool_ns, gate = self._gate[index]
        turn_index, agent_depth = self._place[index]
        return PlannedTurn(
            index,
            self._turns[index],
            turn_index,
            len(self._turns) - self._first,
            agent_depth,
            None if gate is None else self._turns[gate].turn_id,
            scheduled_ns,
            tool_ns,
            scheduled_ns - release_ns,
        )

    def complete(
        self, planned: PlannedTurn, end_ns: int, calls: Sequence[ToolCallRow] | None = None
    ) -> Sequence[ToolCallRow]:
        """A turn was answered at `end_ns`; release what waited for it and return its tool calls.

        calls: those that were really executed; `None` has them take their recorded or drawn time.
        """
        self._in_flight -= 1
        rows = list(self._calls(planned, end_ns)) if calls is None else calls
        self._let_go(planned.position, end_ns, max((row.end_ns for row in rows), default=end_ns))
        return rows

    def _calls(self, planned: PlannedTurn, end_ns: int) -> Iterator[ToolCallRow]:
        turn = planned.turn
        for call_index, call in enumerate(turn.tool_calls):
            takes_ns = self._takes_ns(planned.position, call_index, call)
            start_ns, call_end_ns = (
                self._tools.start(end_ns, takes_ns) if self._slotted(call) else (end_ns, end_ns + takes_ns)
            )
            yield ToolCallRow(
                session_id=self.session_id,
                turn_id=turn.turn_id,
                call_index=call_index,
                name=call.name,
                agent_id=call.agent_id,
                queue_ns=start_ns - end_ns,
                start_ns=start_ns,
                end_ns=call_end_ns,
                result_tokens=call.result_tokens,
            )

    def _slotted(self, call: ToolCall) -> bool:
        """Whether a call runs in a slot: it is known to have run somewhere. A sub-agent is no process."""
        return call.agent_id is None and (self._call_ns is not None or call.duration_ms is not None)

    def _takes_ns(self, index: int, call_index: int, call: ToolCall) -> int:
        """How long a call takes; unknown counts as none, so does a sub-agent (its turns take the time)."""
        if self._call_ns is not None and call.agent_id is None:
            turn_id = self._turns[index].turn_id
            return self._pace.tool_ns(self._call_ns(self.session_id, turn_id, call_index, call))
        return self._pace.tool_ns(call.duration_ms * _NS_PER_MS) if call.duration_ms else 0

    def fail(self, planned: PlannedTurn) -> None:
        """A turn got no answer: what waits for it will never be sent."""
        self._in_flight -= 1
        self._state[planned.position] = _FAILED

    def continue_after(self, planned: PlannedTurn, end_ns: int) -> None:
        """A turn got no answer: what waits for it goes on at `end_ns`, as if it had made no tool calls."""
        self._in_flight -= 1
        self._let_go(planned.position, end_ns, end_ns)

    def keep_back(self, planned: PlannedTurn) -> None:
        """A turn is not sent, for the run ends: neither is what waits for it, and none of it is a failure."""
        self._in_flight -= 1
        self._state[planned.position] = _KEPT_BACK
        self._ended_by_cap = True

    def unsent(self) -> list[PlannedTurn]:
        """The turns never taken, with `scheduled_ns` 0; of interest once `finished`.

        Without those that only the end of the run kept from being sent.
        """
        if not self._left:
            return []
        waiting = [index for index, state in enumerate(self._state) if state == _WAITING]
        if self._ended_by_cap:
            lost = self._lost()
            waiting = [index for index in waiting if index in lost]
        return [self._plan(index, 0) for index in waiting]

    def _lost(self) -> set[int]:
        """The turns that failed or do not fit, and all that wait for them."""
        lost: set[int] = set()
        for index, turn in enumerate(self._turns):
            if self._state[index] == _FAILED or index in lost or turn.turn_id in self._why:
                lost |= {index, *self._after[index], *self._children[index]}
        return lost
