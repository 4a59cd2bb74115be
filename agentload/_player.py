"""The session player: which turns of a session may be sent now, and when the next one is due.

Sans-IO: it is told the time in integer nanoseconds on a clock that starts with the run.

A turn is released when everything that it waits for has ended: each turn in `wait_for` with its tool
calls (they run in parallel, so the one that ends last counts; in a pool of few slots they queue, with those
of all other sessions), and the response of `parent_turn_id` without them.
What ended last is the turn's *gate*. The turn is due `delay_ms` after its release.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from agentload._tool_pool import ToolPool
from agentload_traces import Session, ToolCall, ToolCallRow, Turn

_NS_PER_MS = 1_000_000


class Pace(NamedTuple):
    """How much faster than recorded tools and think time pass (2 halves them)."""

    tool_speed: float = 1.0
    think_speed: float = 1.0


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


def _call_ns(call: ToolCall, pace: Pace) -> int:
    """How long a call takes; unknown counts as none, and so does a sub-agent (its turns take the time)."""
    if not call.duration_ms:
        return 0
    return round(call.duration_ms * _NS_PER_MS / pace.tool_speed)


def _needs_slot(call: ToolCall) -> bool:
    """Whether a call is known to have run somewhere: a sub-agent is no process of its own."""
    return call.duration_ms is not None and call.agent_id is None


class SessionPlayer:
    """Plays one session; see the module's docstring for the rules.

    max_turns: play only the first turns of the session, in the order of the trace.
    tools: where tool calls run, the same pool for all sessions of a run.
    unfit: why a turn must not be sent, `None` if it may be; neither is then what waits for it.
    """

    def __init__(
        self,
        session: Session,
        *,
        start_ns: int,
        pace: Pace | None = None,
        max_turns: int | None = None,
        tools: ToolPool | None = None,
        unfit: Callable[[Turn], str | None] | None = None,
    ) -> None:
        self.session_id = session.session_id
        self.start_ns = start_ns
        self._turns = session.turns if max_turns is None else session.turns[:max_turns]
        self._pace = pace or Pace()
        self._tools = tools or ToolPool()
        self._unfit = unfit
        self._why: dict[str, str] = {}
        self._due: list[tuple[int, int]] = []
        self._in_flight = 0
        self._left = len(self._turns)
        self._link()

    def _link(self) -> None:
        """Work out, once, who waits for whom and each turn's place in its agent."""
        count = len(self._turns)
        place = {turn.turn_id: index for index, turn in enumerate(self._turns)}
        self._after: list[list[int]] = [[] for _ in range(count)]
        self._children: list[list[int]] = [[] for _ in range(count)]
        self._missing = [0] * count
        self._gate: list[tuple[int, int, int | None]] = [(self.start_ns, 0, None)] * count
        self._place: list[tuple[int, int]] = [(0, 0)] * count
        seen: dict[str | None, int] = {}
        depth: dict[str | None, int] = {None: 0}
        for index, turn in enumerate(self._turns):
            for earlier in turn.wait_for:
                self._after[place[earlier]].append(index)
            self._missing[index] = len(turn.wait_for)
            agent = turn.agent_id
            if turn.parent_turn_id is not None:
                parent = place[turn.parent_turn_id]
                self._children[parent].append(index)
                self._missing[index] += 1
                depth.setdefault(agent, depth.get(self._turns[parent].agent_id, 0) + 1)
            turn_index = seen.get(agent, 0)
            seen[agent] = turn_index + 1
            self._place[index] = (turn_index, depth.get(agent, 0))
            if self._unfit is not None and self._hold_back(turn):
                # It waits for what never comes.
                self._missing[index] += 1
            if not self._missing[index]:
                self._release(index)

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
        delay_ms = self._turns[index].delay_ms
        think_ns = round(delay_ms * _NS_PER_MS / self._pace.think_speed) if delay_ms else 0
        heappush(self._due, (release_ns + think_ns, index))

    def _satisfy(self, index: int, release_ns: int, tool_ns: int, gate: int) -> None:
        held = self._gate[index]
        if held[2] is None or release_ns > held[0]:
            self._gate[index] = (release_ns, tool_ns, gate)
        self._missing[index] -= 1
        if not self._missing[index]:
            self._release(index)

    @property
    def finished(self) -> bool:
        """Nothing is in flight and nothing can ever become due."""
        return not self._in_flight and not self._due

    def next_due_ns(self) -> int | None:
        """When the next released turn is due; `None` when none is released."""
        return self._due[0][0] if self._due else None

    def take_due(self, now_ns: int) -> list[PlannedTurn]:
        """Take the turns due at `now_ns` or before; each must be answered by `complete` or `fail`."""
        taken = []
        while self._due and self._due[0][0] <= now_ns:
            scheduled_ns, index = heappop(self._due)
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
            len(self._turns),
            agent_depth,
            None if gate is None else self._turns[gate].turn_id,
            scheduled_ns,
            tool_ns,
            scheduled_ns - release_ns,
        )

    def complete(self, planned: PlannedTurn, end_ns: int) -> list[ToolCallRow]:
        """A turn was answered at `end_ns`; release what waited for it and return its tool calls."""
        self._in_flight -= 1
        turn = planned.turn
        rows = []
        last_ns = end_ns
        for call_index, call in enumerate(turn.tool_calls):
            takes_ns = _call_ns(call, self._pace)
            start_ns, call_end_ns = (
                self._tools.start(end_ns, takes_ns) if _needs_slot(call) else (end_ns, end_ns + takes_ns)
            )
            last_ns = max(last_ns, call_end_ns)
            rows.append(
                ToolCallRow(
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
            )
        for child in self._children[planned.position]:
            self._satisfy(child, end_ns, 0, planned.position)
        for later in self._after[planned.position]:
            self._satisfy(later, last_ns, last_ns - end_ns, planned.position)
        return rows

    def fail(self, planned: PlannedTurn) -> None:
        """A turn got no answer: what waits for it will never be sent."""
        self._in_flight -= 1

    def unsent(self) -> list[PlannedTurn]:
        """The turns never taken, with `scheduled_ns` 0; of interest once `finished`."""
        if not self._left:
            return []
        waiting = {index for _, index in self._due}
        return [self._plan(i, 0) for i in range(len(self._turns)) if self._missing[i] or i in waiting]
