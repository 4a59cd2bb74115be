"""What the options of the load have played, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from load_cases import load_options
from session_graphs import sessions
from test_virtual import Rows

from agentload._cap import Cap
from agentload._feed import Launch
from agentload._launches import Planned, first_position
from agentload._load import (
    cap_of,
    check_load,
    make_feed,
    pace_of,
    warmup_ns,
)
from agentload._options import LoadOptions
from agentload._prompts import PromptPlanner, shared_tokens
from agentload._virtual import VirtualRun
from agentload_simbackend import EngineRequest
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces import PrefixBlocks, RequestRow, Session, ToolCall, Turn

S, MS = 1_000_000_000, 1_000_000


def _chain(session_id: str, count: int, start_ms: float | None = None, **fields: Any) -> Session:
    turns = [
        Turn(
            session_id=session_id,
            turn_id=f"t{n}",
            wait_for=(f"t{n - 1}",) if n else (),
            start_ms=None if n else start_ms,
            input_tokens=100 * (n + 1),
            new_input_tokens=99 if n else 100,
            output_tokens=1,
            **fields,
        )
        for n in range(count)
    ]
    return Session(session_id, tuple(turns))


def _play(
    many: list[Session], cap: Cap | None = None, planned: Planned | None = None, **load: Any
) -> list[RequestRow]:
    options = load_options(**load)
    check_load(options)
    rows = Rows()
    VirtualRun(
        FixedStepEngine(step_ns=MS, prefill_ns=5 * MS),
        make_feed(iter(many), options, planned=planned),
        rows,
        pace=pace_of(options.load),
        max_turns=options.load.max_turns,
        cap=cap or cap_of(options.load),
        warmup_ns=warmup_ns(options.load),
    ).run()
    return rows.requests


_LOADS = st.one_of(
    st.fixed_dictionaries({"concurrency": st.integers(1, 3)}),
    st.just({}),
    st.fixed_dictionaries({"arrival": st.just("constant"), "rate_per_s": st.floats(0.05, 50)}),
    st.fixed_dictionaries(
        {"arrival": st.just("gamma"), "rate_per_s": st.floats(0.05, 50), "burstiness": st.floats(0.05, 5)}
    ),
    st.just({"stages": "1x1s,1-3x2s,2x999h"}),
    st.just({"arrival": "poisson", "stages": "20x1s,0-2x2s,1x999h"}),
)
_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "start_turn": st.sampled_from(["0", "2", "7", "random"]),
        "max_turns": st.integers(1, 4),
        "max_sessions": st.integers(1, 7),
        "repeat": st.integers(1, 3),
        "speed": st.floats(0.5, 100),
        "think_speed": st.floats(0.5, 100),
        "max_gap_s": st.floats(0, 2),
        "warmup_s": st.floats(0, 5),
    },
)


@given(
    many=st.tuples(*(sessions(session_id=f"s{n}", max_turns=5) for n in range(3))),
    load=_LOADS,
    parts=_PARTS,
    cut=st.fixed_dictionaries(
        {},
        # Longer than any warm-up.
        optional={"max_duration_s": st.floats(5.001, 20), "max_requests": st.integers(1, 9)},
    ),
)
def test_each_turn_is_played_once_after_what_it_waits_for(
    many: tuple[Session, ...], load: dict[str, Any], parts: dict[str, Any], cut: dict[str, Any]
) -> None:
    options = load_options(**load, **parts, **cut)
    planned, cap = Planned(), cap_of(options.load)
    rows = _play(list(many), cap, planned, **load, **parts, **cut)
    done = {(row.session_id, row.turn_id): row for row in rows}
    assert len(done) == len(rows)
    assert all(row.status == "ok" for row in rows)
    expected = list(_expected(many, options.load))
    assert set(done) <= {(session_id, turn.turn_id) for session_id, turn in expected}
    if not cut:
        assert len(done) == len(expected) == planned.turns
        assert planned.whole
        assert cap.sessions_ended == 0
    assert len(rows) <= (options.load.max_requests or len(rows))
    for session_id, turn in expected:
        if (row := done.get((session_id, turn.turn_id))) is None:
            continue
        assert row.scheduled_ns is not None
        assert row.warmup == (row.scheduled_ns < warmup_ns(options.load))
        if options.load.max_duration_s is not None:
            assert row.scheduled_ns < round(options.load.max_duration_s * S)
        played = {other.turn_id for name, other in expected if name == session_id}
        for earlier in (*turn.wait_for, *([turn.parent_turn_id] if turn.parent_turn_id else [])):
            if earlier in played:
                assert row.scheduled_ns >= (done[session_id, earlier].end_ns or 0)
        if row.gate_turn_id is not None:
            gate_end_ns = done[session_id, row.gate_turn_id].end_ns or 0
            assert gate_end_ns + row.tool_ns + row.think_ns == row.scheduled_ns
    assert rows == _play(list(many), **load, **parts, **cut)


def _expected(many: tuple[Session, ...], load: LoadOptions) -> Iterator[tuple[str, Turn]]:
    """Session id and turn of all that is to be played."""
    number = 0
    for repetition in range(load.repeat):
        for session in many:
            if load.max_sessions is not None and number >= load.max_sessions:
                return
            number += 1
            session_id = session.session_id + (f"#{repetition + 1}" if repetition else "")
            first = first_position(load.start_turn, 0, Session(session_id, session.turns))
            last = len(session.turns) if load.max_turns is None else first + load.max_turns
            yield from ((session_id, turn) for turn in session.turns[first:last])


@given(requests=st.integers(1, 30), concurrency=st.integers(1, 4))
def test_a_cap_of_requests_is_exact(requests: int, concurrency: int) -> None:
    many = [_chain(f"s{n}", 5) for n in range(4)]
    cap = Cap(max_requests=requests)
    told: list[int] = []
    cap.on_spent = lambda: told.append(1)
    rows = _play(many, cap, concurrency=concurrency)
    assert len(rows) == min(requests, 20)
    assert len(told) == (requests <= 20)
    assert all(row.status == "ok" for row in rows)
    by_session = Counter(row.session_id for row in rows)
    cut = sum(count < 5 for count in by_session.values())
    # Sessions that began at the same time as the last that was sent may have sent nothing.
    assert cut <= cap.sessions_ended <= cut + concurrency - 1


@given(duration_ms=st.integers(1, 300), concurrency=st.integers(1, 4))
def test_a_cap_of_time_sends_what_is_due_before_and_finishes_it(duration_ms: int, concurrency: int) -> None:
    many = [_chain(f"s{n}", 5, delay_ms=10) for n in range(4)]
    whole = _play(many, concurrency=concurrency)
    rows = _play(many, concurrency=concurrency, max_duration_s=duration_ms / 1e3)
    assert rows == [row for row in whole if (row.scheduled_ns or 0) < duration_ms * MS]


def test_a_run_that_was_resumed_counts_what_it_had_sent() -> None:
    cap = cap_of(LoadOptions(max_requests=3), sent=2)
    assert cap.decided_ns(5 * S) == 5 * S
    assert [(cap.spent, cap.may_send(0)) for _ in range(2)] == [(False, True), (True, False)]
    assert cap.decided_ns(5 * S) == 0
    assert cap_of(LoadOptions(max_duration_s=2.0)).decided_ns(5 * S) == 2 * S


def test_what_failed_before_the_end_is_told_and_what_the_end_kept_back_is_not() -> None:
    bad = Turn(session_id="s", turn_id="bad", input_tokens=0, output_tokens=1)
    after = Turn(session_id="s", turn_id="after", wait_for=("bad",), input_tokens=9, output_tokens=1)
    chain = _chain("s", 3, delay_ms=100).turns
    (row0, row1, row2) = _play([Session("s", (bad, after, *chain))], concurrency=1, max_duration_s=0.15)
    assert [(row.turn_id, row.status) for row in (row0, row1, row2)] == [
        ("bad", "failed"),
        ("t0", "ok"),
        ("after", "skipped"),
    ]


@given(seed=st.integers(0, 10**9))
def test_a_ramp_never_exceeds_its_limit(seed: int) -> None:
    many = [_chain(f"s{seed}-{n}", 1 + (seed >> n) % 4, delay_ms=50) for n in range(40)]
    rows = _play(many, stages="2x200ms,2-6x400ms,1x100ms")
    spans = [_span(rows, session.session_id) for session in many]
    started = [span for span in spans if span is not None]
    assert 4 <= len(started) <= 40
    for start_ns, _ in started:
        assert start_ns < 700 * MS
        active = sum(start <= start_ns < end for start, end in started)
        at = start_ns / MS
        assert active <= (2 if at < 200 else 2 + 4 * (at - 200) / 400 if at < 600 else 1)


def _span(rows: list[RequestRow], session_id: str) -> tuple[int, int] | None:
    own = [row for row in rows if row.session_id == session_id]
    if not own:
        return None
    first = min(own, key=lambda row: row.scheduled_ns or 0)
    return (first.scheduled_ns or 0) - first.think_ns, max(row.end_ns or 0 for row in own)


class _Prompts(FixedStepEngine):
    """Keeps what it was asked."""

    asked: list[EngineRequest]

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        self.asked = [*getattr(self, "asked", []), request]
        super().submit(request, now_ns)


def _prompts(session: Session, **load: Any) -> list[EngineRequest]:
    engine = _Prompts(step_ns=MS, prefill_ns=MS)
    options = load_options(**load)
    VirtualRun(engine, make_feed([session], options), Rows(), max_turns=options.load.max_turns).run()
    return engine.asked


@given(session=sessions(max_turns=6), start=st.integers(0, 8), max_turns=st.none() | st.integers(1, 3))
def test_a_later_start_sends_the_same_prompts(session: Session, start: int, max_turns: int | None) -> None:
    whole = {request.turn_id: request.prompt_runs for request in _prompts(session)}
    later = _prompts(session, start_turn=str(start), max_turns=max_turns)
    first = min(start, len(session.turns) - 1)
    part = session.turns[first : None if max_turns is None else first + max_turns]
    assert {request.turn_id: request.prompt_runs for request in later} == {
        turn.turn_id: whole[turn.turn_id] for turn in part
    }


def test_a_session_starts_at_once_with_the_turn_that_its_history_has_released() -> None:
    session = _chain("s", 4, delay_ms=700, tool_calls=(ToolCall(duration_ms=500),))
    rows = _play([session], start_turn="2")
    assert [(row.turn_id, row.turn_index, row.session_turns) for row in rows] == [("t2", 2, 2), ("t3", 3, 2)]
    assert (rows[0].scheduled_ns, rows[0].gate_turn_id, rows[0].think_ns, rows[0].tool_ns) == (0, None, 0, 0)
    assert rows[1].scheduled_ns == (rows[0].end_ns or 0) + 1_200 * MS


def test_random_starts_are_spread_over_the_session() -> None:
    drawn = Counter(first_position("random", 4, _chain(f"s{n}", 5)) for n in range(2_000))
    assert sorted(drawn) == [0, 1, 2, 3, 4]
    assert all(320 < count < 480 for count in drawn.values())
    assert [first_position("random", 4, _chain(f"s{n}", 9)) for n in range(9)] != [
        first_position("random", 5, _chain(f"s{n}", 9)) for n in range(9)
    ]


def test_sessions_without_the_turn_to_start_at_are_told() -> None:
    planned = Planned()
    rows = _play([_chain("long", 4), _chain("short", 2)], None, planned, start_turn="2")
    assert [(row.session_id, row.turn_id) for row in rows].count(("short", "t1")) == 1
    (said,) = planned.conditions(LoadOptions(start_turn="2"))
    assert said == "1 session of 2 had no turn 2 to start at, and started at the last turn."
    assert Planned().conditions(LoadOptions()) == []


def _runs(launch: Launch) -> Any:
    return PromptPlanner(launch.session, launch.salt).plan(launch.session.turns[0]).runs


def test_repetitions_and_salts_share_no_prefix() -> None:
    blocks = PrefixBlocks(ids=(1, 2, 3), block_tokens=10, scope="trace")
    many = [
        Session(name, (Turn(session_id=name, turn_id="t", input_tokens=30, blocks=blocks),)) for name in "ab"
    ]

    def launched(**load: Any) -> list[Launch]:
        feed = make_feed(many, load_options(concurrency=9, **load))
        return [feed.take() for _ in range(6) if feed.next_start_ns(0, 0) is not None]

    plain, other = launched(repeat=3), launched(repeat=3, salt="x")
    assert [launch.session.session_id for launch in plain] == ["a", "b", "a#2", "b#2", "a#3", "b#3"]
    for one in range(6):
        assert {turn.session_id for turn in plain[one].session.turns} == {plain[one].session.session_id}
        assert shared_tokens(_runs(plain[one]), _runs(other[one])) == 0
        for two in range(one):
            assert shared_tokens(_runs(plain[one]), _runs(plain[two])) == (30 if one // 2 == two // 2 else 0)


def test_repetitions_have_ids_that_no_session_of_the_trace_has() -> None:
    many = [_chain("a", 1), _chain("a#2", 1)]
    rows = _play(many, concurrency=1, repeat=2)
    assert [row.session_id for row in rows] == ["a", "a#2", "a##2", "a#2##2"]


def test_a_trace_that_can_be_read_again_is_not_held() -> None:
    class Again:
        reads = 0

        def __iter__(self) -> Iterator[Session]:
            self.reads += 1
            return iter([_chain("a", 1), _chain("b", 1)])

    sessions = Again()
    feed = make_feed(sessions, load_options(concurrency=1, repeat=3, max_sessions=5))
    taken = []
    while feed.next_start_ns(0, 0) is not None:
        taken.append(feed.take().session.session_id)
    assert taken == ["a", "b", "a#2", "b#2", "a#3"]
    assert sessions.reads == 3
