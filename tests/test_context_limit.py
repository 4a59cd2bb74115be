"""Turns that outgrow a deployment's context: said before the run, refused, cut, or compacted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from engine_driving import drive, request, variant
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from session_feeds import closed_loop
from session_graphs import sessions
from test_cli_run import REQUESTS, agentload, failing
from test_virtual import Rows

from agentload._compaction import Compactor
from agentload._context_limit import ContextLimit, ContextPlan, OverflowPolicy, context_limit, look_through
from agentload._prompts import PromptPlanner, shared_tokens
from agentload._requests import RequestBuilder, asked_tokens
from agentload._virtual import VirtualRun
from agentload_simbackend import Rejected, build_engine, load_deployment
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces import PrefixBlocks, RunReader, Session, Turn, open_trace, write_trace

LIMIT = ContextLimit(1_000, "the context of m")


def chain(session_id: str, prompts: list[int], *, agent: str | None = None, **fields: Any) -> list[Turn]:
    """Turns one after the other, of 50 tokens each."""
    return [
        Turn(
            session_id=session_id,
            turn_id=f"{agent or 't'}{number}",
            agent_id=agent,
            wait_for=(f"{agent or 't'}{number - 1}",) if number else (),
            input_tokens=prompt,
            output_tokens=50,
            **fields,
        )
        for number, prompt in enumerate(prompts)
    ]


def planned(
    tmp_path: Path, turns: list[Turn], policy: OverflowPolicy, max_turns: int | None = None
) -> ContextPlan:
    write_trace(tmp_path / "t.jsonl", turns)
    return look_through(open_trace(tmp_path / "t.jsonl"), LIMIT, policy, max_turns)


def played(plan: ContextPlan, many: list[Session]) -> Rows:
    rows = Rows()
    feed = closed_loop(plan.sessions(many), 2)
    unfit = plan.limit.reason if plan.left else None
    VirtualRun(FixedStepEngine(max_tokens=LIMIT.tokens), feed, rows, unfit=unfit).run()
    return rows


def test_what_fits_needs_no_words(tmp_path: Path) -> None:
    plan = planned(tmp_path, chain("a", [100, 950]), "refuse")
    assert not plan.too_long
    assert (plan.refusal(), plan.warning(), plan.conditions()) == (None, None, [])


def test_the_arithmetic_is_said(tmp_path: Path) -> None:
    turns = [*chain("a", [100, 960, 990]), *chain("b", [10, 20]), *chain("c", [10, 1_200])]
    plan = planned(tmp_path, turns, "refuse")
    assert plan.refusal() == (
        "3 turns of 2 sessions outgrow the context of m; the largest: 1,200 prompt + 50 output = 1,250 tokens"
        " > 1,000; the first: turn 't1' of session 'a' (line 2). --on-overflow cut ends a session before its"
        " first such turn, --on-overflow compact compacts its context, --max-turns plays fewer turns"
    )


def test_turns_that_are_not_played_do_not_count(tmp_path: Path) -> None:
    turns = [*chain("a", [100, 960, 990]), *chain("b", [10, 2_000])]
    assert not planned(tmp_path, turns, "refuse", 1).too_long
    two = planned(tmp_path, turns, "refuse", 2)
    assert (two.too_long.turns, two.too_long.sessions) == (2, 2)
    compact = planned(tmp_path, turns, "compact", 2).compactor
    assert compact is not None
    assert (compact.compactions, compact.sessions) == (2, 2)


def test_an_unknown_answer_counts_as_one_token(tmp_path: Path) -> None:
    turn = Turn(session_id="a", turn_id="t", input_tokens=1_000)
    assert planned(tmp_path, [turn], "refuse").too_long
    assert not planned(tmp_path, [structs.replace(turn, input_tokens=999)], "refuse").too_long


def test_cut_ends_a_session_before_the_first_turn_that_does_not_fit(tmp_path: Path) -> None:
    turns = chain("a", [100, 960, 300])
    sub = [
        structs.replace(turn, wait_for=(), parent_turn_id="t0") if not turn.wait_for else turn
        for turn in chain("a", [10, 20], agent="x")
    ]
    turns = [turns[0], *sub, *turns[1:]]
    plan = planned(tmp_path, turns, "cut")
    assert plan.refusal() is None
    assert plan.conditions() == [
        "Not sent: 1 turn of 1 session that would exceed the context of m (1,000 tokens), and what waits"
        " for them."
    ]
    rows = {row.turn_id: row for row in played(plan, [Session("a", tuple(turns))]).requests}
    assert {name: row.status for name, row in rows.items()} == {
        "t0": "ok",
        "x0": "ok",
        "x1": "ok",
        "t1": "skipped",
        "t2": "skipped",
    }
    assert rows["t1"].error == (
        "does not fit the context of m: 960 prompt + 50 output = 1,010 tokens > 1,000"
    )
    assert rows["t2"].error == "turn t1, which it waits for, is not sent"


def test_cut_of_a_sub_agent_ends_what_joins_it(tmp_path: Path) -> None:
    main = chain("a", [100, 200, 300])
    sub = structs.replace(chain("a", [2_000], agent="x")[0], parent_turn_id="t0")
    main[2] = structs.replace(main[2], wait_for=("t1", "x0"))
    turns = [main[0], sub, *main[1:]]
    plan = planned(tmp_path, turns, "cut")
    statuses = {row.turn_id: row.status for row in played(plan, [Session("a", tuple(turns))]).requests}
    assert statuses == {"t0": "ok", "t1": "ok", "x0": "skipped", "t2": "skipped"}


def test_compaction_restarts_a_context_and_later_turns_shrink_as_much() -> None:
    compactor = Compactor(1_000)
    turns = [compactor.take(turn) for turn in chain("a", [500, 900, 960, 1_000, 1_700, 1_800])]
    # 960 + 50 > 1,000: restarts at 250, 710 shorter; 1,700 - 710 = 990 is too much again.
    assert [turn.input_tokens for turn in turns] == [500, 900, 250, 290, 250, 350]
    assert [turn.trigger for turn in turns] == [None, None, "compaction", None, "compaction", None]
    assert (compactor.compactions, compactor.sessions) == (2, 1)


def test_an_agent_that_starts_over_by_itself_is_played_as_recorded() -> None:
    compactor = Compactor(1_000)
    turns = [compactor.take(turn) for turn in chain("a", [900, 960, 800, 300, 400])]
    # 800 - 710 would leave 90, less than the first 100.
    assert [turn.input_tokens for turn in turns] == [900, 250, 800, 300, 400]


def test_agents_are_compacted_each_by_itself() -> None:
    compactor = Compactor(1_000)
    main, sub = chain("a", [900, 980, 990]), chain("a", [800, 900], agent="x")
    taken = [compactor.take(turn).input_tokens for turn in (main[0], sub[0], main[1], sub[1], main[2])]
    assert taken == [900, 800, 250, 900, 260]
    assert [compactor.take(turn).input_tokens for turn in chain("b", [900])] == [900]


def test_an_answer_that_exceeds_the_limit_by_itself_is_not_sent(tmp_path: Path) -> None:
    turns = [structs.replace(turn, output_tokens=1_000) for turn in chain("a", [10, 20])]
    plan = planned(tmp_path, turns, "compact")
    rows = played(plan, [Session("a", tuple(turns))]).requests
    assert [row.status for row in rows] == ["skipped", "skipped"]


def test_a_compacted_prompt_keeps_its_beginning_and_what_follows_keeps_it() -> None:
    turns = chain("a", [500, 900, 960, 1_000])
    blocks = [
        structs.replace(turn, blocks=PrefixBlocks(ids=tuple(range(turn.input_tokens // 10)), block_tokens=10))
        for turn in turns
    ]
    for recorded in (turns, blocks):
        session = Session("a", tuple(map(Compactor(1_000).take, recorded)))
        planner = PromptPlanner(session)
        prompts = [planner.plan(turn) for turn in session.turns]
        for turn, prompt in zip(session.turns, prompts, strict=True):
            assert sum(run.tokens for run in prompt.runs) == turn.input_tokens
        assert shared_tokens(prompts[1].runs, prompts[2].runs) == 100
        assert shared_tokens(prompts[2].runs, prompts[3].runs) == 250
        builder = RequestBuilder(session, seed=0, model="m")
        assert [builder.build(turn).sent_tokens for turn in session.turns] == [500, 900, 250, 290]


def test_a_context_that_goes_back_after_its_compaction_is_found_by_its_blocks() -> None:
    def turn(number: int, ids: range, extra: tuple[int, ...] = ()) -> Turn:
        held = (*ids, *extra)
        made = chain("a", [len(held) * 10])[0]
        blocks = PrefixBlocks(ids=held, block_tokens=10)
        return structs.replace(made, turn_id=f"t{number}", blocks=blocks)

    turns = [turn(0, range(90)), turn(1, range(96)), turn(2, range(98)), turn(3, range(90), (200, 201))]
    taken = list(map(Compactor(1_000).take, turns))
    assert [each.input_tokens for each in taken] == [900, 250, 270, 210]
    assert [each.new_input_tokens for each in taken] == [None, 150, None, 20]


@pytest.mark.parametrize(
    ("recorded_new", "shared"), [(None, 0), (3_000, 0), (500, 1_000), (2_900, 100), (0, 1_000)]
)
def test_who_starts_over_shares_nothing_with_the_compacted_text(
    recorded_new: int | None, shared: int
) -> None:
    """3,000 tokens after a compaction to 2,500: the recorded prompt shares no text that took their place."""
    recorded = chain("a", [9_000, 9_990, 9_995, 3_000])
    recorded[-1] = structs.replace(recorded[-1], new_input_tokens=recorded_new)
    taken = tuple(map(Compactor(10_000).take, recorded))
    assert [turn.input_tokens for turn in taken] == [9_000, 2_500, 2_505, 3_000]
    planner = PromptPlanner(Session("a", taken))
    *_, before, last = (planner.plan(turn) for turn in taken)
    assert shared_tokens(before.runs, last.runs) == last.shared_tokens == shared


_limits = st.integers(40, 6_000)


@given(
    many=st.tuples(*(sessions(session_id=f"s{n}", max_turns=8) for n in range(2))).map(list), tokens=_limits
)
def test_compacted_turns_fit_and_change_nothing_else(many: list[Session], tokens: int) -> None:
    compactor = Compactor(tokens)
    for session in many:
        taken = [compactor.take(turn) for turn in session.turns]
        fitting = all(turn.input_tokens + asked_tokens(turn) <= tokens for turn in session.turns)
        assert not fitting or taken == list(session.turns)
        planner = PromptPlanner(Session(session.session_id, tuple(taken)))
        for before, turn in zip(session.turns, taken, strict=True):
            output = asked_tokens(turn)
            assert turn.input_tokens + output <= tokens or output >= tokens
            assert 1 <= turn.input_tokens <= before.input_tokens
            assert turn.new_input_tokens is None or 0 <= turn.new_input_tokens <= turn.input_tokens
            for field in ("session_id", "turn_id", "agent_id", "wait_for", "output_tokens", "tool_calls"):
                assert getattr(turn, field) == getattr(before, field)
            assert sum(run.tokens for run in planner.plan(turn).runs) == turn.input_tokens


@given(
    many=st.tuples(*(sessions(session_id=f"s{n}", max_turns=6) for n in range(2))).map(list),
    tokens=_limits,
    policy=st.sampled_from(["cut", "compact"]),
    max_turns=st.none() | st.integers(1, 4),
)
def test_no_turn_is_ever_rejected_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    many: list[Session],
    tokens: int,
    policy: OverflowPolicy,
    max_turns: int | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / "many.jsonl"
    write_trace(path, [turn for session in many for turn in session.turns])
    plan = look_through(open_trace(path), ContextLimit(tokens, "m"), policy, max_turns)
    rows = Rows()
    unfit = plan.limit.reason if plan.left else None
    engine = FixedStepEngine(max_tokens=tokens)
    VirtualRun(engine, closed_loop(plan.sessions(many), 2), rows, unfit=unfit, max_turns=max_turns).run()
    assert len(rows.requests) == sum(len(session.turns[:max_turns]) for session in many)
    assert {row.status for row in rows.requests} <= {"ok", "skipped"}
    assert any(row.status == "skipped" for row in rows.requests) == bool(plan.left)
    compactions = sum(row.trigger == "compaction" for row in rows.requests if row.status == "ok")
    assert compactions <= (plan.compactor.compactions if plan.compactor else 0)
    if not plan.left and plan.compactor:
        assert compactions == plan.compactor.compactions


@pytest.fixture
def long_trace(tmp_path: Path) -> Path:
    """A session whose third turn does not fit 262,144 tokens, and one that fits."""
    path = tmp_path / "long.jsonl"
    write_trace(path, [*chain("a", [200_000, 262_000, 262_120, 262_140]), *chain("b", [1_000])])
    return path


def test_a_run_is_refused_before_anything_is_written(tmp_path: Path, long_trace: Path) -> None:
    for clock in ("virtual", "wall"):
        line = failing("run", long_trace, "--out", tmp_path / "run", "--clock", clock)
        assert line.startswith(f"error: {long_trace}: 2 turns of 1 session outgrow the context of ")
        assert "the largest: 262,140 prompt + 50 output = 262,190 tokens > 262,144;" in line
        assert "the first: turn 't2' of session 'a' (line 3)" in line
        assert "--on-overflow cut" in line
    assert not (tmp_path / "run").exists()
    assert agentload("replay", long_trace, "--out", tmp_path / "run", "--max-turns", 2).returncode == 0


def test_cut_is_counted_and_exit_code_1(tmp_path: Path, long_trace: Path) -> None:
    out = tmp_path / "run"
    done = agentload("replay", long_trace, "--out", out, "--on-overflow", "cut")
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first.startswith("warning: 2 turns of 1 session outgrow the context of ")
    assert last.startswith("warning: 2 of 5 turns were not sent; first: does not fit the context of ")
    rows = pl.read_parquet(out / REQUESTS).sort("session_id", "turn_id")
    assert rows["status"].to_list() == ["ok", "ok", "skipped", "skipped", "ok"]
    manifest = RunReader(out).manifest
    assert manifest.options["on_overflow"] == "cut"
    assert any(sentence.startswith("Not sent: 2 turns") for sentence in manifest.conditions)


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_compact_is_told_and_marked(tmp_path: Path, long_trace: Path, clock: str) -> None:
    out = tmp_path / "run"
    done = agentload("run", long_trace, "--out", out, "--on-overflow", "compact", "--json", "--clock", clock)
    assert done.returncode == 0, done.stderr
    # A busy machine may add that its client did not keep up.
    told = [line for line in done.stderr.splitlines() if "not valid" not in line]
    assert len(told) == 1
    assert "are compacted (1 time in 1 session)" in told[0]
    assert any("compacted (1 time in 1 session)" in line for line in RunReader(out).manifest.conditions)
    rows = pl.read_parquet(out / REQUESTS).sort("session_id", "turn_id")
    assert rows["input_tokens"].to_list() == [200_000, 262_000, 65_536, 65_556, 1_000]
    assert rows["trigger"].to_list() == [None, None, "compaction", None, None]
    assert json.loads(done.stdout)["failed"] == 0


def test_the_limit_is_the_models_or_that_of_a_replica(tmp_path: Path) -> None:
    assert context_limit(load_deployment("gemma4-31b/pd")).tokens == 262_144
    small = variant(tmp_path, "gemma4-31b/pd", decode__usable_memory=0.54)
    limit = context_limit(small)
    assert 0 < limit.tokens < 262_144
    assert limit.what == "the KV memory of a decode replica of gemma4-31b/pd"
    for tokens, refused in ((limit.tokens, False), (limit.tokens + 1, True)):
        (emission, *_) = drive(build_engine(small, 0), [(0, request(1, tokens - 1, 1))])
        assert isinstance(emission, Rejected) == refused
