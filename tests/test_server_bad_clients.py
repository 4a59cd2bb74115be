"""Clients that send what is no HTTP, no body or no text, and a system that is short of descriptors."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from engine_driving import write_variant
from server_fixtures import WatchedEngine

from agentload._cli._serve_log import OneLinePerKind
from agentload_simbackend._chat import message_texts
from agentload_simbackend._server import SimServer
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces._errors import AgentloadError
from agentload_traces._tokens import count_tokens

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"

NOT_HTTP = {
    "method": b"F@O / HTTP/1.1\r\n\r\n",
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a second request": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01 x\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(300)) + b"\r\n",
    "long header": b"GET / HTTP/1.1\r\na: " + b"x" * 20_000 + b"\r\n\r\n",
    "long path": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "url": b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    "version": b"GET / HTTP/3.7\r\nHost: x\r\n\r\n",
    "chunk size": CHAT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a later chunk size": CHAT + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n",
    "unknown encoding": CHAT + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
    "not gzip": CHAT + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "not deflate": CHAT + b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\n\xff\xff\xff\xff",
}


async def answer_to(server: SimServer, data: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_what_is_not_http_is_answered_in_openais_shape(
    server: SimServer, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    head, _, body = (await answer_to(server, data)).rpartition(b"\r\n\r\n")
    *_, answer = head.split(b"HTTP/1.")  # of two requests, that to the second
    assert answer[2:].startswith(b"400 ")
    assert b"application/json" in answer
    error = json.loads(body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]
    assert error["message"] in caplog.messages[0]


async def test_a_body_that_is_not_gzip_is_of_no_matter_to_a_path_that_does_not_exist(
    server: SimServer, caplog: pytest.LogCaptureFixture
) -> None:
    data = NOT_HTTP["not gzip"].replace(b"completions", b"nothing")
    assert b'"message":"Not Found: POST /v1/chat/nothing"' in await answer_to(server, data)
    assert [record.exc_info for record in caplog.records] == [None]


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/nothing"])
async def test_an_unknown_expectation_is_answered_in_openais_shape(server: SimServer, path: bytes) -> None:
    answer = await answer_to(
        server, b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: foo\r\n\r\n" % path
    )
    assert answer.startswith(b"HTTP/1.1 417 ")
    assert b'{"error":{"message":"Expectation Failed: POST ' in answer


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "s"}])
async def test_messages_nested_to_any_depth_are_answered(
    client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    statuses = []
    for depth in range(920, 1_010):
        nested = b"[" * depth + b"]" * depth
        data = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a","x":%b}]}' % nested
        async with client.post("/v1/chat/completions", data=data, headers=headers) as response:
            statuses.append(response.status)
            assert response.status == 200 or "recursion" in (await response.json())["error"]["message"]
    assert set(statuses) <= {200, 400}
    assert statuses == sorted(statuses)
    assert not caplog.records


async def prompt_tokens(client: aiohttp.ClientSession, message: bytes) -> int:
    data = b'{"model":"m","max_tokens":1,"messages":[%b]}' % message
    async with client.post("/v1/chat/completions", data=data) as response:
        assert response.status == 200, await response.text()
        tokens: int = (await response.json())["usage"]["prompt_tokens"]
        return tokens


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (rb"\ud800", rb"\ufffd"),
        (rb"\uDC00 a", rb"\ufffd a"),
        (rb"a \ud83d", rb"a \ufffd"),
        (rb"\ud83d\ude00 \ude00\ud83d", rb"\ud83d\ude00 \ufffd\ufffd"),
        (rb"\ud800\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\ud800\u0041", rb"\ufffdA"),
        (rb"\ud800 \\ud800 \\\ud800", rb"\ufffd \\ud800 \\\ufffd"),
    ],
)
@pytest.mark.parametrize(
    "message",
    [
        rb'{"role":"user","content":"%b"}',
        rb'{"role":"user","content":[{"type":"text","text":"%b"}]}',
        rb'{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"%b"}}]}',
    ],
)
def test_half_a_character_is_read_as_the_replacement_character(
    message: bytes, sent: bytes, meant: bytes
) -> None:
    assert message_texts(message % sent, 0) == message_texts(message % meant, 0)


async def test_half_a_character_counts_as_tokens(client: aiohttp.ClientSession) -> None:
    tokens = await prompt_tokens(client, rb'{"role":"user","content":"a \ud800"}')
    assert tokens == count_tokens("a \ufffd")


async def test_half_a_character_in_the_model_name(client: aiohttp.ClientSession) -> None:
    data = rb'{"model":"\ud800","messages":[{"role":"user","content":"a"}],"max_tokens":1}'
    async with client.post("/v1/chat/completions", data=data) as response:
        assert (await response.json())["model"] == "\ufffd"


async def test_a_tool_call_without_arguments(client: aiohttp.ClientSession) -> None:
    message = b'{"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":%b}}]}'
    assert await prompt_tokens(client, message % b"null") == await prompt_tokens(client, message % b'""')


@pytest.mark.parametrize("path", ["lab/model-1", "lab%2Fmodel-1"])
async def test_a_model_is_found_by_its_id(engine: WatchedEngine, path: str) -> None:
    from yarl import URL

    async with SimServer(engine, model="lab/model-1") as server, aiohttp.ClientSession() as client:
        async with client.get(f"{server.url}/v1/models") as response:
            (listed,) = (await response.json())["data"]
        async with client.get(URL(f"{server.url}/v1/models/{path}", encoded=True)) as response:
            assert await response.json() == listed
        async with client.get(f"{server.url}/v1/models/lab/other") as response:
            assert response.status == 404
            error = (await response.json())["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert "lab/other" in error["message"]


@pytest.mark.parametrize("host", ["", " ", "a..b", "x" * 70])
async def test_a_host_that_is_none_is_one_clear_line(host: str) -> None:
    with pytest.raises(AgentloadError, match=r"^cannot listen on [^\n]+$"):
        await SimServer(FixedStepEngine(), host=host).__aenter__()


def record(message: str, *args: object, error: BaseException | None = None, **extra: object) -> Any:
    info = None if error is None else (type(error), error, None)
    made = logging.LogRecord("asyncio", logging.ERROR, "", 0, message, args, info)
    made.__dict__.update(extra)
    return made


def test_the_log_has_one_line_a_kind_in_ten_seconds() -> None:
    lines: list[str] = []
    now = [0.0]
    log = OneLinePerKind(lines.append, lambda: now[0])
    for port in range(5):
        log.handle(record("refused: port %s", port, kind="a"))
        log.handle(record("refused: port %s", port, kind="b"))
        log.handle(record("no accept\nsocket: 3", error=OSError(24, "Too many open files")))
    assert [line.partition(";")[0] for line in lines] == [
        "warning: refused: port 0",
        "warning: refused: port 0",
        "warning: no accept: Too many open files",
    ]
    now[0] = 10.0
    log.handle(record("refused: port %s", "9\x1b[2J", kind="a"))
    assert lines[3:] == ["warning: refused: port 9\\x1b[2J (and 4 more of this kind before)"]
    log.close()
    assert lines[4:] == ["warning: 8 more warnings of these kinds were left out"]


def test_an_error_of_the_program_keeps_its_traceback_once() -> None:
    lines: list[str] = []
    log = OneLinePerKind(lines.append, lambda: 0.0)
    for _ in range(3):
        log.handle(record("Exception in callback", error=ValueError("wrong")))
    assert [line.splitlines() for line in lines] == [
        ["warning: Exception in callback", "ValueError: wrong"],
    ]


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`agentload serve` as a process: itself, and its host and port."""
    command = [sys.executable, "-m", "agentload", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, urlsplit(json.loads(process.stdout.readline())["url"]).netloc
        finally:
            process.kill()


def test_serve_prints_one_line_for_many_bad_clients() -> None:
    with serving() as (process, netloc):
        for data in [NOT_HTTP["many headers"], NOT_HTTP["not gzip"]] * 20:
            with socket.create_connection(netloc.split(":"), timeout=60) as client:
                client.sendall(data)
                assert client.recv(65_536).startswith(b"HTTP/1.")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    lines = err.decode().splitlines()
    assert lines[0].startswith("warning: refused a client: The request is not valid HTTP (")
    assert lines[1].startswith("warning: refused a client: The body of the request cannot be read (")
    assert len(lines) < 10  # three, unless the machine takes more than 10 s for this
    assert "Traceback" not in err.decode()


def test_serve_recovers_from_a_lack_of_descriptors() -> None:
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "prlimit"):
        pytest.skip("no prlimit here")
    with serving() as (process, netloc):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (40, 40))
        clients = [socket.create_connection(netloc.split(":"), timeout=60) for _ in range(60)]
        assert process.stderr is not None
        first = process.stderr.readline().decode()
        for client in clients:
            client.close()
        connection = http.client.HTTPConnection(netloc, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "Too many open files" in first
    assert "Traceback" not in err.decode()
    assert len(err) < 2_000


def test_serve_json_is_utf8_whatever_the_terminal(tmp_path: Path) -> None:
    path = write_variant(tmp_path, "deployments/gemma4-31b/pd", name="modèle")
    command = [sys.executable, "-m", "agentload", "serve", str(path), "--port", "0", "--json"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "modèle" in json.loads(line)["deployment"]
    assert "modèle".encode() in line
