"""The null server tells the truth, and a baseline what the client makes of it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agentload._baseline import measure_baseline, most_streams, null_server
from agentload._baseline_figures import Level, Sample, baseline_of, kept_up, verdict
from agentload._cli import cli
from agentload_traces import Baseline, count_tokens

STEP_NS = 500_000
MS = 1_000_000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with null_server(STEP_NS) as served:
        yield served


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30)


def ask(connection: socket.socket, path: str, body: bytes, request_id: str = "") -> bytes:
    """Send a request and read its answer whole; returns its body, chunks joined."""
    headers = f"Host: l\r\nContent-Length: {len(body)}\r\nX-Request-ID: {request_id}\r\n"
    connection.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode() + body)
    data = b""
    while True:
        data += connection.recv(1 << 20)
        head_bytes, _, rest = data.partition(b"\r\n\r\n")
        if b"content-length" in head_bytes:
            length = int(head_bytes.rpartition(b"content-length:")[2].split()[0])
            if len(rest) == length:
                return rest
        elif rest.endswith(b"0\r\n\r\n"):
            return b"".join(_chunks(rest))


def _chunks(data: bytes) -> Iterator[bytes]:
    while data:
        size, _, data = data.partition(b"\r\n")
        yield data[: int(size, 16)]
        assert data[int(size, 16) :].startswith(b"\r\n")
        data = data[int(size, 16) + 2 :]


def chat(tokens: int, padding: int = 0) -> bytes:
    message = {"role": "user", "content": "x" * padding}
    return json.dumps({"messages": [message], "stream": True, "max_completion_tokens": tokens}).encode()


def truth(connection: socket.socket) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ask(connection, "/truth", b""))
    return told


@pytest.mark.parametrize(("tokens", "padding"), [(1, 0), (7, 0), (200, 2_000_000)])
def test_the_null_server_answers_with_as_many_tokens_as_asked_and_tells_when(
    url: str, tokens: int, padding: int
) -> None:
    with connect(url) as connection:
        truth(connection)
        began_ns = perf_counter_ns()
        body = ask(connection, "/v1/chat/completions", chat(tokens, padding), "mine")
        ended_ns = perf_counter_ns()
        told = truth(connection)
        assert truth(connection) == {}
    *events, done = body.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert len(deltas) == tokens + 1
    assert count_tokens("".join(deltas)) == tokens
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == tokens
    (only,) = told.values()
    assert list(told) == ["mine"]
    # One clock for both processes; a token is never before its step.
    received_ns, written_ns = only["received_ns"], only["written_ns"]
    assert began_ns < received_ns < written_ns[0]
    assert written_ns[-1] < ended_ns
    assert len(written_ns) == tokens
    assert written_ns == sorted(written_ns)
    assert all(at_ns > received_ns + number * STEP_NS for number, at_ns in enumerate(written_ns))


def test_a_client_that_goes_away_or_does_not_read_disturbs_nobody(url: str) -> None:
    with connect(url) as gone, connect(url) as silent, connect(url) as connection:
        for rude in (gone, silent):
            body = chat(5_000)
            head = f"POST / HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
            rude.sendall(head.encode() + body)
        gone.close()
        for number in range(3):
            ask(connection, "/v1/chat/completions", chat(20), f"r{number}")
        told = truth(connection)
    assert {f"r{number}" for number in range(3)} <= set(told)
    assert all(len(each["written_ns"]) in (20, 5_000) for each in told.values())


def test_the_null_server_ends_with_its_standard_input() -> None:
    command = [sys.executable, "-m", "agentload._null_server", "--step-ns", "1000000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.communicate()
        assert process.returncode == 0


def test_a_baseline_counts_every_answer_gap_and_token() -> None:
    baseline = measure_baseline(3, 40, 2_000, STEP_NS, duration_s=0.3)
    assert (baseline.streams, baseline.step_ns, baseline.lost_tokens) == (3, STEP_NS, 0)
    assert 32 <= baseline.tokens <= 40
    answers = baseline.ttft.count
    assert answers >= 3
    assert baseline.gap.count == answers * (baseline.tokens - 1)
    assert baseline.send_late.count == answers
    for errors in (baseline.ttft, baseline.gap, baseline.send_late):
        assert 0 <= errors.p50_ns <= errors.p99_ns <= errors.max_ns
    # What was sent late is part of the error, and never before it was due.
    assert baseline.ttft.max_ns >= baseline.send_late.p50_ns
    assert baseline.cpu_us_per_token > 0
    assert baseline.trusted_streams in (None, 1, 2, 3)


def samples(
    answers: int, tokens: int, *, ttft_error_ns: int = 200_000, late_ns: int = 50_000, step_ns: int = STEP_NS
) -> list[Sample]:
    """Answers that the client saw after the same delay each, their tokens exactly a step apart."""
    made = []
    for number in range(answers):
        due_ns = number * 1_000 * MS
        received_ns = due_ns + late_ns + 10_000
        written = [received_ns + (token + 1) * step_ns for token in range(tokens)]
        behind_ns = ttft_error_ns - late_ns - 10_000
        seen = [at_ns + behind_ns for at_ns in written]
        made.append(Sample(due_ns, due_ns + late_ns, received_ns, written, seen, 0))
    return made


def level(made: list[Sample], **changes: Any) -> Level:
    values: dict[str, Any] = {"streams": 4, "tokens": 30, "step_ns": STEP_NS, "samples": made}
    values |= {"cpu_ns": 300 * MS, "took_ns": 1_000 * MS}
    return Level(**values | changes)


def test_figures_are_the_client_less_the_truth() -> None:
    made = samples(100, 30)
    slow = made[7]
    # Its last token was stamped 2 ms late, and it went out 3 ms later than due.
    seen = [*slow.seen_ns[:-1], slow.seen_ns[-1] + 2 * MS]
    made[7] = slow._replace(seen_ns=seen, due_ns=slow.due_ns - 3 * MS)
    baseline = baseline_of(level(made), 4)
    assert (baseline.ttft.count, baseline.ttft.p50_ns, baseline.ttft.max_ns) == (100, 200_000, 3_200_000)
    assert baseline.ttft.p99_ns == 200_000 + (3_200_000 - 200_000) // 100
    assert (baseline.gap.count, baseline.gap.p99_ns, baseline.gap.max_ns) == (100 * 29, 0, 2 * MS)
    assert (baseline.send_late.p50_ns, baseline.send_late.max_ns) == (50_000, 3_050_000)
    assert baseline.cpu_us_per_token == 300_000 / 3_000
    assert kept_up(level(made))


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": []},
        {"samples": samples(100, 30, ttft_error_ns=1_100_000)},
        {"samples": [*samples(99, 30), samples(1, 30)[0]._replace(lost_tokens=1)]},
        {"cpu_ns": 950 * MS},
        {"samples": [each._replace(written_ns=[MS] * 30, seen_ns=[MS] * 30) for each in samples(9, 30)]},
    ],
    ids=["nothing", "late", "lost", "full core", "server too slow"],
)
def test_a_client_has_not_kept_up(changes: dict[str, Any]) -> None:
    assert not kept_up(level(samples(100, 30), **changes))


@given(data=st.data())
def test_larger_errors_never_make_a_client_keep_up(data: st.DataObject) -> None:
    errors_ns = st.integers(0, 4 * MS)
    made = [
        each
        for number in range(data.draw(st.integers(1, 12)))
        for each in samples(1, 5, ttft_error_ns=data.draw(errors_ns))
    ]
    before = level(made)
    worse = [each._replace(due_ns=each.due_ns - data.draw(errors_ns)) for each in made]
    lost = data.draw(st.integers(0, 1))
    worse[0] = worse[0]._replace(lost_tokens=lost)
    after = level(worse, cpu_ns=data.draw(st.integers(300 * MS, 1_000 * MS)))
    assert kept_up(before) or not kept_up(after)
    assert not (lost and kept_up(after))


@given(limit=st.integers(0, 300), too_many=st.integers(1, 300))
def test_the_most_streams_are_found_by_a_few_trials_below(limit: int, too_many: int) -> None:
    limit = min(limit, too_many - 1)
    tried: list[int] = []

    async def holds(streams: int) -> bool:
        tried.append(streams)
        return streams <= limit

    found = asyncio.run(most_streams(holds, too_many))
    assert len(tried) <= 4
    assert len(set(tried)) == len(tried)
    assert all(1 <= streams < too_many for streams in tried)
    assert found == max((streams for streams in tried if streams <= limit), default=None)
    if limit >= 1:
        assert found is not None
        # What was not tried is within a factor.
        assert limit / found <= max(2, too_many**0.125 * 1.5)


def a_baseline(trusted: int | None) -> Baseline:
    return baseline_of(level(samples(100, 30), streams=12, step_ns=291_000), trusted)


@pytest.mark.parametrize(
    ("trusted", "code", "said"),
    [
        (12, 0, "Up to 12 streams at 3,436 tokens/s each this machine's own error stays below 1 ms for TTFT"),
        (5, 1, "Up to 5 streams at 3,436 tokens/s each this machine's own error stays below"),
        (None, 1, "Not even with one stream at 3,436 tokens/s this machine's own error stays below"),
    ],
)
def test_the_command_prints_errors_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, trusted: int | None, code: int, said: str
) -> None:
    asked = []

    def measured(*shape: object) -> Baseline:
        asked.append(shape)
        return a_baseline(trusted)

    monkeypatch.setattr("agentload._baseline.measure_baseline", measured)
    result = CliRunner().invoke(cli, ["baseline", "--tokens", "250", "--seconds", "1"], standalone_mode=False)
    assert result.return_value == code
    assert said in result.output
    assert ("With 12 it does not." in result.output) == (trusted == 5)
    assert "TTFT too long by          0.200 ms at the median, 0.200 at p99" in result.output
    assert "of 2,900 gaps" in result.output
    assert asked == [(12, 250, 16_384, 291_000, 1.0)]
    assert verdict(a_baseline(trusted)) in result.output


def test_the_command_measures_and_prints_json() -> None:
    arguments = [
        "baseline",
        "--streams",
        "2",
        "--step-us",
        "1000",
        "--tokens",
        "20",
        "--seconds",
        "0.2",
        "--json",
    ]
    command = [sys.executable, "-m", "agentload", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    baseline = msgspec.json.decode(done.stdout, type=Baseline)
    assert (baseline.streams, baseline.step_ns, baseline.lost_tokens) == (2, 1_000_000, 0)
    assert done.returncode == (0 if baseline.trusted_streams == 2 else 1)


@pytest.mark.parametrize(
    "arguments",
    [["--streams", "0"], ["--step-us", "nan"], ["--tokens", "1"], ["--seconds", "1", "--step-us", "1e6"]],
)
def test_bad_values_are_usage_errors(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["baseline", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output
