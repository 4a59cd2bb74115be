"""Latency tables against plain Python, and the summary of whole runs."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_rows import MS, a_manifest, agent_session, failed_row, skipped_row, turn_row, write_run

from agentload_analysis import (
    itl_gaps,
    itl_table,
    latency_table,
    overall,
    per_context,
    per_turn,
    per_turn_range,
    summarise,
    take_snapshot,
    with_metrics,
)
from agentload_traces import RequestRow, RunDirectoryError, RunReader, RunWriter, ToolCallRow

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def plain_quantile(values: list[float], q: float) -> float:
    """Linear interpolation between neighbours, in the order in which a person would do it."""
    ordered = sorted(values)
    rank = q * (len(ordered) - 1)
    below = ordered[math.floor(rank)]
    return below + (ordered[math.ceil(rank)] - below) * (rank - math.floor(rank))


def assert_distribution(row: dict[str, float | None], head: str, unit: str, values: list[float]) -> None:
    assert row[f"{head}_count"] == len(values)
    if not values:
        assert [row[f"{head}_{name}_{unit}"] for name in (*QUANTILES, "max")] == [None] * 4
        return
    for name, q in QUANTILES.items():
        assert row[f"{head}_{name}_{unit}"] == pytest.approx(plain_quantile(values, q), rel=1e-9, abs=1e-9)
    assert row[f"{head}_max_{unit}"] == pytest.approx(max(values))


@st.composite
def measured_rows(draw: st.DrawFn) -> list[RequestRow]:
    rows = []
    for number in range(draw(st.integers(1, 12))):
        count = draw(st.integers(1, 5))
        row = turn_row(
            f"s{number}",
            "t",
            draw(st.integers(0, 2)),
            None,
            phases_ns=tuple(draw(st.integers(0, 1_000)) * 1_000 for _ in range(5)),  # type: ignore[arg-type]
            told=draw(st.booleans()),
            input_tokens=draw(st.sampled_from([0, 7_999, 8_000, 100_000, 2_000_000])),
            output_tokens=draw(st.integers(1, 40)),
            arrival_dt_us=[draw(st.integers(0, 50)) for _ in range(count)],
            arrival_tokens=[draw(st.integers(1, 4)) for _ in range(count)],
            steps=draw(st.none() | st.integers(1, 40)),
        )
        if draw(st.integers(0, 4)) == 0:
            row.status = "failed"
        if draw(st.integers(0, 4)) == 0:
            row.arrival_dt_us = row.arrival_tokens = None
        rows.append(row)
    return rows


def plain_first_arrival(row: RequestRow) -> float:
    """Tokens that came at `first_token_ns`."""
    if row.arrival_tokens:
        return row.arrival_tokens[0]
    return row.output_tokens / row.steps if row.steps and row.output_tokens else 1


def plain_metrics(rows: list[RequestRow], *, arrivals: bool) -> dict[tuple[str, str], list[float]]:
    values: dict[tuple[str, str], list[float]] = {
        ("ttft", "ms"): [],
        ("queue", "ms"): [],
        ("tpot", "ms"): [],
        ("speed", "tokens_per_s"): [],
        ("itl", "ms"): [],
    }
    for row in (row for row in rows if row.status == "ok"):
        assert row.first_token_ns is not None
        assert row.scheduled_ns is not None
        assert row.end_ns is not None
        assert row.output_tokens is not None
        values["ttft", "ms"].append((row.first_token_ns - row.scheduled_ns) / MS)
        if row.queue_ns is not None:
            values["queue", "ms"].append(row.queue_ns / MS)
        later_tokens = row.output_tokens - plain_first_arrival(row)
        if later_tokens > 0:
            tpot = (row.end_ns - row.first_token_ns) / later_tokens / MS
            values["tpot", "ms"].append(tpot)
            if tpot > 0:
                values["speed", "tokens_per_s"].append(1_000 / tpot)
            if not arrivals:
                values["itl", "ms"].append(tpot)
        if arrivals:
            gaps = list(zip(row.arrival_dt_us or [], row.arrival_tokens or [], strict=True))[1:]
            for dt_us, tokens in gaps:
                values["itl", "ms"] += [dt_us / tokens / 1_000] * tokens
    return values


def frame(rows: list[RequestRow], folder: Path) -> pl.LazyFrame:
    return RunReader(write_run(folder / "run", rows)).requests()


@given(rows=measured_rows())
def test_every_table_equals_plain_python(
    tmp_path_factory: pytest.TempPathFactory, rows: list[RequestRow]
) -> None:
    requests = frame(rows, tmp_path_factory.mktemp("t"))
    arrivals = any(row.status == "ok" and row.arrival_dt_us is not None for row in rows)

    def check(table_row: dict[str, float | None], own: list[RequestRow]) -> None:
        assert table_row["turns"] == len(own)
        assert table_row["failed"] == sum(row.status == "failed" for row in own)
        assert table_row["output_tokens"] == sum(row.output_tokens or 0 for row in own if row.status == "ok")
        for (head, unit), values in plain_metrics(own, arrivals=arrivals).items():
            assert_distribution(table_row, head, unit, values)

    by_turn = per_turn(requests).collect().to_dicts()
    assert [row["turn_index"] for row in by_turn] == sorted({row.turn_index for row in rows})
    for table_row in by_turn:
        check(table_row, [row for row in rows if row.turn_index == table_row["turn_index"]])
    edges = {0: (0, 7_999), 8_000: (8_000,), 64_000: (100_000,), 1_024_000: (2_000_000,)}
    by_context = per_context(requests).collect().to_dicts()
    assert sum(row["turns"] for row in by_context) == len(rows)
    for table_row in by_context:
        own = [row for row in rows if row.input_tokens in edges[table_row["context_from_tokens"]]]
        check(table_row, own)
    (everything,) = overall(requests).collect().to_dicts()
    check(everything, rows)


def test_context_buckets_have_names(tmp_path: Path) -> None:
    lengths = [7_999, 8_000, 20_000, 128_000, 300_000, 1_023_999, 1_024_000]
    rows = [turn_row("s", f"t{n}", n, None, input_tokens=length) for n, length in enumerate(lengths)]
    assert per_context(frame(rows, tmp_path)).collect()["context"].to_list() == [
        *("0K-8K", "8K-16K", "16K-32K", "128K-256K", "256K-512K", "512K-1024K", "1024K and more")
    ]


@pytest.mark.parametrize(
    ("turns", "width"), [(1, 1), (15, 1), (16, 2), (201, 20), (300, 25), (20_000, 1_429)]
)
def test_turn_ranges_cover_every_turn_once_in_at_most_15_rows(tmp_path: Path, turns: int, width: int) -> None:
    rows = [turn_row("s", f"t{n}", n, None) for n in range(turns)]
    table = per_turn_range(frame(rows, tmp_path)).collect()
    assert table.height <= 15
    assert table["turns"].sum() == turns
    covered = [n for r in table.to_dicts() for n in range(r["turn_index"], r["last_turn_index"] + 1)]
    assert covered == list(range(turns))
    assert table["turns"][0] == 1
    assert table["turns"].max() == min(width, max(1, turns - 1))


def test_one_token_answers_have_a_ttft_but_no_tpot_and_no_speed(tmp_path: Path) -> None:
    row = turn_row("s", "t", 0, None, phases_ns=(1 * MS, 2 * MS, 3 * MS, 0, 0), output_tokens=1)
    (line,) = overall(frame([row], tmp_path)).collect().to_dicts()
    assert (line["ttft_count"], line["ttft_p50_ms"]) == (1, 6.0)
    assert (line["tpot_count"], line["speed_count"], line["itl_count"]) == (0, 0, 0)
    assert line["speed_p50_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("changes", "tpot_ms"),
    [
        ({"arrival_dt_us": [5, 3_000, 3_000], "arrival_tokens": [4, 4, 2], "steps": 3}, 1.0),
        ({"steps": 5}, 0.75),
        ({"steps": 2}, 1.2),
        ({}, 6 / 9),
        ({"arrival_dt_us": [5], "arrival_tokens": [10], "steps": 3}, None),
        ({"steps": 1}, None),
    ],
)
def test_tokens_of_the_first_arrival_are_not_in_tpot(
    tmp_path: Path, changes: dict[str, object], tpot_ms: float | None
) -> None:
    row = turn_row("s", "t", 0, None, phases_ns=(0, 1 * MS, 0, 6 * MS, 0), output_tokens=10, **changes)
    (line,) = with_metrics(frame([row], tmp_path)).collect().to_dicts()
    assert line["tpot_ms"] == (None if tpot_ms is None else pytest.approx(tpot_ms))
    speed = line["output_tokens_per_s"]
    assert speed == (None if tpot_ms is None else pytest.approx(1_000 / tpot_ms))


def test_answers_that_came_in_one_arrival_are_counted_as_without_tpot(tmp_path: Path) -> None:
    rows = agent_session(1, 6, arrivals=True)
    for row in rows[:2]:
        row.arrival_dt_us, row.arrival_tokens = [5], [row.output_tokens or 0]
    summary = summarise(write_run(tmp_path / "run", rows))
    assert summary["answered_without_tpot"] == 2
    assert summary["tpot_ms"]["count"] == 4


def test_latencies_group_by_any_columns(tmp_path: Path) -> None:
    rows = agent_session(1, 6, arrivals=True)
    for row, replica, depth in zip(rows, [0, 1, None, 0, 1, None], [0, 0, 0, 1, 1, 1], strict=True):
        row.replica, row.agent_depth = replica, depth
    requests = frame(rows, tmp_path)
    table = latency_table(requests, ["agent_depth", "replica"]).collect().to_dicts()
    assert {(row["agent_depth"], row["replica"]): row["turns"] for row in table} == dict.fromkeys(
        [(depth, replica) for depth in (0, 1) for replica in (None, 0, 1)], 1
    )
    steps = [len(row.arrival_tokens or []) - 1 for row in rows]
    expected = {(row.agent_depth, row.replica): 3 * n for row, n in zip(rows, steps, strict=True)}
    assert {(row["agent_depth"], row["replica"]): row["itl_count"] for row in table} == expected
    itl = itl_table(itl_gaps(requests, ["replica"]), ["replica"]).collect()
    assert dict(zip(itl["replica"], itl["itl_count"], strict=True)) == {
        replica: sum(3 * n for row, n in zip(rows, steps, strict=True) if row.replica == replica)
        for replica in (None, 0, 1)
    }


def a_mixed_run(folder: Path) -> Path:
    rows = [row for session in range(12) for row in agent_session(session, 9)]
    cut = agent_session(12, 3)
    rows += [*cut, failed_row("session-12", "t3", 3, cut[-1], "HTTP 500"), skipped_row("session-12", "t4", 4)]
    calls = [ToolCallRow(session_id="session-0", turn_id="t0", call_index=0, start_ns=0, end_ns=1)]
    return write_run(folder / "run", rows, calls=calls, sessions_planned=13, turns_planned=113)


def test_the_summary_counts_and_does_not_mix_failures_into_times(tmp_path: Path) -> None:
    summary = summarise(a_mixed_run(tmp_path))
    assert (summary["sessions"], summary["sessions_answered_whole"], summary["tool_calls"]) == (13, 12, 1)
    counts = [summary[name] for name in ("turns", "answered", "failed", "skipped", "turns_planned")]
    assert counts == [113, 111, 1, 1, 113]
    assert summary["errors"] == [{"error": "HTTP 500", "turns": 1, "texts": 1}]
    whole = [row for row in summary["per_session"] if row["answered_whole"]]
    assert summary["session_time_s"]["count"] == len(whole) == 12
    times = [row["session_time_s"] for row in whole]
    assert summary["session_time_s"]["p90"] == pytest.approx(plain_quantile(times, 0.9))
    assert summary["session_time_s"]["max"] == max(times) < 999
    split = summary["session_split_s"]
    assert sum(part["sum"] for part in split.values()) == pytest.approx(sum(times))
    assert sum(part["share"] for part in split.values()) == pytest.approx(1)
    assert split["tool"]["sum"] == pytest.approx(sum(row["tool_s"] for row in whole))
    assert summary["ttft_ms"]["count"] == 111
    assert sum(row["turns"] for row in summary["per_turn"]) == 113
    assert summary["output_tokens_per_s_per_user"]["p10"] < summary["output_tokens_per_s_per_user"]["p50"]
    assert (summary["incomplete"], summary["status"]) == (False, "complete")
    assert summary["conditions"] == ["The hand-off link is an estimate."]


def test_the_summary_says_where_itl_comes_from(tmp_path: Path) -> None:
    with_arrivals = write_run(tmp_path / "a", agent_session(1, 5, arrivals=True))
    without = write_run(tmp_path / "b", agent_session(1, 5))
    assert summarise(with_arrivals)["itl_source"] == "arrivals"
    summary = summarise(without)
    assert summary["itl_source"] == "tpot"
    assert summary["itl_ms"] == summary["tpot_ms"]


def test_the_same_rows_give_the_same_summary_finished_or_not(tmp_path: Path) -> None:
    rows = agent_session(1, 30)
    finished = summarise(write_run(tmp_path / "a", rows))
    running = summarise(write_run(tmp_path / "b", rows, status="running"))
    assert running.pop("incomplete")
    assert not finished.pop("incomplete")
    for summary in (finished, running):
        del summary["run"], summary["status"]
    assert running == finished


def test_a_run_without_rows_has_a_summary_of_nothing(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path / "run", [], status="interrupted"))
    assert (summary["sessions"], summary["turns"], summary["incomplete"]) == (0, 0, True)
    assert summary["session_time_s"] == {"count": 0, "p50": None, "p90": None, "p99": None, "max": None}
    assert summary["per_turn"] == summary["per_context"] == summary["per_session"] == []


def test_what_the_endpoint_does_not_tell_is_unknown_not_zero(tmp_path: Path) -> None:
    rows = agent_session(1, 5, told=False)
    for row in rows:
        row.cached_tokens = None
    summary = summarise(write_run(tmp_path / "run", rows, mode="endpoint"))
    assert summary["cached_tokens_total"] is None
    assert summary["queue_ms"] == {"count": 0, "p50": None, "p90": None, "p99": None, "max": None}
    assert summary["session_split_s"]["first_token_wait"]["sum"] > 0
    assert summary["session_split_s"]["prefill"]["sum"] == 0


def test_tokens_asked_for_are_summed_over_answers_and_unknown_unless_known_of_all(tmp_path: Path) -> None:
    rows = agent_session(1, 3)
    for row in rows:
        row.output_tokens_asked = 50
    failed = failed_row("session-1", "t3", 3, rows[-1], "HTTP 500")
    failed.output_tokens_asked = 1_000
    assert summarise(write_run(tmp_path / "a", [*rows, failed]))["output_tokens_asked_total"] == 150
    rows[1].output_tokens_asked = None
    assert summarise(write_run(tmp_path / "b", rows))["output_tokens_asked_total"] is None
    assert summarise(write_run(tmp_path / "c", [failed]))["output_tokens_asked_total"] is None


def test_damaged_rows_give_one_clear_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 5))
    content = (run / "requests.parquet").read_bytes()
    (run / "requests.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunDirectoryError, match="cannot be read") as caught:
        summarise(run)
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_before_a_damaged_line_are_reported_and_the_lines_from_it_on_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 5), status="running")
    journal = run / "requests.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]) + b"#\xff{ not json\n" + lines[3])
    summary = summarise(run)
    assert (summary["turns"], summary["torn_lines"], summary["incomplete"]) == (3, 2, True)


def a_hundred_token_turn(number: int) -> RequestRow:
    return turn_row(f"s{number}", "t", 0, None, input_tokens=100, phases_ns=(1, 1, 1, 1, 1))


def test_a_report_of_a_run_that_goes_on_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunReader.requests
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        writer.add_request(a_hundred_token_turn(0))
        writer.flush()

        def requests_while_the_run_goes_on(reader: RunReader) -> pl.LazyFrame:
            rows = real(reader)
            writer.add_request(a_hundred_token_turn(1))
            writer.flush()
            return rows

        monkeypatch.setattr(RunReader, "requests", requests_while_the_run_goes_on)
        summary = summarise(tmp_path / "run")
    assert summary["turns"] == 1
    assert summary["input_tokens_total"] == 100
    assert [row["turns"] for row in summary["per_turn"]] == [1]
    assert summary["ttft_ms"]["count"] == len(summary["per_session"]) == 1


def test_a_snapshot_does_not_grow_with_its_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", a_manifest()) as writer:
        writer.add_request(a_hundred_token_turn(0))
        writer.flush()
        snapshot = take_snapshot(tmp_path / "run")
        before = summarise(snapshot)
        writer.add_request(a_hundred_token_turn(1))
        writer.flush()
        assert summarise(snapshot) == before
        assert summarise(tmp_path / "run")["turns"] == 2
    assert take_snapshot(snapshot) is snapshot


def test_sessions_cut_off_are_counted_and_left_out_of_session_times(tmp_path: Path) -> None:
    rows = [*agent_session(1, 4), *agent_session(2, 4), *agent_session(3, 4)]
    for row in rows:
        row.session_turns = 201 if row.session_id == "session-2" else 4
    summary = summarise(write_run(tmp_path / "run", rows, status="interrupted"))
    assert (summary["sessions"], summary["sessions_cut_off"], summary["sessions_answered_whole"]) == (3, 1, 2)
    assert summary["session_time_s"]["count"] == 2
    assert [row["cut_off"] for row in summary["per_session"]] == [False, True, False]
    whole = [row for row in summary["per_session"] if not row["cut_off"]]
    assert summary["session_split_s"]["tool"]["sum"] == pytest.approx(sum(row["tool_s"] for row in whole))
    assert summary["session_time_s"]["max"] == max(row["session_time_s"] for row in whole)


def test_a_run_of_failures_only_has_no_latency_and_no_session_time(tmp_path: Path) -> None:
    rows = [failed_row(f"s{n}", "t", 0, None, "HTTP 503") for n in range(3)]
    summary = summarise(write_run(tmp_path / "run", rows))
    assert (summary["turns"], summary["answered"], summary["failed"]) == (3, 0, 3)
    for name in (
        "ttft_ms",
        "tpot_ms",
        "itl_ms",
        "queue_ms",
        "session_time_s",
        "output_tokens_per_s_per_user",
    ):
        assert summary[name]["count"] == 0
        assert summary[name]["p50"] is None
    assert summary["input_tokens_p50"] is None
    assert summary["answered_without_tpot"] == 0
    assert {values["share"] for values in summary["session_split_s"].values()} == {None}
