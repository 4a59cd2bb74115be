"""Virtual-time runs: what is conserved, what is reproducible."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_feeds import closed_loop, open_loop
from session_graphs import sessions

from agentload._feed import SessionFeed
from agentload._player import Pace
from agentload._virtual import VirtualRun
from agentload_simbackend import build_engine, load_deployment
from agentload_traces import AgentloadError, RequestRow, Session, ToolCallRow, Turn

MS = 1_000_000
DEPLOYMENTS = ["gemma4-31b/pd", "gemma4-31b/rubin"]


class Rows:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.requests: list[RequestRow] = []
        self.tool_calls: list[ToolCallRow] = []
        self.add_request = self.requests.append
        self.add_tool_call = self.tool_calls.append

    def tick(self, now_ns: int) -> None:
        pass


def play(feed: SessionFeed, deployment: str = DEPLOYMENTS[0], seed: int = 0, **options: object) -> Rows:
    rows = Rows()
    VirtualRun(build_engine(load_deployment(deployment), seed), feed, rows, **options).run()  # type: ignore[arg-type]
    return rows


def _many(count: int) -> st.SearchStrategy[list[Session]]:
    return st.tuples(*(sessions(session_id=f"s{n}", max_turns=5) for n in range(count))).map(list)


@given(many=_many(3), concurrency=st.integers(1, 3), deployment=st.sampled_from(DEPLOYMENTS))
def test_conservation(many: list[Session], concurrency: int, deployment: str) -> None:
    rows = play(closed_loop(many, concurrency), deployment)
    assert len(rows.requests) == sum(len(session.turns) for session in many)
    by_session: dict[str, dict[str, RequestRow]] = defaultdict(dict)
    for row in rows.requests:
        by_session[row.session_id][row.turn_id] = row
    for session in many:
        done = by_session[session.session_id]
        assert done.keys() == {turn.turn_id for turn in session.turns}
        for turn in session.turns:
            row = done[turn.turn_id]
            assert row.status == "ok"
            assert row.output_tokens == row.output_tokens_asked == turn.output_tokens
            assert row.arrival_tokens is not None
            assert sum(row.arrival_tokens) == turn.output_tokens
            _check_times(row)
            _check_waits(turn, row, done, session)


def _check_times(row: RequestRow) -> None:
    assert row.scheduled_ns is not None
    assert row.first_token_ns is not None
    assert row.end_ns is not None
    assert row.arrival_dt_us is not None
    assert row.scheduled_ns == row.sent_ns < row.first_token_ns <= row.end_ns
    phases = (row.queue_ns, row.prefill_ns, row.handoff_ns, row.decode_ns, row.client_ns)
    assert all(phase is not None and phase >= 0 for phase in phases)
    assert sum(phase or 0 for phase in phases) == row.end_ns - row.scheduled_ns
    assert all(gap >= 0 for gap in row.arrival_dt_us)
    assert row.scheduled_ns // 1000 + sum(row.arrival_dt_us) == row.end_ns // 1000
    assert row.scheduled_ns // 1000 + row.arrival_dt_us[0] == row.first_token_ns // 1000


def _check_waits(turn: Turn, row: RequestRow, done: dict[str, RequestRow], session: Session) -> None:
    """The turn starts after everything it waits for, and its gate accounts for the time in between."""
    turns = {t.turn_id: t for t in session.turns}
    scheduled_ns = row.scheduled_ns or 0
    for earlier in turn.wait_for:
        tools_ns = max((round((c.duration_ms or 0) * MS) for c in turns[earlier].tool_calls), default=0)
        assert scheduled_ns >= (done[earlier].end_ns or 0) + tools_ns
    if turn.parent_turn_id is not None:
        assert scheduled_ns >= (done[turn.parent_turn_id].end_ns or 0)
    if row.gate_turn_id is not None:
        gate_end_ns = done[row.gate_turn_id].end_ns or 0
        assert gate_end_ns + row.tool_ns + row.think_ns == scheduled_ns
        assert row.gate_turn_id in (*turn.wait_for, turn.parent_turn_id)


@given(many=_many(2), seed=st.integers(0, 2**40))
def test_same_seed_same_rows(many: list[Session], seed: int) -> None:
    def encoded() -> bytes:
        rows = play(closed_loop(many, 2), seed=seed)
        return msgspec.json.encode((rows.requests, rows.tool_calls))

    assert encoded() == encoded()


@given(session=sessions(max_turns=6))
def test_token_timelines_change_nothing_else(session: Session) -> None:
    rows = play(closed_loop([session], 1)).requests
    without = play(closed_loop([session], 1), arrivals=False).requests
    for row in rows:
        row.arrival_dt_us = row.arrival_tokens = None
    assert rows == without


def _single(session_id: str, start_ms: float | None, input_tokens: int = 1_000) -> Session:
    turn = Turn(
        session_id=session_id, turn_id="t", start_ms=start_ms, input_tokens=input_tokens, output_tokens=10
    )
    return Session(session_id, (turn,))


def test_open_loop_starts_sessions_as_recorded_and_faster_by_speed() -> None:
    many = [_single("b", 3_000.0), _single("a", 1_000.0), _single("c", None)]
    rows = play(open_loop(many, speed=2.0)).requests
    assert {row.session_id: row.scheduled_ns for row in rows} == {"a": 0, "b": 1_000 * MS, "c": 0}


def test_open_loop_of_a_resumed_run_goes_on_where_its_clock_stands() -> None:
    feed = open_loop([_single("a", 5_000.0), _single("b", 7_000.0)], speed=1.0, not_before_ns=9 * MS)
    rows = play(feed).requests
    assert [row.scheduled_ns for row in rows] == [9 * MS, 2_000 * MS]


def test_closed_loop_starts_the_next_session_when_one_has_ended() -> None:
    rows = play(closed_loop([_single(f"s{n}", 0.0) for n in range(5)], 2)).requests
    starts = sorted(row.scheduled_ns or 0 for row in rows)
    ends = sorted(row.end_ns or 0 for row in rows)
    assert starts == [0, 0, *ends[:3]]


def test_a_turn_that_can_never_fit_fails_and_the_rest_is_skipped() -> None:
    turns = (
        Turn(session_id="s", turn_id="a", input_tokens=10_000_000, output_tokens=1),
        Turn(session_id="s", turn_id="b", wait_for=("a",), input_tokens=10, output_tokens=1),
    )
    rows = play(closed_loop([Session("s", turns), _single("t", None)], 1)).requests
    assert [(row.turn_id, row.status) for row in rows] == [("a", "failed"), ("b", "skipped"), ("t", "ok")]
    assert rows[0].error is not None
    assert "10000000" in rows[0].error.replace(",", "").replace("_", "")


def test_a_prompt_of_no_tokens_is_a_failed_turn() -> None:
    rows = play(closed_loop([_single("s", None, input_tokens=0), _single("t", None)], 1)).requests
    assert [(row.session_id, row.status) for row in rows] == [("s", "failed"), ("t", "ok")]


def test_a_trace_longer_than_the_clock_is_refused() -> None:
    with pytest.raises(AgentloadError, match="days after the first"):
        open_loop([_single("a", 0.0), _single("b", 1e20)], speed=1.0)


def test_speed_shortens_what_the_machine_does_not_do() -> None:
    turns = (
        Turn(session_id="s", turn_id="a", input_tokens=10, output_tokens=1),
        Turn(session_id="s", turn_id="b", wait_for=("a",), delay_ms=1_000, input_tokens=20, output_tokens=1),
    )
    rows = play(closed_loop([Session("s", turns)], 1), pace=Pace(think_speed=4)).requests
    assert rows[1].think_ns == 250 * MS
