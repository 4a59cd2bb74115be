"""The session player: what may be sent when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from session_graphs import sessions

from agentload._player import KnownEnd, Pace, PlannedTurn, SessionPlayer
from agentload_traces import Session, ToolCall, ToolCallRow, Turn

MS = 1_000_000


def _turn(turn_id: str, **fields: object) -> Turn:
    return Turn(session_id="s", turn_id=turn_id, input_tokens=10, output_tokens=1, **fields)  # type: ignore[arg-type]


def _play(player: SessionPlayer, takes_ns: int) -> list[tuple[str, int]]:
    """Answer each turn `takes_ns` after it was due; returns (turn, scheduled) in order of sending."""
    sent = []
    answers: list[tuple[int, PlannedTurn]] = []
    while not player.finished:
        due = player.next_due_ns()
        first = min(answers, key=lambda answer: answer[0], default=None)
        if due is not None and (first is None or due <= first[0]):
            for planned in player.take_due(due):
                sent.append((planned.turn.turn_id, planned.scheduled_ns))
                answers.append((planned.scheduled_ns + takes_ns, planned))
        else:
            assert first is not None
            answers.remove(first)
            player.complete(first[1], first[0])
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


def _names(planned: list[PlannedTurn]) -> list[str]:
    return [each.turn.turn_id for each in planned]


def _fork() -> Session:
    """a starts a sub-agent of x1 and x2, which b waits for; c follows."""
    return Session(
        "s",
        (
            _turn("a", tool_calls=(ToolCall(agent_id="x"), ToolCall(duration_ms=100))),
            _turn("x1", agent_id="x", parent_turn_id="a", delay_ms=2),
            _turn("x2", agent_id="x", wait_for=("x1",), delay_ms=3),
            _turn("b", wait_for=("a", "x2"), delay_ms=5),
            _turn("c", wait_for=("b",)),
        ),
    )


def test_gaps_are_capped_before_they_are_sped_up() -> None:
    calls = (ToolCall(duration_ms=40),)
    session = Session("s", (_turn("a", tool_calls=calls), _turn("b", wait_for=("a",), delay_ms=1e300)))
    pace = Pace(tool_speed=2, think_speed=4, max_gap_ns=20 * MS)
    player = SessionPlayer(session, start_ns=0, pace=pace)
    assert _play(player, takes_ns=0) == [("a", 0), ("b", 15 * MS)]


def test_endless_think_time_is_a_time() -> None:
    session = Session("s", (_turn("a"), _turn("b", wait_for=("a",), delay_ms=1e306)))
    assert _play(SessionPlayer(session, start_ns=0), takes_ns=0) == [("a", 0), ("b", round(1e30))]


def test_history_is_over_and_what_it_released_is_due_at_once() -> None:
    player = SessionPlayer(_fork(), start_ns=7, first_position=2)
    (x2,) = player.take_due(7)
    assert (x2.turn.turn_id, x2.turn_index, x2.agent_depth) == ("x2", 1, 1)
    assert (x2.session_turns, x2.gate_turn_id, x2.tool_ns, x2.think_ns) == (3, None, 0, 0)
    player.complete(x2, 100)
    (b,) = player.take_due(10 * MS)
    assert (b.turn.turn_id, b.gate_turn_id, b.scheduled_ns, b.think_ns) == ("b", "x2", 100 + 5 * MS, 5 * MS)
    player.complete(b, 6 * MS)
    assert _names(player.take_due(6 * MS)) == ["c"]
    assert player.unsent() == []


def test_max_turns_count_from_the_first_that_is_played() -> None:
    player = SessionPlayer(_fork(), start_ns=0, first_position=3, max_turns=1)
    assert [turn for turn, _ in _play(player, takes_ns=1)] == ["b"]
    assert player.unsent() == []


def test_calls_that_were_measured_count_instead_of_the_recorded_ones() -> None:
    session = Session("s", (_turn("a", tool_calls=(ToolCall(duration_ms=9),)), _turn("b", wait_for=("a",))))
    player = SessionPlayer(session, start_ns=0)
    (a,) = player.take_due(0)
    measured = [ToolCallRow(session_id="s", turn_id="a", call_index=0, start_ns=120, end_ns=150)]
    assert player.complete(a, 100, measured) == measured
    (b,) = player.take_due(1_000)
    assert (b.scheduled_ns, b.tool_ns, b.think_ns) == (150, 50, 0)


def test_drawn_calls_take_their_time_at_the_tools_speed() -> None:
    asked = []

    def call_ns(session_id: str, turn_id: str, index: int, call: ToolCall) -> int:
        asked.append((session_id, turn_id, index, call.name))
        return 8 * MS

    calls = (ToolCall(name="n"), ToolCall(name="task", agent_id="x"))
    session = Session("s", (_turn("a", tool_calls=calls), _turn("b", wait_for=("a",))))
    player = SessionPlayer(session, start_ns=0, pace=Pace(tool_speed=2), call_ns=call_ns)
    assert _play(player, takes_ns=1) == [("a", 0), ("b", 1 + 4 * MS)]
    assert asked == [("s", "a", 0, "n")]


def test_a_session_may_go_on_after_a_failed_turn_without_its_calls() -> None:
    player = SessionPlayer(_fork(), start_ns=0)
    (a,) = player.take_due(0)
    player.continue_after(a, 50)
    (x1,) = player.take_due(3 * MS)
    assert (x1.scheduled_ns, x1.gate_turn_id) == (50 + 2 * MS, "a")
    player.continue_after(x1, 60)
    (x2,) = player.take_due(9 * MS)
    player.continue_after(x2, 70)
    (b,) = player.take_due(9 * MS)
    assert (b.scheduled_ns, b.tool_ns, b.gate_turn_id) == (70 + 5 * MS, 0, "x2")
    player.complete(b, 80)
    assert _names(player.take_due(80)) == ["c"]


def test_what_the_end_of_the_run_keeps_back_is_not_told() -> None:
    session = Session(
        "s", (_turn("a"), _turn("b"), _turn("after-a", wait_for=("a",)), _turn("c", wait_for=("b",)))
    )
    player = SessionPlayer(session, start_ns=0)
    a, b = player.take_due(0)
    player.fail(a)
    player.keep_back(b)
    assert player.ended_by_cap
    assert player.finished
    assert _names(player.unsent()) == ["after-a"]


def test_a_resumed_session_goes_on_at_what_was_not_answered() -> None:
    answered = {"a": KnownEnd("ok", 10), "x1": KnownEnd("ok", 20)}
    player = SessionPlayer(_fork(), start_ns=0, answered=answered, resume_ns=50 * MS)
    (x2,) = player.take_due(50 * MS)
    # It was due 3 ms after x1; the wait for the run to go on counts as think time.
    assert (x2.turn.turn_id, x2.gate_turn_id) == ("x2", "x1")
    assert (x2.scheduled_ns, x2.tool_ns, x2.think_ns) == (50 * MS, 0, 50 * MS - 20)
    player.complete(x2, 60 * MS)
    (b,) = player.take_due(200 * MS)
    # The tool of a, 100 ms from its end on, ends later.
    assert (b.gate_turn_id, b.scheduled_ns, b.tool_ns) == ("a", 10 + 105 * MS, 100 * MS)


def test_a_recorded_end_of_tools_counts_when_a_session_is_resumed() -> None:
    answered = {"a": KnownEnd("ok", 10, 400 * MS), **{x: KnownEnd("ok", 20) for x in ("x1", "x2")}}
    player = SessionPlayer(_fork(), start_ns=0, answered=answered, resume_ns=50 * MS)
    (b,) = player.take_due(500 * MS)
    assert (b.gate_turn_id, b.scheduled_ns, b.tool_ns) == ("a", 405 * MS, 400 * MS - 10)


def test_a_failed_turn_of_a_resumed_session_ends_it_or_not_by_policy() -> None:
    answered = {"a": KnownEnd("failed", 10), "x1": KnownEnd("skipped", None)}
    ended = SessionPlayer(_fork(), start_ns=0, answered=answered)
    assert ended.finished
    assert _names(ended.unsent()) == ["x2", "b", "c"]
    failed = {"a": KnownEnd("failed", 10)}
    player = SessionPlayer(_fork(), start_ns=0, answered=failed, on_failure="continue")
    (x1,) = player.take_due(9 * MS)
    assert (x1.turn.turn_id, x1.scheduled_ns) == ("x1", 10 + 2 * MS)


@given(
    session=sessions(),
    takes_ns=st.integers(0, 10**9),
    cut_ns=st.integers(0, 2 * 10**10),
    pause_ns=st.integers(0, 10**10),
    first=st.integers(0, 3),
)
def test_a_session_that_was_interrupted_plays_each_turn_once_with_exact_times(
    session: Session, takes_ns: int, cut_ns: int, pause_ns: int, first: int
) -> None:
    first = min(first, len(session.turns) - 1)
    planned: dict[str, PlannedTurn] = {}
    ends: dict[str, int] = {}

    def go_on(player: SessionPlayer, until_ns: int | None) -> None:
        """Answer each turn `takes_ns` after it is due, in order of time, up to `until_ns`."""
        on_way: list[tuple[int, int, PlannedTurn]] = []
        while True:
            due_ns = player.next_due_ns()
            end_ns = min(on_way)[0] if on_way else None
            moments = [ns for ns in (due_ns, end_ns) if ns is not None]
            if not moments or (until_ns is not None and min(moments) > until_ns):
                return
            if due_ns is not None and (end_ns is None or due_ns <= end_ns):
                for each in player.take_due(due_ns):
                    on_way.append((each.scheduled_ns + takes_ns, each.position, each))
                    assert each.turn.turn_id not in ends
            else:
                done = min(on_way)
                on_way.remove(done)
                player.complete(done[2], done[0])
                planned[done[2].turn.turn_id], ends[done[2].turn.turn_id] = done[2], done[0]

    go_on(SessionPlayer(session, start_ns=0, first_position=first), cut_ns)
    answered = {turn_id: KnownEnd("ok", end_ns) for turn_id, end_ns in ends.items()}
    resume_ns = cut_ns + pause_ns
    late = SessionPlayer(session, start_ns=0, first_position=first, answered=answered, resume_ns=resume_ns)
    go_on(late, None)
    assert late.finished
    assert late.unsent() == []
    assert sorted(ends) == sorted(turn.turn_id for turn in session.turns[first:])
    for turn_id, each in planned.items():
        assert each.session_turns == len(session.turns) - first
        assert turn_id in answered or each.scheduled_ns >= resume_ns
        gate_end_ns = 0 if each.gate_turn_id is None else ends[each.gate_turn_id]
        assert gate_end_ns + each.tool_ns + each.think_ns == each.scheduled_ns
        assert each.tool_ns >= 0
        assert each.think_ns >= 0
        for earlier in each.turn.wait_for:
            assert earlier not in ends or each.scheduled_ns >= ends[earlier]
