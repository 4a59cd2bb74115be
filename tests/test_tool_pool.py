"""The pool that runs tools: never overbooked, first come first served, no call lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from session_feeds import closed_loop
from session_graphs import sessions
from test_virtual import Rows

from agentload._player import SessionPlayer
from agentload._tool_pool import ToolPool
from agentload._virtual import VirtualRun
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces import Session, ToolCall, ToolCallRow, Turn

MS = 1_000_000

_calls = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=60)


def most_at_once(spans: list[tuple[int, int]]) -> int:
    """How many of the half-open spans overlap at the most."""
    changes = sorted(
        [(start, 1) for start, end in spans if end > start] + [(e, -1) for s, e in spans if e > s]
    )
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


@given(calls=_calls, slots=st.integers(1, 5))
def test_never_more_than_the_slots_and_in_the_order_of_coming(
    calls: list[tuple[int, int]], slots: int
) -> None:
    pool = ToolPool(slots)
    calls = sorted(calls, key=lambda call: call[0])
    spans = [pool.start(now, takes) for now, takes in calls]
    assert most_at_once(spans) <= slots
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)
    for (now, takes), (start, end) in zip(calls, spans, strict=True):
        assert start >= now
        assert end - start == takes
    # Nobody waits while a slot is free: at each start after a wait all slots were busy until then.
    for number, ((now, _), (start, _)) in enumerate(zip(calls, spans, strict=True)):
        if start > now:
            busy = [span for span in spans[:number] if span[0] < start <= span[1]]
            assert len(busy) >= slots


@given(calls=_calls, slots=st.integers(1, 5))
def test_calls_told_out_of_order_do_not_overbook(calls: list[tuple[int, int]], slots: int) -> None:
    pool = ToolPool(slots)
    spans = [pool.start(now, takes) for now, takes in calls]
    assert most_at_once(spans) <= slots
    assert [end - start for start, end in spans] == [takes for _, takes in calls]


@given(calls=_calls)
def test_without_limit_each_call_starts_when_it_comes(calls: list[tuple[int, int]]) -> None:
    pool, wide = ToolPool(), ToolPool(len(calls) + 1)
    for now, takes in calls:
        assert pool.start(now, takes) == wide.start(now, takes) == (now, now + takes)


def _turn(turn_id: str, *wait_for: str, calls: tuple[ToolCall, ...] = (), **fields: object) -> Turn:
    return Turn(
        session_id="s",
        turn_id=turn_id,
        wait_for=wait_for,
        tool_calls=calls,
        input_tokens=10,
        output_tokens=1,
        **fields,  # type: ignore[arg-type]
    )


def test_the_parallel_calls_of_a_turn_queue_under_fan_out() -> None:
    calls = tuple(ToolCall(name=str(number), duration_ms=10) for number in range(5))
    player = SessionPlayer(
        Session("s", (_turn("a", calls=calls), _turn("b", "a"))), start_ns=0, tools=ToolPool(2)
    )
    (a,) = player.take_due(0)
    rows = player.complete(a, 7)
    assert [(row.queue_ns, row.start_ns, row.end_ns) for row in rows] == [
        (0, 7, 7 + 10 * MS),
        (0, 7, 7 + 10 * MS),
        (10 * MS, 7 + 10 * MS, 7 + 20 * MS),
        (10 * MS, 7 + 10 * MS, 7 + 20 * MS),
        (20 * MS, 7 + 20 * MS, 7 + 30 * MS),
    ]
    assert player.next_due_ns() == 7 + 30 * MS
    (b,) = player.take_due(7 + 30 * MS)
    assert (b.tool_ns, b.think_ns) == (30 * MS, 0)


def test_sub_agents_and_calls_of_unknown_length_take_no_slot() -> None:
    calls = (
        ToolCall(name="shell", duration_ms=10),
        ToolCall(name="task", agent_id="x"),
        ToolCall(name="task", agent_id="x", duration_ms=3),
        ToolCall(name="unknown"),
        ToolCall(name="shell", duration_ms=0),
    )
    player = SessionPlayer(Session("s", (_turn("a", calls=calls),)), start_ns=0, tools=ToolPool(1))
    (a,) = player.take_due(0)
    rows = player.complete(a, 0)
    assert [(row.queue_ns, row.end_ns) for row in rows] == [
        (0, 10 * MS),
        (0, 0),
        (0, 3 * MS),
        (0, 0),
        (10 * MS, 10 * MS),
    ]


def _played(many: list[Session], tools: ToolPool | None) -> Rows:
    rows = Rows()
    feed = closed_loop(many, len(many))
    VirtualRun(FixedStepEngine(step_ns=1_000, prefill_ns=5_000), feed, rows, tools=tools).run()
    return rows


def _ran(row: ToolCallRow) -> tuple[int, int]:
    return row.start_ns, row.end_ns


@given(
    many=st.tuples(*(sessions(session_id=f"s{n}", max_turns=5) for n in range(3))).map(list),
    slots=st.integers(1, 3),
)
def test_the_sessions_of_a_run_share_the_slots(many: list[Session], slots: int) -> None:
    rows = _played(many, ToolPool(slots))
    known = {
        (session.session_id, turn.turn_id, number)
        for session in many
        for turn in session.turns
        for number, call in enumerate(turn.tool_calls)
        if call.duration_ms is not None
    }
    calls = {(row.session_id, row.turn_id, row.call_index): row for row in rows.tool_calls}
    assert len(calls) == len(rows.tool_calls) == sum(len(t.tool_calls) for s in many for t in s.turns)
    assert most_at_once([_ran(row) for row in calls.values()]) <= slots
    ends = {(row.session_id, row.turn_id): row.end_ns for row in rows.requests}
    for key, row in calls.items():
        assert row.start_ns - row.queue_ns == ends[key[:2]]
        assert row.queue_ns == 0 or key in known
    by_turn = {(row.session_id, row.turn_id): row for row in rows.requests}
    for request in rows.requests:
        if request.gate_turn_id is not None:
            gate_end_ns = by_turn[request.session_id, request.gate_turn_id].end_ns or 0
            assert gate_end_ns + request.tool_ns + request.think_ns == request.scheduled_ns


@given(many=st.tuples(*(sessions(session_id=f"s{n}", max_turns=5) for n in range(2))).map(list))
def test_enough_slots_change_nothing(many: list[Session]) -> None:
    without, wide = _played(many, None), _played(many, ToolPool(10_000))
    assert (without.requests, without.tool_calls) == (wide.requests, wide.tool_calls)
