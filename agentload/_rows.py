"""The rows that both drivers write: a planned turn, filled with what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from agentload._player import PlannedTurn, SessionPlayer
from agentload._requests import asked_tokens
from agentload_simbackend import Arrival
from agentload_traces import ClientRow, RequestRow, ToolCallRow


class RowSink(Protocol):
    """Takes the rows of a run as they come, such as a `RunWriter`."""

    def add_request(self, row: RequestRow) -> None:
        """Take a turn's row."""
        ...

    def add_tool_call(self, row: ToolCallRow) -> None:
        """Take a tool call's row; before the row of the turn that made the call."""
        ...

    def tick(self, now_ns: int) -> None:
        """The run's clock stands at `now_ns`; now and then is a good time to write to disk."""
        ...


class WallSink(RowSink, Protocol):
    """Takes what the replayer saw of itself, too."""

    def add_client(self, row: ClientRow) -> None:
        """Take a row of one interval."""
        ...


def planned_row(planned: PlannedTurn, warmup_ns: int = 0) -> RequestRow:
    """A turn's row with what is known before it is sent. warmup_ns: turns due before this are warm-up."""
    turn = planned.turn
    return RequestRow(
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        turn_index=planned.turn_index,
        session_turns=planned.session_turns,
        agent_id=turn.agent_id,
        agent_depth=planned.agent_depth,
        trigger=turn.trigger,
        gate_turn_id=planned.gate_turn_id,
        scheduled_ns=planned.scheduled_ns,
        tool_ns=planned.tool_ns,
        think_ns=planned.think_ns,
        input_tokens=turn.input_tokens,
        output_tokens_asked=asked_tokens(turn),
        warmup=planned.scheduled_ns < warmup_ns,
    )


def skipped_rows(player: SessionPlayer) -> Iterator[RequestRow]:
    """The rows of the turns that a finished session never sent."""
    for planned in player.unsent():
        row = planned_row(planned)
        row.status = "skipped"
        row.error = player.why_unsent(planned)
        row.scheduled_ns = None
        row.gate_turn_id = None
        row.tool_ns = row.think_ns = 0
        yield row


def put_arrivals(row: RequestRow, arrivals: Sequence[Arrival]) -> None:
    """Store token arrivals as gaps in whole microseconds from `scheduled_ns`.

    The gaps are differences of rounded times, so that rounding never adds up.
    """
    before_us = (row.scheduled_ns or 0) // 1000
    gaps = []
    for at_ns, _ in arrivals:
        at_us = at_ns // 1000
        gaps.append(at_us - before_us)
        before_us = at_us
    row.arrival_dt_us = gaps
    row.arrival_tokens = [tokens for _, tokens in arrivals]
