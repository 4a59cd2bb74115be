"""`agentload serve` as a process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from engine_driving import write_variant

SERVE = [sys.executable, "-m", "agentload", "serve"]


def ask(url: str, **body: Any) -> Any:
    data = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hello world"}]} | body
    ).encode()
    with urllib.request.urlopen(f"{url}/v1/chat/completions", data=data, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_until_it_is_stopped(stop: signal.Signals) -> None:
    command = [*SERVE, "gemma4-31b/pd", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        body = ask(ready["url"], max_tokens=20)
        process.send_signal(stop)
        out, err = process.communicate(timeout=60)
    assert ready["event"] == "ready"
    assert ready["deployment"] == "gemma4-31b/pd"
    assert any("estimate" in condition for condition in ready["conditions"])
    assert body["usage"]["completion_tokens"] == 20
    assert body["agentload"]["prefill_ns"] > 0
    assert process.returncode == 0
    assert json.loads(out) == {
        "event": "stopped",
        "pacing": {"writes": 0, "lateness_p50_ms": None, "lateness_p99_ms": None, "lateness_max_ms": None},
    }
    assert err == b""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_streams_are_cut_when_it_is_stopped(stop: signal.Signals) -> None:
    with subprocess.Popen(
        [*SERVE, "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        url = urlsplit(json.loads(process.stdout.readline())["url"])
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        body = {
            "model": "m",
            "stream": True,
            "max_tokens": 100_000,
            "messages": [{"role": "user", "content": "a"}],
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        response = connection.getresponse()
        assert b'"role":"assistant"' in response.readline()
        process.send_signal(stop)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)) as cut:
            response.read()
        out, err = process.communicate(timeout=60)
        connection.close()
    if isinstance(cut.value, http.client.IncompleteRead):
        assert b"[DONE]" not in cut.value.partial
    assert (process.returncode, err) == (0, b"")
    assert json.loads(out)["event"] == "stopped"
    with socket.create_server((url.hostname, url.port)):
        pass  # the port is free again


def test_serve_takes_the_cache_block_of_the_deployment(tmp_path: Path) -> None:
    path = write_variant(tmp_path, "deployments/gemma4-31b/pd", prefill__cache_block=16)
    command = [*SERVE, str(path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        messages = [{"role": "user", "content": " word" * 100}]
        ask(url, messages=messages)
        body = ask(url, messages=[*messages, {"role": "user", "content": " more"}])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def test_serve_says_what_its_numbers_rest_on() -> None:
    with subprocess.Popen([*SERVE, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("ready: "):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert lines[0].startswith("gemma4-31b/pd: ")
    assert any("is fitted" in line for line in lines)
    assert "http://127.0.0.1:" in lines[-1]
    assert out == "stopped; nothing was streamed\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such"], "error: no deployment named 'no/such'"),
        (["--host", "192.0.2.1"], "error: cannot listen on"),
        (["--host", ""], "error: cannot listen on host ''"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "SCHED_FIFO"), reason="no SCHED_FIFO here")
def test_realtime_without_the_privilege_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from agentload._cli._serve import command
    from agentload_traces import AgentloadError

    def forbidden(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    result = CliRunner().invoke(command, ["--realtime", "--port", "0"])
    assert isinstance(result.exception, AgentloadError)
    assert "SCHED_FIFO is not permitted" in str(result.exception)
