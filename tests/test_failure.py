"""Chaos: each way in which an endpoint fails, under each policy: the right rows and exit code, no hang."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from fake_endpoint import FakeUsage, Reply, fake_endpoint_thread

from agentload._cli._replay_options import exit_code
from agentload._options import Api, EndpointOptions, FailureOptions, LoadOptions, ReplayOptions
from agentload._replay import replay
from agentload._replay_result import ReplayResult
from agentload_simbackend import TURN_HEADER
from agentload_traces import AgentloadError, RunReader, ToolCall, Turn, write_trace

TURNS = 4
BROKEN = 1
"""The turn whose answers fail; the others are answered."""

FAILURES: dict[str, tuple[Reply, str]] = {
    "429": (Reply(status=429, headers={"retry-after": "0"}), "rate_limited"),
    "500": (Reply(status=500), "unavailable"),
    "503": (Reply(status=503, headers={"retry-after-ms": "5"}), "unavailable"),
    "529": (Reply(status=529), "unavailable"),
    "400": (Reply(status=400), "refused"),
    "404 page": (Reply(status=404, body=b"<html>no</html>"), "refused"),
    "close": (Reply(fault="close"), "reset"),
    "reset": (Reply(fault="reset"), "reset"),
    "not http": (Reply(fault="not_http"), "bad_stream"),
    "html": (Reply(fault="html"), "not_a_stream"),
    "no first token": (Reply(fault="no_first_token"), "first_token_timeout"),
    "stall": (Reply(fault="stall"), "stall_timeout"),
    "slow": (Reply(chunk_delay_s=0.2), "total_timeout"),
    "reset in stream": (Reply(fault="reset_in_stream"), "cut_off"),
    "half event": (Reply(fault="half_event"), "cut_off"),
    "cut in event": (Reply(fault="cut_in_event"), "cut_off"),
    "bad chunk": (Reply(fault="bad_chunk"), "bad_stream"),
    "invalid json": (Reply(fault="invalid_json"), "bad_stream"),
    "error event": (Reply(fault="error_event"), "error_event"),
    "missing finish": (Reply(fault="missing_finish"), "cut_off"),
    "empty": (Reply(text=""), "empty"),
}

HARMLESS: dict[str, Reply] = {
    "wrong usage": Reply(usage=FakeUsage(7, 999_999)),
    "no usage": Reply(usage=None),
    "whole completion": Reply(fault="json"),
    "no terminal event": Reply(fault="no_terminal"),
}


TIMEOUTS = {"no first token": "first_token_timeout_s", "stall": "stall_timeout_s", "slow": "total_timeout_s"}


def failure(name: str = "", **options: Any) -> FailureOptions:
    """Options under which the failure of this name is met; other turns have time even on a busy machine."""
    if name in TIMEOUTS:
        options[TIMEOUTS[name]] = 2.0
    return FailureOptions(retry_wait_s=0.001, **options)


def run_of(
    tmp_path: Path,
    script: Callable[[int, dict[str, Any]], Reply],
    options: FailureOptions,
    api: Api = "chat",
) -> tuple[ReplayResult, list[dict[str, Any]], list[str]]:
    """Replay one session; its rows, and the turn of each request that came."""
    turns = [
        Turn(
            session_id="s",
            turn_id=f"t{number}",
            wait_for=(f"t{number - 1}",) if number else (),
            input_tokens=200 + 40 * number,
            new_input_tokens=200 if not number else 20,
            output_tokens=20,
            tool_calls=(ToolCall(name="ls", duration_ms=1.0),),
        )
        for number in range(TURNS)
    ]
    write_trace(tmp_path / "t.jsonl", turns)
    ended: list[None] = []
    with fake_endpoint_thread(script) as endpoint:
        result = replay(
            ReplayOptions(
                trace=tmp_path / "t.jsonl",
                out=tmp_path / "run",
                target=endpoint.url,
                clock="wall",
                load=LoadOptions(concurrency=1),
                endpoint=EndpointOptions(api=api),
                failure=options,
            ),
            progress=lambda: ended.append(None),
        )
        came = [request.headers[TURN_HEADER] for request in endpoint.requests]
        endpoint.release()
    rows = RunReader(tmp_path / "run").requests().collect().to_dicts()
    assert not RunReader(tmp_path / "run").incomplete
    assert len(ended) == sum(row["status"] in ("ok", "failed") for row in rows)
    return result, rows, came


def failing_from(reply: Reply, times: int) -> Callable[[int, dict[str, Any]], Reply]:
    """Answers turn `BROKEN` with `reply` so many times."""
    return lambda number, body: reply if BROKEN <= number < BROKEN + times else Reply()


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_ends_its_session(name: str, tmp_path: Path) -> None:
    reply, kind = FAILURES[name]
    result, rows, came = run_of(tmp_path, failing_from(reply, 1), failure(name))
    assert [row["status"] for row in rows] == ["ok", "failed", "skipped", "skipped"]
    assert (rows[1]["error_kind"], rows[1]["attempt"]) == (kind, 0)
    assert rows[1]["error"]
    assert "\n" not in rows[1]["error"]
    assert rows[1]["end_ns"] >= rows[1]["sent_ns"] >= rows[1]["scheduled_ns"]
    assert came == ["t0", "t1"]
    assert (result.failed, result.skipped, exit_code(result)) == (1, 2, 1)


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_sent_again_is_a_row_of_each_attempt(name: str, tmp_path: Path) -> None:
    reply, kind = FAILURES[name]
    options = failure(name, retries=2, retry_on=kind)
    result, rows, came = run_of(tmp_path, failing_from(reply, 2), options)
    assert [(row["turn_id"], row["status"], row["attempt"]) for row in rows] == [
        ("t0", "ok", 0),
        ("t1", "retried", 0),
        ("t1", "retried", 1),
        ("t1", "ok", 2),
        ("t2", "ok", 0),
        ("t3", "ok", 0),
    ]
    assert [row["error_kind"] for row in rows] == [None, kind, kind, None, None, None]
    assert all(row["arrival_dt_us"] is None for row in rows if row["status"] == "retried")
    # All attempts of a turn count from when it was due.
    assert len({row["scheduled_ns"] for row in rows[1:4]}) == 1
    assert [row["sent_ns"] for row in rows[1:4]] == sorted(row["sent_ns"] for row in rows[1:4])
    assert came == ["t0", "t1", "t1", "t1", "t2", "t3"]
    assert (result.turns, result.retried, result.failed, exit_code(result)) == (TURNS, 2, 0, 0)


@pytest.mark.parametrize("name", ["429", "reset", "half event"])
def test_retries_have_an_end(name: str, tmp_path: Path) -> None:
    reply, kind = FAILURES[name]
    result, rows, _ = run_of(tmp_path, failing_from(reply, 9), failure(retries=2, retry_on=kind))
    assert [row["status"] for row in rows] == ["ok", "retried", "retried", "failed", "skipped", "skipped"]
    assert rows[3]["attempt"] == 2
    assert exit_code(result) == 1


def test_what_is_not_named_is_not_sent_again(tmp_path: Path) -> None:
    _, rows, came = run_of(tmp_path, failing_from(FAILURES["400"][0], 1), failure(retries=5))
    assert [row["status"] for row in rows] == ["ok", "failed", "skipped", "skipped"]
    assert came == ["t0", "t1"]


def test_an_endpoint_that_asks_for_a_long_wait_is_not_asked_again(tmp_path: Path) -> None:
    reply = Reply(status=429, headers={"retry-after": "3600"})
    _, rows, came = run_of(tmp_path, failing_from(reply, 1), failure(retries=5, retry_on="rate_limited"))
    assert [row["status"] for row in rows] == ["ok", "failed", "skipped", "skipped"]
    assert came == ["t0", "t1"]


@pytest.mark.parametrize("name", FAILURES)
def test_a_session_may_go_on_after_a_failure(name: str, tmp_path: Path) -> None:
    reply, kind = FAILURES[name]
    result, rows, came = run_of(tmp_path, failing_from(reply, 1), failure(name, on_failure="continue"))
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "ok"]
    assert rows[1]["error_kind"] == kind
    assert rows[2]["gate_turn_id"] == "t1"
    assert rows[2]["scheduled_ns"] == rows[1]["end_ns"]  # it made no tool calls
    assert came == ["t0", "t1", "t2", "t3"]
    assert (result.failed, result.skipped, exit_code(result)) == (1, 0, 1)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_odd_but_whole_is_no_failure(name: str, tmp_path: Path) -> None:
    result, rows, _ = run_of(tmp_path, failing_from(HARMLESS[name], 1), failure())
    assert [row["status"] for row in rows] == ["ok"] * TURNS
    assert all(row["output_tokens"] == 20 for row in rows)
    assert exit_code(result) == 0
    if name == "wrong usage":
        assert (rows[1]["reported_input_tokens"], rows[1]["reported_output_tokens"]) == (7, 999_999)


@pytest.mark.parametrize("api", get_args(Api))
@pytest.mark.parametrize("name", ["429", "half event", "error event", "stall"])
def test_every_api_fails_and_recovers_alike(name: str, api: Api, tmp_path: Path) -> None:
    reply, kind = FAILURES[name]
    options = failure(name, retries=1, retry_on=kind)
    result, rows, _ = run_of(tmp_path, failing_from(reply, 1), options, api)
    assert [(row["status"], row["error_kind"]) for row in rows] == [
        ("ok", None),
        ("retried", kind),
        *[("ok", None)] * 3,
    ]
    assert exit_code(result) == 0


def test_an_endpoint_that_is_gone_is_a_failure_to_connect(tmp_path: Path) -> None:
    with fake_endpoint_thread() as endpoint:
        write_trace(tmp_path / "t.jsonl", [Turn(session_id="s", turn_id="t", input_tokens=9)])
    options = ReplayOptions(
        trace=tmp_path / "t.jsonl", out=tmp_path / "run", target=endpoint.url, clock="wall"
    )
    with pytest.raises(AgentloadError, match="cannot reach"):
        replay(options)
    assert not (tmp_path / "run").exists()


def test_a_key_that_an_endpoint_repeats_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTLOAD_API_KEY", "sk-secret-99")
    reply = Reply(status=401, message="no such key: Bearer sk-secret-99")
    result, rows, _ = run_of(tmp_path, failing_from(reply, 1), failure())
    assert rows[1]["error"] == result.first_error == "HTTP 401: no such key: ***"
    for path in (tmp_path / "run").iterdir():
        assert b"sk-secret-99" not in path.read_bytes()
