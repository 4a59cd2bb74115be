"""Session times: critical path and exact split, against a slow computation in plain Python."""

from __future__ import annotations

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_rows import MS, agent_session, failed_row, skipped_row, turn_row, write_run

from agentload_analysis import critical_path, sessions, summarise
from agentload_traces import RequestRow

PARTS = ("queue", "prefill", "handoff", "first_token_wait", "decode", "tool", "think", "client")

durations = st.integers(0, 10**13) | st.just(0)


@st.composite
def run_rows(draw: st.DrawFn) -> list[RequestRow]:
    """Up to three sessions, interleaved; any earlier turn of its session may release a turn, or none."""
    rows: list[RequestRow] = []
    answered: dict[str, list[RequestRow]] = {}
    for number in range(draw(st.integers(0, 12))):
        session = draw(st.sampled_from(["a", "b", "c"]))
        status = draw(st.sampled_from(["ok", "ok", "ok", "ok", "failed", "skipped"]))
        gates = answered.setdefault(session, [])
        gate = draw(st.sampled_from(gates)) if gates and draw(st.integers(0, 4)) else None
        if status == "failed":
            rows.append(failed_row(session, f"t{number}", number, gate, "boom"))
        elif status == "skipped":
            rows.append(skipped_row(session, f"t{number}", number))
        else:
            row = turn_row(
                session,
                f"t{number}",
                number,
                gate,
                origin_ns=draw(durations),
                tool_ns=draw(durations),
                think_ns=draw(durations),
                phases_ns=draw(st.tuples(*[durations] * 5)),  # type: ignore[arg-type]
                told=draw(st.booleans()),
            )
            rows.append(row)
            gates.append(row)
    return rows


def frame(rows: list[RequestRow]) -> pl.LazyFrame:
    names = RequestRow.__struct_fields__
    schema = {
        name: pl.Int64 if name.endswith(("_ns", "_tokens", "_index", "_asked", "_depth")) else pl.String
        for name in names
    }
    for name in ("session_turns", "http_status", "steps", "replica", "cached_tokens"):
        schema[name] = pl.Int64
    for name in ("arrival_dt_us", "arrival_tokens"):
        schema[name] = pl.List(pl.Int64)  # type: ignore[assignment]
    return pl.LazyFrame([msgspec.structs.asdict(row) for row in rows], schema=schema, orient="row")


def slow_session(rows: list[RequestRow]) -> dict[str, int] | None:
    """What `sessions` says of one session, without frames or joins."""
    answered = {row.turn_id: row for row in rows if row.status == "ok"}
    if not answered:
        return None
    last = max(enumerate(answered.values()), key=lambda item: (item[1].end_ns or 0, item[0]))[1]
    parts = dict.fromkeys(PARTS, 0)
    turn: RequestRow | None = last
    while turn is not None:
        first = turn
        for part in PARTS:
            parts[part] += getattr(turn, f"{part}_ns") or 0
        turn = answered.get(turn.gate_turn_id or "")
    roots = [row for row in answered.values() if row.gate_turn_id is None]

    def origin(row: RequestRow) -> int:
        return (row.scheduled_ns or 0) - row.tool_ns - row.think_ns

    start = min(origin(row) for row in roots)
    parts["think"] += origin(first) - start
    return {"start": start, "session": (last.end_ns or 0) - start, **parts}


@given(run_rows())
def test_session_times_equal_a_slow_computation_and_their_parts_add_up_exactly(
    rows: list[RequestRow],
) -> None:
    table = {row["session_id"]: row for row in sessions(frame(rows)).collect().to_dicts()}
    assert list(table) == list(dict.fromkeys(row.session_id for row in rows))
    for session_id, row in table.items():
        own = [r for r in rows if r.session_id == session_id]
        assert row["turns"] == len(own)
        for name, status in (("answered", "ok"), ("failed", "failed"), ("skipped", "skipped")):
            assert row[name] == sum(r.status == status for r in own)
        expected = slow_session(own)
        if expected is None:
            assert row["session_ns"] is None
            assert not row["answered_whole"]
            continue
        assert {name: row[f"{name}_ns"] for name in expected} == expected
        assert sum(row[f"{part}_ns"] for part in PARTS) == row["session_ns"]
        assert row["answered_whole"] == all(r.status == "ok" for r in own)


@given(run_rows())
def test_the_path_is_a_chain_without_gaps(rows: list[RequestRow]) -> None:
    path = critical_path(frame(rows)).collect()
    for turns in path.partition_by("session_id"):
        turns = turns.sort("path_index")
        assert turns["path_index"].to_list() == list(range(turns.height))
        assert turns["start_ns"].to_list()[1:] == turns["end_ns"].to_list()[:-1]
        assert turns["gate_turn_id"].to_list()[1:] == turns["turn_id"].to_list()[:-1]
        parts = turns.select(pl.sum_horizontal(f"{part}_ns" for part in PARTS)).to_series()
        assert parts.to_list() == (turns["end_ns"] - turns["start_ns"]).to_list()


def test_the_path_goes_through_the_sub_agent_that_ended_last() -> None:
    main = turn_row("s", "m0", 0, None, phases_ns=(0, 0, 0, 10 * MS, 0))
    quick = turn_row("s", "q0", 0, main, agent_id="quick", phases_ns=(0, 0, 0, 20 * MS, 0))
    slow = turn_row(
        "s", "s0", 0, main, agent_id="slow", think_ns=5 * MS, phases_ns=(7 * MS, 0, 0, 90 * MS, 0)
    )
    after = turn_row("s", "m1", 1, slow, tool_ns=0, phases_ns=(0, 0, 0, 10 * MS, 1 * MS))
    rows = [main, quick, slow, after]
    assert critical_path(frame(rows)).collect()["turn_id"].to_list() == ["m0", "s0", "m1"]
    (row,) = sessions(frame(rows)).collect().to_dicts()
    assert row["session_ns"] == (10 + 5 + 7 + 90 + 10 + 1) * MS
    assert (row["decode_ns"], row["think_ns"], row["queue_ns"]) == (110 * MS, 5 * MS, 7 * MS)
    assert (row["path_turns"], row["subagent_turns"]) == (3, 2)


def test_a_sub_agent_that_outlives_its_parent_ends_the_session() -> None:
    main = turn_row("s", "m0", 0, None, phases_ns=(0, 0, 0, 10 * MS, 0))
    child = turn_row("s", "c0", 0, main, agent_id="c", phases_ns=(0, 0, 0, 500 * MS, 0))
    last = turn_row("s", "m1", 1, main, phases_ns=(0, 0, 0, 10 * MS, 0))
    (row,) = sessions(frame([main, child, last])).collect().to_dicts()
    assert row["session_ns"] == 510 * MS


def test_a_path_whose_gate_has_no_row_starts_there_and_still_adds_up() -> None:
    rows = agent_session(1, 6)[3:]  # as if the first rows were torn off
    (row,) = sessions(frame(rows)).collect().to_dicts()
    assert row["path_turns"] == 3
    assert sum(row[f"{part}_ns"] for part in PARTS) == row["session_ns"]


def test_times_that_break_the_rules_are_put_down_to_the_client_and_still_add_up() -> None:
    first = turn_row("s", "t0", 0, None, phases_ns=(0, 0, 0, 10 * MS, 0))
    late = turn_row("s", "t1", 1, first, phases_ns=(0, 0, 0, 10 * MS, 2 * MS))
    for name in ("scheduled_ns", "sent_ns", "first_token_ns", "end_ns"):
        setattr(late, name, getattr(late, name) + 3 * MS)  # the driver was 3 ms late to schedule it
    (row,) = sessions(frame([first, late])).collect().to_dicts()
    assert row["session_ns"] == 25 * MS
    assert row["client_ns"] == 5 * MS
    assert sum(row[f"{part}_ns"] for part in PARTS) == row["session_ns"]


def test_turns_that_wait_for_each_other_do_not_hang_the_walk() -> None:
    rows = agent_session(1, 3)
    rows[0].gate_turn_id = rows[2].turn_id
    (row,) = sessions(frame(rows)).collect().to_dicts()
    assert row["path_turns"] == 3
    assert sum(row[f"{part}_ns"] for part in PARTS) == row["session_ns"]


def test_a_session_with_fewer_rows_than_it_was_to_have_is_cut_off_and_not_whole() -> None:
    rows = [*agent_session(1, 3), *agent_session(2, 3), *agent_session(3, 3)]
    for row, session_turns in zip(rows, [7, 7, 7, 3, 3, 3, None, None, None], strict=True):
        row.session_turns = session_turns
    table = sessions(frame(rows)).collect()
    assert table["cut_off"].to_list() == [True, False, False]
    assert table["answered_whole"].to_list() == [False, True, True]
    assert table["session_turns"].to_list() == [7, 3, None]
    assert table["session_ns"].null_count() == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9))
def test_sessions_at_once_are_those_that_a_count_at_every_start_finds(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int]]
) -> None:
    rows = []
    for number, (start, think, length) in enumerate(spans):
        first = turn_row(f"s{number}", "a", 0, None, origin_ns=start * MS, think_ns=think * MS)
        last = failed_row(f"s{number}", "b", 1, first, "boom")
        last.end_ns = (last.scheduled_ns or 0) + length * MS
        rows += [first, last, skipped_row(f"s{number}", "c", 2)]
    summary = summarise(write_run(tmp_path_factory.mktemp("t") / "run", rows))
    ends = [start + max(think + length, 0.1) for start, think, length in spans]
    starts = [start for start, _, _ in spans]
    at_once = [sum(s <= at < e for s, e in zip(starts, ends, strict=True)) for at in starts]
    assert summary["sessions_at_once_max"] == max(at_once)
    assert summary["session_start_times"] == len(set(starts))
