"""`agentload record` as a process: an agent before it, an endpoint behind it, a trace at the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from fake_endpoint import Reply, ToolUse, fake_endpoint_thread
from http_peers import make_certificates

from agentload._cli import cli
from agentload._record._journal import partial_path
from agentload_traces import RunReader, Session, open_trace, trace_info

RECORD = [sys.executable, "-m", "agentload", "record"]

AGENT = """
import json, os, sys, urllib.request

url, headers = os.environ["OPENAI_BASE_URL"], json.loads(sys.argv[2])
messages = [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "Fix it."}]
for turn in range(int(sys.argv[1])):
    body = {"model": "m", "messages": messages, "max_tokens": 20, "stream": True,
            "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer sk-secret",
                                      **headers})
    text, calls = "", []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or ():
                    if part.get("id"):
                        calls.append({"id": part["id"], "type": "function",
                                      "function": {"name": part["function"]["name"], "arguments": ""}})
                    calls[-1]["function"]["arguments"] += part["function"].get("arguments") or ""
    messages.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}"} for call in calls]
    if not calls:
        messages.append({"role": "user", "content": f"Go on, {turn}."})
"""


def loop(turns: int) -> Any:
    """A script: tool calls in all turns but the last."""

    def script(number: int, body: dict[str, Any]) -> Reply:
        if number % turns == turns - 1:
            return Reply(text="All is fixed.")
        call = ToolUse("run_tests", json.dumps({"path": f"tests/test_{number}.py"}), f"call_{number}")
        return Reply(text=f"I run test {number}.", tool_calls=[call])

    return script


def record(out: Path, upstream: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [*RECORD, "--upstream", upstream, "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)


def agent(turns: int, headers: Mapping[str, str] | None = None) -> list[str]:
    return ["--", sys.executable, "-c", AGENT, str(turns), json.dumps(dict(headers or {}))]


def sessions(path: Path) -> list[Session]:
    return list(open_trace(path, strict=True).sessions())


@contextlib.contextmanager
def recording(out: Path, upstream: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`agentload record` without a command, and its URL."""
    command = [*RECORD, "--upstream", upstream, "--out", str(out), "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@contextlib.contextmanager
def asking(
    url: str, body: Any, headers: Mapping[str, str] | None = None, path: str = "/v1/chat/completions"
) -> Iterator[http.client.HTTPResponse]:
    """A request whose answer has begun."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), dict(headers or {}))
        with connection.getresponse() as response:
            yield response


def ask(url: str, body: Any, headers: Mapping[str, str] | None = None) -> int:
    with asking(url, body, headers) as response:
        response.read()
        return response.status


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def replayed(trace: Path, target: str, out: Path) -> RunReader:
    command = [sys.executable, "-m", "agentload", "replay", str(trace), "--target", target, "--out", str(out)]
    command += ["--speed", "1000", "--clock", "wall"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return RunReader(out)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.zst"])
def test_a_command_is_recorded_and_its_trace_replayed_with_equal_totals(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    with fake_endpoint_thread(loop(30)) as endpoint:
        done = record(out, f"{endpoint.url}/v1", "--json", *agent(30))
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        (session,) = sessions(out)
        run = replayed(out, endpoint.url, tmp_path / "run")
        seen = endpoint.requests
    info = trace_info(out)
    assert (info.turns, info.tool_calls, info.sessions) == (30, 29, 1)
    totals = said["totals"]
    assert (totals["turns"], totals["tool_calls"]) == (30, 29)
    assert (totals["input_tokens"], totals["output_tokens"]) == (info.input_tokens, info.output_tokens)
    assert said["passed"]["answer_latency"]["p50_ms"] is not None
    assert all(call.duration_ms is not None for turn in session.turns[:-1] for call in turn.tool_calls)
    rows = run.requests().collect()
    assert rows.height == 30
    assert rows["input_tokens"].sum() == info.input_tokens
    assert run.tool_calls().collect().height == 29
    # What came is what the client sent, but for the host; the key went through, and is nowhere on disk.
    assert {each.headers["authorization"] for each in seen[:30]} == {"Bearer sk-secret"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"sk-secret" in path.read_bytes()]


def test_the_simulated_server_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    serve = [sys.executable, "-m", "agentload", "serve", "gemma4-31b/pd", "--port", "0", "--json"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        try:
            done = record(out, url, *agent(5, {"x-session-id": "my%20session"}))
            rows = replayed(out, url, tmp_path / "run").requests().collect()
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    assert "1 sessions (1 by header), 5 turns" in done.stderr
    (session,) = sessions(out)
    assert session.session_id == "my session"
    assert [turn.output_tokens for turn in session.turns] == [20] * 5
    assert rows["output_tokens"].to_list() == [20] * 5
    assert rows["input_tokens"].sum() == sum(turn.input_tokens for turn in session.turns)


def test_a_command_that_fails_is_told_and_what_it_did_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with fake_endpoint_thread() as endpoint:
        failing = agent(2)
        failing[3] += "\nsys.exit(7)"
        done = record(out, endpoint.url, *failing)
    assert done.returncode == 1
    assert "the command ended with exit code 7" in done.stderr
    assert trace_info(out).turns == 2


def test_failures_are_counted_and_told(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        return [Reply(status=429), Reply(), Reply(fault="missing_finish")][number]

    out = tmp_path / "t.jsonl"
    with fake_endpoint_thread(script) as endpoint, recording(out, endpoint.url) as (process, url):
        assert [ask(url, chat("a", stream=True)) for _ in range(3)] == [429, 200, 200]
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    totals = json.loads(stdout)["totals"]
    assert (totals["turns"], totals["retries"]) == (1, 1)
    assert totals["failed"] == {"rate_limited": 1, "cut_off": 1}
    assert (process.returncode, stderr) == (0, "")


def test_ctrl_c_once_finishes_the_answers_that_are_on_their_way(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    script = [Reply(text="one two three four", fault="stall")]
    with (
        fake_endpoint_thread(lambda number, body: script[0]) as endpoint,
        recording(out, endpoint.url) as (process, url),
    ):
        with asking(url, chat("a", stream=True)) as response:
            first = response.readline()
            process.send_signal(signal.SIGINT)
            _wait_until_refused(url)
            endpoint.release()
            rest = response.read()
        process.communicate(timeout=60)
    assert first.startswith(b"data: ")
    assert rest.endswith(b"[DONE]\n\n")
    assert process.returncode == 0
    assert trace_info(out).turns == 1
    assert not partial_path(out).exists()


def test_ctrl_c_twice_stops_and_keeps_what_was_whole(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"

    def script(number: int, body: dict[str, Any]) -> Reply:
        return Reply(text="one two three", fault="stall" if number else None)

    with fake_endpoint_thread(script) as endpoint, recording(out, endpoint.url) as (process, url):
        ask(url, chat("a", stream=True))
        with asking(url, chat("b", stream=True)) as response:
            response.readline()
            process.send_signal(signal.SIGINT)
            _wait_until_refused(url)
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=60)
        endpoint.release()
    said = json.loads(stdout)
    assert said["interrupted"]
    assert said["totals"]["failed"] == {"stopped": 1}
    assert process.returncode == 1
    assert trace_info(out).turns == 1


def _wait_until_refused(url: str) -> None:
    """The proxy has heard the signal when it takes no more connections."""
    while True:
        try:
            with asking(url, {}, path="/nothing") as response:
                response.read()
        except (ConnectionError, http.client.HTTPException):
            return


def test_a_killed_recording_leaves_a_readable_trace(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with fake_endpoint_thread() as endpoint, recording(out, endpoint.url) as (process, url):
        for session in ("a", "b", "a"):
            ask(url, chat("hi"), {"x-session-id": session})
        _wait_for_turns(partial_path(out), 3)
        process.kill()
        process.communicate()
        again = record(out, endpoint.url, "--", sys.executable, "-c", "")
    assert not out.exists()
    files = sorted(partial_path(out).iterdir())
    out.write_bytes(b"".join(file.read_bytes() for file in files))
    assert [(session.session_id, len(session.turns)) for session in sessions(out)] == [("a", 2), ("b", 1)]
    assert again.returncode == 2
    assert "left by a recording that was killed" in again.stderr


def _wait_for_turns(folder: Path, turns: int) -> None:
    while sum(file.read_bytes().count(b"\n") for file in folder.iterdir()) < turns:
        pass


def test_the_proxy_goes_on_when_the_process_that_reads_its_copies_dies(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with fake_endpoint_thread() as endpoint, recording(out, endpoint.url) as (process, url):
        ask(url, chat("a"))
        _wait_for_turns(partial_path(out), 1)
        (reader,) = _children(process.pid)
        os.kill(reader, signal.SIGKILL)
        assert ask(url, chat("b")) == 200
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "has died" in stderr
    (left,) = partial_path(out).iterdir()
    assert trace_info(left).turns == 1


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nothing_recorded_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with fake_endpoint_thread() as endpoint:
        done = record(out, endpoint.url, "--", sys.executable, "-c", "")
    assert done.returncode == 1
    assert "nothing was recorded" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "t.txt"), "must end in"),
        (("--out", "no/t.jsonl"), "cannot be made"),
        (("--upstream", "nowhere"), "must be http"),
        (("--session-header", "Authorization"), "holds a secret"),
        (("--session-header", "a b"), "is no name of a header"),
        (("--key-file", "none"), "--key-file none: No such file"),
        (("--ca-file", "none", "--upstream", "https://x"), "--ca-file none: No such file"),
        (("--host", "no.such.host.invalid"), "cannot listen"),
        (("--", "no-such-command-here"), "no such command"),
        (("--", "./not-a-program"), "./not-a-program: cannot be run: Exec format error"),
    ],
)
def test_bad_input_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("not-a-program").write_text("no interpreter is named here")
    Path("not-a-program").chmod(0o755)
    done = record(Path("t.jsonl"), "http://127.0.0.1:1", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["not-a-program"]


def test_requests_of_many_clients_at_once(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with fake_endpoint_thread(loop(4)) as endpoint, recording(out, endpoint.url) as (process, url):
        results = []

        def run() -> None:
            command = [sys.executable, "-c", AGENT, "4", "{}"]
            environment = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1"}
            results.append(subprocess.run(command, env=environment, check=False).returncode)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert results == [0] * 4
    assert trace_info(out).turns == 16
    assert [len(session.turns) for session in sessions(out)] == [4] * 4


def test_tls_to_the_endpoint(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    trusted, refused = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with fake_endpoint_thread(tls=made.server(ask=True)) as endpoint:
        tls = [
            "--ca-file",
            str(made.authority),
            "--client-cert",
            str(made.cert),
            "--client-key",
            str(made.key),
        ]
        good = record(trusted, endpoint.url, *tls, *agent(2))
        bad = record(refused, endpoint.url, *agent(1))
    assert good.returncode == 0, good.stderr
    assert trace_info(trusted).turns == 2
    assert bad.returncode == 1
    assert "502" in bad.stderr


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(cli, ["record", "--help"])
    assert "agentload record --upstream" in result.output
