"""The session player: what may be sent when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from session_graphs import sessions

from agentload._player import Pace, SessionPlayer
from agentload_traces import Session, ToolCall, Turn

MS = 1_000_000


def _turn(turn_id: str, **fields: object) -> Turn:
    return Turn(session_id="s", turn_id=turn_id, input_tokens=10, output_tokens=1, **fields)  # type: ignore[arg-type]


def _play(player: SessionPlayer, takes_ns: int) -> list[tuple[str, int]]:
    """Answer each turn `takes_ns` after it was due; returns (turn, scheduled) in order of sending."""
    sent = []
    answers: list[tuple[int, object]] = []
    while not player.finished:
        due = player.next_due_ns()
        first = min(answers, key=lambda a: a[0], default=None)  # type: ignore[type-var]
        if due is not None and (first is None or due <= first[0]):
            for planned in player.take_due(due):
                sent.append((planned.turn.turn_id, planned.scheduled_ns))
                answers.append((planned.scheduled_ns + takes_ns, planned))
        else:
            assert first is not None
            answers.remove(first)
            player.complete(first[1], first[0])  # type: ignore[arg-type]
    return sent


def test_a_turn_waits_for_the_longest_tool_call_and_the_think_time() -> None:
    calls = (ToolCall(name="a", duration_ms=30), ToolCall(name="b", duration_ms=50))
    session = Session("s", (_turn("a", tool_calls=calls), _turn("b", wait_for=("a",), delay_ms=7)))
    player = SessionPlayer(session, start_ns=1_000)
    assert _play(player, takes_ns=5) == [("a", 1_000), ("b", 1_005 + 57 * MS)]


def test_speed_shortens_tools_and_think_time_apart() -> None:
    calls = (ToolCall(duration_ms=40),)
    session = Session("s", (_turn("a", tool_calls=calls), _turn("b", wait_for=("a",), delay_ms=9)))
    player = SessionPlayer(session, start_ns=0, pace=Pace(tool_speed=4, think_speed=3))
    assert _play(player, takes_ns=0) == [("a", 0), ("b", 13 * MS)]


def test_a_sub_agent_starts_with_the_response_and_is_joined_at_its_end() -> None:
    calls = (ToolCall(name="task", agent_id="x"), ToolCall(duration_ms=100))
    session = Session(
        "s",
        (
            _turn("a", tool_calls=calls),
            _turn("x1", agent_id="x", parent_turn_id="a", delay_ms=2),
            _turn("x2", agent_id="x", wait_for=("x1",)),
            _turn("b", wait_for=("a", "x2")),
        ),
    )
    player = SessionPlayer(session, start_ns=0)
    # x2 ends at 2 + 60 + 60 ms after a: later than a's other tool, so x2 is what b waited for.
    assert _play(player, takes_ns=60 * MS) == [("a", 0), ("x1", 62 * MS), ("x2", 122 * MS), ("b", 182 * MS)]


def test_the_gate_is_what_ended_last() -> None:
    session = Session(
        "s",
        (
            _turn("a", tool_calls=(ToolCall(duration_ms=5),)),
            _turn("x1", agent_id="x", parent_turn_id="a"),
            _turn("b", wait_for=("a", "x1"), delay_ms=1),
        ),
    )
    player = SessionPlayer(session, start_ns=0)
    (a,) = player.take_due(0)
    player.complete(a, 100)
    (x1,) = player.take_due(100)
    assert (x1.agent_depth, x1.turn_index, x1.gate_turn_id) == (1, 0, "a")
    player.complete(x1, 9 * MS)
    (b,) = player.take_due(10 * MS)
    assert (b.gate_turn_id, b.tool_ns, b.think_ns, b.scheduled_ns) == ("x1", 0, MS, 10 * MS)


def test_what_waits_for_a_failed_turn_is_never_sent() -> None:
    session = Session("s", (_turn("a"), _turn("b", wait_for=("a",)), _turn("c", wait_for=("b",))))
    player = SessionPlayer(session, start_ns=0)
    (a,) = player.take_due(0)
    player.fail(a)
    assert player.finished
    assert [planned.turn.turn_id for planned in player.unsent()] == ["b", "c"]


def test_max_turns_plays_the_head_of_a_session() -> None:
    session = Session("s", (_turn("a"), _turn("b", wait_for=("a",)), _turn("c", wait_for=("b",))))
    player = SessionPlayer(session, start_ns=0, max_turns=2)
    assert [turn for turn, _ in _play(player, takes_ns=1)] == ["a", "b"]
    assert player.unsent() == []


@given(session=sessions(), takes_ns=st.integers(0, 10**9))
def test_every_turn_is_sent_once_and_after_what_it_waits_for(session: Session, takes_ns: int) -> None:
    player = SessionPlayer(session, start_ns=0)
    sent = dict(_play(player, takes_ns))
    assert sorted(sent) == sorted(turn.turn_id for turn in session.turns)
    turns = {turn.turn_id: turn for turn in session.turns}
    for turn in session.turns:
        for earlier in turn.wait_for:
            tools_ns = max((round((c.duration_ms or 0) * MS) for c in turns[earlier].tool_calls), default=0)
            assert sent[turn.turn_id] >= sent[earlier] + takes_ns + tools_ns
        if turn.parent_turn_id:
            assert sent[turn.turn_id] >= sent[turn.parent_turn_id] + takes_ns


@given(session=sessions(), failing=st.integers(0, 20))
def test_sent_and_unsent_turns_are_all_turns(session: Session, failing: int) -> None:
    player = SessionPlayer(session, start_ns=0)
    sent = 0
    while not player.finished:
        due = player.next_due_ns()
        assert due is not None
        for planned in player.take_due(due):
            if sent == failing:
                player.fail(planned)
            else:
                player.complete(planned, planned.scheduled_ns)
            sent += 1
    assert sent + len(player.unsent()) == len(session.turns)
