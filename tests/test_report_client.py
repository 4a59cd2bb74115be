"""What the report says of the client of a wall-clock run: validity, own error, lateness, attempts, counts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from report_output import report, without_scripts, words
from run_rows import MS, a_manifest, agent_session, failed_row, turn_row, write_run

from agentload_analysis import latency_table, overall, per_turn, sessions, summarise
from agentload_traces import Baseline, ClientRow, ErrorFigures, RequestRow, RunReader, RunWriter

WALL: dict[str, Any] = {"clock": "wall", "mode": "endpoint", "target": "http://host:1/v1", "conditions": ()}


def own_error(**changes: Any) -> Baseline:
    def figures(p99_us: int) -> ErrorFigures:
        return ErrorFigures(count=900, p50_ns=1, p99_ns=p99_us * 1_000, max_ns=9 * MS)

    fields: dict[str, Any] = {
        "step_ns": 291_000,
        "streams": 12,
        "tokens": 300,
        "ttft": figures(540),
        "gap": figures(320),
        "send_late": figures(80),
        "lost_tokens": 0,
        "cpu_us_per_token": 6.25,
        "trusted_streams": 12,
    }
    return Baseline(**fields | changes)


def wall_run(
    path: Path, rows: list[RequestRow], client: list[ClientRow] | None = None, **changes: Any
) -> Path:
    with RunWriter(path, a_manifest(**WALL | changes)) as writer:
        for row in rows:
            writer.add_request(row)
        for interval in client or []:
            writer.add_client(interval)
        writer.finish("complete")
    return path


def outputs(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str, dict[str, Any]]:
    """Text and page without line breaks and mark-up, and the summary of `--json`."""
    page = run.parent / "page.html"
    text = words(report(capsys, run, "--html", page))
    html = without_scripts(page.read_text(encoding="utf-8"))
    summary = json.loads(report(capsys, run, "--json"))
    return text, html.replace("&#x27;", "'").replace("&gt;", ">"), summary


def retried_row(number: int, kind: str) -> RequestRow:
    row = failed_row("session-1", "t1", 1, None, f"HTTP 429: {number}")
    row.status, row.error_kind, row.attempt = "retried", kind, number  # type: ignore[assignment]
    return row


def test_an_invalid_run_says_so_first_with_every_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = ("TTFT is not to be trusted from 8 turns at a time on: late.", "Too few turns.")
    run = wall_run(tmp_path / "run", agent_session(1, 5), valid=False, invalid_reasons=why)
    text, html, summary = outputs(run, capsys)
    assert text.startswith(f"NOT VALID: {why[0]} NOT VALID: {why[1]} 1 session, 5 turns")
    first = re.search(r'<p class="headline.*?</p>', html)
    assert first
    assert first[0] == f'<p class="headline alarm">NOT VALID: {why[0]}</p>'
    assert (summary["valid"], summary["invalid_reasons"]) == (False, list(why))


@pytest.mark.parametrize(
    ("valid", "status", "line"),
    [
        (True, "complete", "Valid: the client kept up with the endpoint."),
        (None, "complete", "Not judged: whether the client kept up with the endpoint is not recorded."),
        (None, "interrupted", "INCOMPLETE: the run was cut short"),
    ],
)
def test_a_valid_run_and_one_that_nobody_judged_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], valid: bool | None, status: str, line: str
) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 5), status=status, valid=valid, **WALL)
    out = report(capsys, run)
    assert out.startswith(line)
    assert summarise(run)["valid"] is valid
    assert "NOT VALID" not in out


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "."),
        ({"trusted_streams": 6, "lost_tokens": 3}, "; small up to 6 of them; it lost 3 tokens."),
        ({"trusted_streams": None}, "; not small even with one."),
    ],
)
def test_the_machines_own_error_stands_beside_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: str
) -> None:
    baseline = own_error(**changes)
    run = wall_run(tmp_path / "run", agent_session(1, 5), baseline=baseline)
    text, html, summary = outputs(run, capsys)
    said = (
        "Own error of this machine before the run: TTFT ±0.540 ms, gaps ±0.320 ms (p99) at 12 streams of"
        f" 3,436 tokens/s, 6.25 us of CPU a token{line}"
    )
    assert said in text
    assert said in html
    assert summary["baseline"] == msgspec.to_builtins(baseline)


def test_lateness_is_told_and_ttft_without_it_where_it_matters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_late(name: str, late_ms: float) -> tuple[str, str, dict[str, Any]]:
        rows = [row for number in range(5) for row in agent_session(number, 30, told=False)]
        for row in rows:
            assert row.scheduled_ns is not None
            assert row.first_token_ns is not None
            row.first_token_ns = row.scheduled_ns + 100 * MS
            row.sent_ns = row.scheduled_ns + round(late_ms * MS)
        rows[7].sent_ns, rows[7].attempt = rows[7].first_token_ns, 2  # it waited to be sent again
        return outputs(wall_run(tmp_path / name, rows), capsys)

    text, html, summary = run_late("late", 20)
    for shown in (text, html):
        assert "Turns were sent late by 20.0 ms at the median, 20.0 ms at p99." in shown
        assert "From when turns were sent, TTFT was 80.0 ms at the median, 80.0 ms at p99" in shown
    assert summary["send_late_ms"] == {"count": 149, "p50": 20, "p90": 20, "p99": 20, "max": 20}
    assert (summary["ttft_ms"]["p50"], summary["ttft_from_sent_ms"]["p50"]) == (100, 80)
    text, _, summary = run_late("prompt", 0.25)
    assert "Turns were sent late by 0.250 ms" in text
    assert "From when turns were sent" not in text
    assert summary["ttft_from_sent_ms"]["max"] == 99.75


def test_attempts_are_counted_by_kind_and_are_no_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = agent_session(1, 3)
    for row in rows:
        row.session_turns = 4
    failed = failed_row("session-1", "t3", 3, rows[-1], "reset")
    failed.error_kind, failed.session_turns = "reset", 4
    again = [retried_row(n, kind) for n, kind in enumerate(["rate_limited", "reset", "rate_limited"])]
    run = wall_run(tmp_path / "run", [rows[0], *again, *rows[1:], failed])
    text, html, summary = outputs(run, capsys)
    for shown in (text, html):
        assert "1 session, 4 turns" in shown
        assert "3 attempts failed and another followed, no turns here: rate_limited 2, reset 1." in shown
        assert "Kinds of failed turns: reset 1." in shown
    assert (summary["turns"], summary["answered"], summary["failed"], summary["retried"]) == (4, 3, 1, 3)
    assert summary["retried_by_kind"] == [
        {"kind": "rate_limited", "attempts": 2},
        {"kind": "reset", "attempts": 1},
    ]
    assert summary["failed_by_kind"] == [{"kind": "reset", "turns": 1}]
    assert summary["sessions_cut_off"] == 0
    assert [row["turns"] for row in summary["per_turn"]] == [1, 1, 1, 1]
    assert summary["errors"] == [{"error": "reset", "turns": 1, "texts": 1}]
    # Whoever reads the rows without a snapshot counts turns, too.
    everything = RunReader(run).requests()
    assert sessions(everything).collect()["turns"].to_list() == [4]
    assert per_turn(everything).collect()["turns"].to_list() == [1, 1, 1, 1]


def test_a_session_of_attempts_only_is_no_session_yet(tmp_path: Path) -> None:
    run = wall_run(tmp_path / "run", [*agent_session(2, 3), retried_row(0, "interrupted")])
    assert summarise(run)["sessions"] == 1
    assert sessions(RunReader(run).requests()).collect().height == 1


def test_the_warm_up_is_counted_and_in_no_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = agent_session(1, 40, arrivals=True)
    for row in rows[:15]:
        row.warmup = True
        assert row.scheduled_ns is not None
        row.first_token_ns, row.sent_ns = row.scheduled_ns + 60_000 * MS, row.scheduled_ns + 9_000 * MS
    run = wall_run(tmp_path / "run", rows, options={"warmup_s": 30.0})
    steady = wall_run(tmp_path / "steady", rows[15:])
    text, html, summary = outputs(run, capsys)
    alone = summarise(steady)
    line = (
        "15 turns of the warm-up (the first 30 s): counted, and in session times and sums of tokens, but in"
    )
    assert line in text
    assert line in html
    assert (summary["turns"], summary["answered"], summary["warmup_turns"]) == (40, 40, 15)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "queue_ms", "output_tokens_per_s_per_user", "send_late_ms"):
        assert summary[name] == alone[name], name
    assert summary["ttft_ms"]["count"] == 25
    assert summary["answered_without_tpot"] == 0
    assert sum(row["answered"] for row in summary["per_turn"]) == 40
    assert sum(row["ttft_count"] for row in summary["per_turn"]) == 25
    # A table that does not tell of a warm-up had none.
    frame = RunReader(run).requests().drop("warmup")
    assert overall(frame).collect()["ttft_count"].item() == 40


@pytest.mark.parametrize(
    ("prompt", "answer", "line"),
    [
        (1.0, 1.0, "The endpoint counts tokens as o200k_base does, of prompt and answer."),
        (1.003, 1.0, "The endpoint counts 1.003 tokens per o200k token of prompt (3,009 for 3,000), 1.000"),
        (
            1.07,
            0.9,
            "mismatch: the endpoint counts 1.07 tokens per o200k token of prompt (3,210 for 3,000), 0.90",
        ),
        (
            None,
            1.5,
            "Token-count mismatch: the endpoint counts 1.50 tokens per o200k token of answer (450 for 300).",
        ),
        (None, None, None),
    ],
)
def test_the_endpoints_own_counts_stand_beside_ours(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prompt: float | None,
    answer: float | None,
    line: str | None,
) -> None:
    rows = agent_session(1, 4)
    for row in rows:
        row.sent_tokens, row.output_tokens = 1_000, 100
        row.reported_input_tokens = None if prompt is None else round(1_000 * prompt)
        row.reported_output_tokens = None if answer is None else round(100 * answer)
    rows[3].reported_input_tokens = rows[3].reported_output_tokens = None
    text, html, summary = outputs(wall_run(tmp_path / "run", rows), capsys)
    if line is None:
        assert "per o200k token" not in text + html
        assert "o200k_base" not in text + html
    else:
        assert line in text
        assert line in html
    if line and "per o200k" in line:
        assert "Only 3 of 4 answers told it." in text
    counts = summary["token_counts"]["prompt"]
    expected: dict[str, Any] = {"answers": 0, "o200k": 0, "reported": 0, "ratio": None}
    if prompt is not None:
        reported = 3 * round(1_000 * prompt)
        expected = {"answers": 3, "o200k": 3_000, "reported": reported, "ratio": reported / 3_000}
    assert counts == expected


def test_opening_a_connection_is_timed_apart_over_all_attempts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = agent_session(1, 4, told=False)
    for row in rows:
        assert row.sent_ns is not None
        row.send_ns = 200_000
        row.first_byte_ns = row.sent_ns + 200_000 + 30 * MS
    failed = retried_row(0, "reset")
    for row in (rows[0], failed):
        assert row.sent_ns is not None
        row.dns_ns, row.connect_ns, row.send_ns = 2 * MS, 5 * MS, 200_000
        row.first_byte_ns = row.sent_ns + 7 * MS + 200_000 + 30 * MS
    text, html, summary = outputs(wall_run(tmp_path / "run", [failed, *rows]), capsys)
    assert summary["connections_ms"] == {
        "dns": {"count": 2, "p50": 2, "p99": 2},
        "connect": {"count": 2, "p50": 5, "p99": 5},
        "tls": {"count": 0, "p50": None, "p99": None},
        "send": pytest.approx({"count": 5, "p50": 0.2, "p99": 0.2}),
        "first_byte": {"count": 5, "p50": 30, "p99": 30},
    }
    assert "name looked up 2 2.00 ~2.00 connected 2 5.00 ~5.00 request sent 5 0.200 ~0.200" in text
    assert "first byte, from then 5 30.0 ~30.0" in text
    assert "encrypted" not in text
    cells = [re.sub(r"<.*?>", " ", row) for row in re.findall(r"<tr>.*?</tr>", html)]
    assert "connected 2 5.00 ~5.00" in [words(cell).strip() for cell in cells]


def test_urls_and_workers_are_told_apart_if_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for number in range(4) for row in agent_session(number, 5)]
    for number, row in enumerate(rows):
        row.url_index, row.worker = number % 2, 0
    options = {"more_urls": ("http://other:2/v1",)}
    text, html, summary = outputs(wall_run(tmp_path / "run", rows, options=options), capsys)
    assert [row["url_index"] for row in summary["per_url"]] == [0, 1]
    assert summary["per_worker"] == []
    for number, name in enumerate(("http://host:1/v1", "http://other:2/v1")):
        own = summarise(wall_run(tmp_path / f"only-{number}", rows[number::2]))
        row = summary["per_url"][number]
        assert (row["turns"], row["answered"], row["failed"]) == (10, 10, 0)
        assert row["ttft_p50_ms"] == own["ttft_ms"]["p50"]
        assert row["speed_p99_tokens_per_s"] == own["output_tokens_per_s_per_user"]["p99"]
        assert f"{name} 10 10 0 {own['ttft_ms']['p50']:.1f}" in text
        assert f">{name}</td>" in html
    assert "By worker" not in text


def test_the_clients_own_load_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = [
        ClientRow(
            at_ns=(number + 1) * 100 * MS,
            span_ns=100 * MS,
            active_turns=number % 13,
            loop_lag_ns=2 * MS,
            cpu_ns=40 * MS,
            unread_bytes=700 + number,
            rss_bytes=90_000_000,
        )
        for number in range(120)
    ]
    text, html, summary = outputs(wall_run(tmp_path / "run", agent_session(1, 3), client), capsys)
    line = (
        "The client: at most 12 turns on their way at once in a process; event loop late by 2.00 ms at the"
        " median, 2.00 ms at p99 (the worst of each 0.1 s); 40% of a core at the median, 40% at the most."
    )
    assert line in text
    assert line in html
    assert summary["client"] == {
        "intervals": 120,
        "active_turns_max": 12,
        "loop_lag_ms": {"count": 120, "p50": 2, "p90": 2, "p99": 2, "max": 2},
        "cpu_share": {"p50": 0.4, "p99": 0.4, "max": 0.4},
        "unread_bytes_max": 819,
        "rss_bytes_max": 90_000_000,
    }


def test_virtual_time_has_no_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = agent_session(1, 5)
    for row in rows:
        row.worker, row.send_ns, row.reported_input_tokens, row.sent_tokens = 0, 5, 7, 3
    plain = report(capsys, write_run(tmp_path / "plain", agent_session(1, 5)))
    run = write_run(tmp_path / "run", rows, baseline=own_error())
    assert report(capsys, run) == plain
    summary = summarise(run)
    nothing = ("valid", "send_late_ms", "ttft_from_sent_ms", "connections_ms", "token_counts", "client")
    assert [summary[name] for name in nothing] == [None] * len(nothing)
    assert (summary["retried"], summary["per_url"], summary["per_worker"]) == (0, [], [])


def test_kinds_of_failed_turns_are_told_in_virtual_time_too(tmp_path: Path) -> None:
    rows = agent_session(1, 3)
    for number, kind in enumerate(("reset", "unavailable", "reset")):
        rows.append(failed_row(f"other-{number}", "t0", 0, None, "HTTP 503"))
        rows[-1].error_kind = kind  # type: ignore[assignment]
    assert summarise(write_run(tmp_path / "run", rows))["failed_by_kind"] == [
        {"kind": "reset", "turns": 2},
        {"kind": "unavailable", "turns": 1},
    ]


NEW_COLUMNS = [
    *("attempt", "error_kind", "finish_reason", "warmup", "url_index", "worker", "dns_ns", "connect_ns"),
    *("tls_ns", "send_ns", "first_byte_ns", "unread_bytes", "reasoning_tokens", "cache_written_tokens"),
]


@pytest.mark.parametrize("finished", [True, False])
def test_runs_from_before_these_columns_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: bool
) -> None:
    rows = agent_session(1, 5, told=False)
    rows.append(failed_row("session-1", "t5", 5, rows[-1], "HTTP 500"))
    status = "complete" if finished else "running"
    run = write_run(tmp_path / "run", rows, status=status, **WALL)
    if finished:
        (run / "client.parquet").unlink(missing_ok=True)
        old = pl.read_parquet(run / "requests.parquet").drop(NEW_COLUMNS)
        old.write_parquet(run / "requests.parquet")
    else:
        (run / "client.jsonl").unlink(missing_ok=True)
        lines = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
        kept = [{name: value for name, value in line.items() if name not in NEW_COLUMNS} for line in lines]
        (run / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    text, _, summary = outputs(run, capsys)
    assert (summary["answered"], summary["failed"], summary["warmup_turns"]) == (5, 1, 0)
    assert summary["client"] is None
    assert summary["ttft_ms"]["count"] == 5
    assert "Kinds of failed turns" not in text
    assert "Connections" not in text


def test_latencies_by_worker_need_no_more_than_a_column(tmp_path: Path) -> None:
    rows = [
        turn_row(f"s{n}", "t", 0, None, phases_ns=(0, 5 * MS, 0, 5 * MS, 0), worker=n % 2) for n in range(4)
    ]
    requests = RunReader(wall_run(tmp_path / "run", rows)).requests()
    table = latency_table(requests, ["worker"]).collect()
    assert table["turns"].to_list() == [2, 2]
