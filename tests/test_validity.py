"""Whether a run's figures are the endpoint's: the verdict over a run's rows."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from run_rows import MS, a_manifest, write_run

from agentload._validity import LEAST_TURNS, Verdict, judge, judge_run
from agentload_traces import Baseline, ClientRow, ErrorFigures, RequestRow, RunReader, RunWriter

INTERVAL_NS = 100 * MS
TTFT_NS = 50 * MS


def turns(
    count: int = 60, *, at_a_time: int = 1, late_ns: int = 100_000, from_ns: int = 0, **fields: object
) -> list[RequestRow]:
    """Answers of 101 tokens, 10 ms a token, so many at a time."""
    rows = []
    for number in range(count):
        due_ns = from_ns + number // at_a_time * 1_200 * MS
        first_ns = due_ns + late_ns + TTFT_NS
        values: dict[str, object] = {
            "session_id": f"s{from_ns}-{number}",
            "turn_id": "t",
            "turn_index": 0,
            "scheduled_ns": due_ns,
            "sent_ns": due_ns + late_ns,
            "first_token_ns": first_ns,
            "end_ns": first_ns + 1_000 * MS,
            "output_tokens": 101,
            "reported_output_tokens": 101,
            "unread_bytes": 300,
            "worker": 0,
        }
        rows.append(RequestRow(**{**values, **fields}))  # type: ignore[arg-type]
    return rows


def intervals(
    count: int = 300,
    *,
    from_ns: int = 0,
    active: int = 1,
    lag_ns: int = 150_000,
    cpu: float = 0.3,
    worker: int = 0,
) -> list[ClientRow]:
    return [
        ClientRow(
            at_ns=from_ns + number * INTERVAL_NS,
            span_ns=INTERVAL_NS,
            worker=worker,
            active_turns=active,
            loop_lag_ns=lag_ns,
            cpu_ns=int(cpu * INTERVAL_NS),
        )
        for number in range(1, count + 1)
    ]


def baseline(error_ms: float, *, streams: int = 12, trusted: int | None = None, lost: int = 0) -> Baseline:
    figures = ErrorFigures(count=1_000, p50_ns=1, p99_ns=int(error_ms * MS), max_ns=int(error_ms * MS))
    return Baseline(
        step_ns=291_000,
        streams=streams,
        tokens=300,
        ttft=figures,
        gap=figures,
        send_late=figures,
        lost_tokens=lost,
        cpu_us_per_token=7.0,
        trusted_streams=trusted,
    )


def only_reason(verdict: Verdict) -> str:
    assert not verdict.valid
    (reason,) = verdict.reasons
    return reason


def test_a_client_that_keeps_up_gives_a_valid_run() -> None:
    assert judge(intervals(), turns()) == Verdict(True, ())
    assert judge(intervals(), turns(), baseline(0.4, trusted=12)) == Verdict(True, ())


def test_late_sends_are_told_with_the_figures_they_spoil_and_from_when_on() -> None:
    on_time = turns(40)
    late = turns(80, at_a_time=8, late_ns=9 * MS, from_ns=100_000 * MS)
    reason = only_reason(judge(intervals(), [*on_time, *late]))
    assert reason == (
        "TTFT and session times are not to be trusted from 8 turns at a time on: turns were late by more than"
        " 5 ms in 80 of 80 turns (p99 9 ms; the median TTFT from when turns were sent is 50 ms)."
    )
    assert " on: " not in only_reason(judge(intervals(), turns(late_ns=9 * MS)))
    one_stumble = [*on_time, *turns(1, late_ns=900 * MS, from_ns=100_000 * MS)]
    assert judge(intervals(), one_stumble).valid


def test_an_attempt_that_had_to_wait_before_it_was_sent_again_is_not_late() -> None:
    again = turns(30, late_ns=2_000 * MS, attempt=1, from_ns=200_000 * MS)
    assert judge(intervals(), [*turns(), *again]).valid
    retried = turns(30, late_ns=100 * MS, status="retried", from_ns=200_000 * MS)
    assert judge(intervals(), [*turns(), *retried]).valid


def test_what_was_warm_up_does_not_count() -> None:
    cold = turns(60, late_ns=400 * MS, warmup=True)
    steady = turns(60, from_ns=100_000 * MS)
    slow = intervals(100, lag_ns=300 * MS, cpu=1.0)
    assert judge([*slow, *intervals(from_ns=100_000 * MS)], [*cold, *steady]).valid
    assert not judge([*slow, *intervals(from_ns=100_000 * MS)], [*turns(), *steady]).valid


def test_a_lagging_loop_spoils_what_is_as_short_as_the_lag() -> None:
    ttft = only_reason(judge(intervals(lag_ns=7 * MS), turns()))
    assert ttft.startswith("TTFT and session times are not to be trusted: the event loop was late by more")
    both = judge(intervals(lag_ns=30 * MS), turns())
    assert [reason.partition(" are")[0] for reason in both.reasons] == [
        "TTFT and session times",
        "Gaps between tokens (ITL) and output speed",
    ]
    assert "the median gap is 10 ms" in both.reasons[1]
    idle = intervals(300, from_ns=90_000 * MS, lag_ns=500 * MS, active=0)
    assert judge([*intervals(), *idle], turns()).valid


def test_a_full_core_of_any_worker_spoils_everything_from_when_on() -> None:
    calm = [row for worker in (0, 1) for row in intervals(worker=worker, active=1)]
    full = [
        *intervals(50, from_ns=60_000 * MS, active=20, cpu=0.97, worker=0),
        *intervals(50, from_ns=60_000 * MS, active=20, cpu=0.4, worker=1),
    ]
    reason = only_reason(judge([*calm, *full], turns()))
    assert reason == (
        "TTFT, gaps between tokens, session times and throughput are not to be trusted from 32 turns at a"
        " time on: a process took more than 90% of a core in 50 of 100 intervals (p99 97% of a core)."
    )


def test_an_endpoint_ahead_of_the_client_spoils_the_gaps() -> None:
    reason = only_reason(judge(intervals(), turns(unread_bytes=200_000)))
    assert reason.startswith("Gaps between tokens (ITL) and output speed are not to be trusted")
    assert "more than 64 KB in 60 of 60 turns (p99 195 KB)" in reason


@pytest.mark.parametrize(
    ("counted", "reported", "ratio"),
    [(101, 240, "2.38"), (101, 50, "0.50"), (101, 110, None), (101, None, None)],
)
def test_token_counts_that_differ_by_far_are_called_a_mismatch(
    counted: int, reported: int | None, ratio: str | None
) -> None:
    verdict = judge(intervals(), turns(output_tokens=counted, reported_output_tokens=reported))
    if ratio is None:
        assert verdict.valid
    else:
        assert f"token-count mismatch, the endpoint counts {ratio} output tokens" in only_reason(verdict)


def test_the_machines_own_error_counts_against_what_was_measured() -> None:
    small = judge(intervals(), turns(), baseline(3.0))
    assert small.valid  # of 50 ms and of gaps of 10 ms
    large = judge(intervals(), turns(), baseline(8.0))
    assert "own error was 8 ms at p99 with 12 streams at a time, of a median of 50 ms" in only_reason(large)
    assert judge(intervals(), turns(), baseline(40.0)).reasons[1].startswith("Gaps between tokens")
    # One stream of 291 us is trusted, so 34 turns of 10 ms a token are.
    assert judge(intervals(), turns(at_a_time=30), baseline(40.0, trusted=1)).valid
    many = judge(intervals(), turns(80, at_a_time=40), baseline(40.0, trusted=1))
    assert "not to be trusted from 35 turns at a time on" in many.reasons[0]
    lost = only_reason(judge(intervals(), turns(), baseline(0.1, trusted=12, lost=3)))
    assert lost.startswith("Token counts are not to be trusted: this machine lost 3 tokens")


def test_a_few_turns_are_too_few() -> None:
    assert "only 9 turns answered, 10 are needed" in only_reason(judge(intervals(), turns(LEAST_TURNS - 1)))
    assert "no turn was answered" in only_reason(judge(intervals(), turns(20, status="failed")))
    assert "no turn was answered" in only_reason(judge([], []))
    assert judge([], []).valid is None
    # What is known to be wrong stays so.
    late = judge(intervals(), turns(LEAST_TURNS - 1, late_ns=400 * MS))
    assert (late.valid, len(late.reasons)) == (False, 1)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[ClientRow], list[RequestRow]]:
    random_ = random.Random(draw(st.integers(0, 10_000)))
    late_ms = draw(st.sampled_from([0, 1, 4, 5, 6, 30]))
    rows = turns(draw(st.integers(0, 120)), at_a_time=draw(st.sampled_from([1, 3, 8])))
    for row in rows:
        assert row.sent_ns is not None
        row.sent_ns += random_.choice([0, 0, 0, late_ms]) * MS
        row.unread_bytes = random_.choice([None, 100, 70_000 if late_ms > 5 else 100])
    client = intervals(draw(st.integers(0, 120)), active=draw(st.sampled_from([0, 1, 9])))
    for interval in client:
        interval.loop_lag_ns = random_.choice([0, 0, 0, late_ms]) * MS
        interval.cpu_ns = int(random_.choice([0.2, 0.95 if late_ms > 5 else 0.5]) * INTERVAL_NS)
    return client, rows


@given(run=runs(), data=st.data())
def test_a_client_that_did_worse_never_makes_an_invalid_run_valid(
    run: tuple[list[ClientRow], list[RequestRow]], data: st.DataObject
) -> None:
    client, rows = run
    before = judge(client, rows)
    share = data.draw(st.sampled_from([0.02, 0.3, 1.0]))
    random_ = random.Random(data.draw(st.integers(0, 10_000)))
    what = data.draw(st.sampled_from(["late", "unread", "lag", "cpu"]))
    worse_rows = [structs.replace(row) for row in rows]
    worse_client = [structs.replace(row) for row in client]
    for row in worse_rows:
        if random_.random() < share and row.sent_ns is not None:
            if what == "late":
                row.sent_ns += random_.randrange(40 * MS)
            elif what == "unread":
                row.unread_bytes = (row.unread_bytes or 0) + random_.randrange(200_000)
    for interval in worse_client:
        if random_.random() < share:
            if what == "lag":
                interval.loop_lag_ns += random_.randrange(90 * MS)
            elif what == "cpu":
                interval.cpu_ns += random_.randrange(INTERVAL_NS)
    after = judge(worse_client, worse_rows)
    assert before.valid is not False or after.valid is False
    assert (after.valid is True) == (not after.reasons)


@given(run=runs())
def test_frames_and_rows_are_judged_alike_in_any_order(
    run: tuple[list[ClientRow], list[RequestRow]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    client, rows = run
    told = judge(client, rows)
    assert judge(client[::-1], rows[::-1]) == told
    path = tmp_path_factory.mktemp("run") / "run"
    with RunWriter(path, a_manifest(clock="wall")) as writer:
        for row in rows:
            writer.add_request(row)
        for interval in client:
            writer.add_client(interval)
        writer.flush()
        assert judge_run(path, writer.manifest) == told
        writer.finish("complete")
    assert judge_run(path, RunReader(path).manifest) == told
    reader = RunReader(path)
    assert judge(reader.client().collect(), reader.requests().collect()) == told


def test_the_last_line_of_a_journal_may_be_half_written(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", turns(20), status="running", clock="wall")
    whole = judge_run(path, RunReader(path).manifest)
    with (path / "requests.jsonl").open("ab") as journal:
        journal.write(b'{"session_id": "s')
    assert judge_run(path, RunReader(path).manifest) == whole
    assert whole.valid


def test_arrivals_are_never_in_memory(tmp_path: Path) -> None:
    rows = turns(1_000)
    for row in rows:
        row.arrival_dt_us, row.arrival_tokens = [291] * 5_000, [1] * 5_000
    path = write_run(tmp_path / "run", rows, status="running", clock="wall")
    assert (path / "requests.jsonl").stat().st_size > 25_000_000
    judge([], [])  # what it imports is not counted
    tracemalloc.start()
    try:
        judge_run(path, RunReader(path).manifest)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5_000_000


def test_three_hundred_thousand_turns_are_judged() -> None:
    count = 300_000
    due_ns = pl.int_range(count, eager=True) * MS
    frame = pl.DataFrame({"scheduled_ns": due_ns}).with_columns(
        status=pl.lit("ok"),
        sent_ns=pl.col("scheduled_ns") + 50_000,
        first_token_ns=pl.col("scheduled_ns") + TTFT_NS,
        end_ns=pl.col("scheduled_ns") + TTFT_NS + 300 * MS,
        output_tokens=pl.lit(301),
        reported_output_tokens=pl.lit(301),
        attempt=pl.lit(0),
        warmup=pl.lit(None, dtype=pl.Boolean),
        unread_bytes=pl.lit(None, dtype=pl.Int64),
    )
    assert judge(intervals(3_000, active=350), frame).valid
