"""The recording proxy passes bytes, ends and pressure as they are, and copies what it is to record."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_proxy import Between, answer, between, post, read_request

from agentload._record._upstream import Upstream, UpstreamOptions
from agentload_traces import AgentloadError

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABC-_0123456789", min_size=1, max_size=12)
VALUE = st.binary(max_size=20).filter(lambda value: not set(value) & {0, 10, 13} and value.strip() == value)
FIELDS = st.lists(
    st.tuples(
        TOKEN.filter(
            lambda name: (
                name.lower() not in {"host", "content-length", "connection", "te", "expect", "upgrade"}
            )
        ),
        VALUE,
    ),
    max_size=5,
)
TARGET = st.text("abc/%?&=.~é", max_size=20).map(lambda text: b"/" + text.encode())


def head_lines(head: bytes) -> list[bytes]:
    return head.removesuffix(b"\r\n\r\n").split(b"\r\n")


@settings(max_examples=60)
@given(
    target=TARGET,
    method=st.sampled_from([b"POST", b"PUT", b"BREW", b"DELETE"]),
    sent=FIELDS,
    came=FIELDS,
    status=st.sampled_from([b"200 OK", b"404 ", b"299 Some W\xf6rds", b"503 Slow Down"]),
    body=st.binary(max_size=2_000),
    chunks=st.lists(st.binary(min_size=1, max_size=500), max_size=6),
)
def test_requests_and_answers_pass_byte_for_byte(
    target: bytes,
    method: bytes,
    sent: list[tuple[str, bytes]],
    came: list[tuple[str, bytes]],
    status: bytes,
    body: bytes,
    chunks: list[bytes],
) -> None:
    sent_lines = [name.encode() + b": " + value for name, value in sent]
    came_head = [b"HTTP/1.1 " + status, *(name.encode() + b":" + value for name, value in came)]
    came_head.append(b"Transfer-Encoding: chunked")
    came_body = [b"%x\r\n" % len(chunk) + chunk + b"\r\n" for chunk in chunks] + [b"0\r\n\r\n"]
    arrived: list[tuple[bytes, bytes]] = []

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await read_request(reader))
        writer.write(b"\r\n".join(came_head) + b"\r\n\r\n")
        for chunk in came_body:
            writer.write(chunk)
            await writer.drain()
        await reader.read()

    async def run() -> bytes:
        async with between(endpoint) as running:
            reader, writer = await running.connect()
            lines = [method + b" " + target + b" HTTP/1.1", b"Host: here", *sent_lines]
            lines.append(b"Content-Length: %d" % len(body))
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            got = await reader.readuntil(b"\r\n\r\n")
            while not got.endswith(came_body[-1]) or len(got) < len(b"".join(came_body)):
                got += await reader.read(65536)
            writer.close()
            (head, up_body), *_ = arrived
            first, host, *rest = head_lines(head)
            assert first == method + b" " + target + b" HTTP/1.1"
            assert host == b"host: 127.0.0.1:%d" % running.upstream_port
            assert rest == [*sent_lines, b"Content-Length: %d" % len(body)]
            assert up_body == body
        return got

    assert asyncio.run(run()) == b"\r\n".join(came_head) + b"\r\n\r\n" + b"".join(came_body)


async def exchanged(running: Between, request: bytes, size: int) -> bytes:
    reader, writer = await running.connect()
    writer.write(request)
    got = await reader.readexactly(size)
    writer.close()
    return got


async def test_only_answers_of_known_apis_are_copied() -> None:
    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer(b"ok"))

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        paths = ["/v1/chat/completions?x=1", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens"]
        paths += ["/a/v1/responses", "/v1/completions", "/v1/files"]
        for path in paths:
            writer.write(post(b"body", path, "X-Session-Id: s\r\nAuthorization: Bearer k\r\n"))
            await reader.readexactly(len(answer(b"ok")))
        writer.close()
    assert [each.api for each in running.exchanges] == ["chat", "messages", "responses", "completions"]
    first = running.exchanges[0]
    assert (first.sent_fields, b"".join(first.body), first.reads[0][1]) == (
        {"x-session-id": "s"},
        b"body",
        b"ok",
    )
    assert first.start_ns <= first.reads[0][0] <= first.end_ns
    passed = running.copies.passed()
    assert (passed.recorded, passed.other_requests) == (4, 3)
    assert (passed.request_latency.count, passed.connecting.count) == (7, 1)
    assert passed.answer_latency.count >= 7


async def test_requests_may_be_pipelined() -> None:
    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(answer(body * 2))

    async with between(endpoint) as running:
        both = answer(b"aa") + answer(b"bb")
        assert await exchanged(running, post(b"a") + post(b"b"), len(both)) == both
    copied = [(b"".join(each.body), b"".join(data for _, data in each.reads)) for each in running.exchanges]
    assert copied == [(b"a", b"aa"), (b"b", b"bb")]


async def test_a_client_that_waits_for_100_continue_gets_it_from_the_endpoint() -> None:
    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(answer(await reader.readexactly(4)))

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        request = post(b"body", more="Expect: 100-continue\r\n")
        writer.write(request[:-4])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert await reader.readexactly(len(answer(b"body"))) == answer(b"body")
        writer.close()
    assert running.exchanges[0].status == 200


async def test_a_large_body_is_streamed_and_not_copied_beyond_the_limit() -> None:
    size, seen = 100 << 20, 0
    first_bytes = asyncio.Event()

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        await reader.readuntil(b"\r\n\r\n")
        while seen < size:
            seen += len(await reader.read(1 << 20))
            first_bytes.set()
        writer.write(answer(b"done"))

    async with between(endpoint, most_held_bytes=10 << 20) as running:
        reader, writer = await running.connect()
        writer.write(f"POST /v1/responses HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode())
        piece = bytes(1 << 20)
        writer.write(piece)
        await first_bytes.wait()  # before the body is whole
        for _ in range(99):
            writer.write(piece)
            await writer.drain()
        assert await reader.readexactly(len(answer(b"done"))) == answer(b"done")
        writer.close()
    assert seen == size
    assert running.exchanges == []
    assert running.copies.passed().dropped == 1


async def test_a_client_that_reads_slowly_slows_the_endpoint_down() -> None:
    size = 20 << 20

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(20):
            writer.write(bytes(1 << 20))
            await writer.drain()

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        writer.write(post(b"{}", "/v1/files"))
        await reader.readuntil(b"\r\n\r\n")
        (pair,) = running.proxy._pairs
        got = most = 0
        while data := await reader.read(1 << 16):
            got += len(data)
            for _ in range(8):  # the endpoint and the proxy run eight times as often as the client reads
                await asyncio.sleep(0)
                if pair._client is not None:
                    most = max(most, pair._client.get_write_buffer_size())
        writer.close()
    assert got == size
    assert 0 < most < 1 << 20


async def test_the_endpoint_hears_of_a_client_that_has_gone() -> None:
    gone = asyncio.Event()

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 10)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        gone.set()

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        writer.write(post(b"{}"))
        await reader.readuntil(b"x" * 10)
        writer.close()
        await gone.wait()
    assert [each.outcome for each in running.exchanges] == ["cancelled"]


@pytest.mark.parametrize("reset", [True, False])
async def test_an_answer_ends_as_the_endpoint_ended_it(reset: bool) -> None:
    came = asyncio.Event()

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 10)
        await came.wait()
        if reset:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        writer.write(post(b"{}"))
        await reader.readuntil(b"x" * 10)
        came.set()
        if reset:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            assert await reader.read() == b""
        writer.close()
    assert [each.outcome for each in running.exchanges] == ["reset" if reset else "cut_off"]


async def test_a_body_that_ends_with_its_connection_is_whole() -> None:
    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        writer.write(post(b"{}"))
        assert (await reader.read()).endswith(b"all of it")
        writer.close()
    assert [(each.outcome, each.reads[0][1]) for each in running.exchanges] == [("whole", b"all of it")]


async def test_an_endpoint_that_cannot_be_reached_is_a_502() -> None:
    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with between(endpoint) as running:
            running.proxy._upstream._port = taken.getsockname()[1]
            reader, writer = await running.connect()
            writer.write(post(b"{}"))
            got = await reader.read()
            writer.close()
    assert got.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"cannot connect to http://127.0.0.1" in got
    assert [each.outcome for each in running.exchanges] == ["unreachable"]


async def test_what_is_no_http_any_more_passes_both_ways() -> None:
    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81")
        assert await reader.readexactly(3) == b"\x00\r\n"
        writer.write(b"\x82\xff")

    async with between(endpoint) as running:
        reader, writer = await running.connect()
        writer.write(b"GET /v1/responses HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n\x81")).startswith(b"HTTP/1.1 101")
        writer.write(b"\x00\r\n")
        assert await reader.read() == b"\x82\xff"
        writer.close()
    assert running.copies.passed().blind_connections == 1


async def test_draining_finishes_answers_and_takes_no_more() -> None:
    go = asyncio.Event()
    begun = asyncio.Event()

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            begun.set()
            await go.wait()
            writer.write(answer(b"ok"))

    async with between(endpoint) as running:
        _, idle = await running.connect()
        reader, writer = await running.connect()
        writer.write(post(b"{}"))
        await begun.wait()
        draining = asyncio.create_task(running.proxy.drain())
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="Connect call failed"):
            await running.connect()
        assert not draining.done()
        go.set()
        assert await reader.read() == answer(b"ok")
        await draining
        idle.close()
        writer.close()
    assert [each.outcome for each in running.exchanges] == ["whole"]


async def test_the_path_of_the_endpoint_and_a_key_are_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-real")
    heads: list[bytes] = []

    async def endpoint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append((await read_request(reader))[0])
            writer.write(answer(b"ok"))

    async with between(endpoint, path="/api/v1", key_env="A_KEY") as running:
        size = len(answer(b"ok"))
        await exchanged(running, post(b"{}", more="Authorization: Bearer mine\r\n"), size)
        more = "anthropic-version: 2023-06-01\r\nX-Api-Key: mine\r\n"
        await exchanged(running, post(b"{}", "/v1/messages", more), size)
    chat, messages = (head_lines(head) for head in heads)
    assert chat[0] == b"POST /api/v1/chat/completions HTTP/1.1"
    assert chat[2] == b"authorization: Bearer sk-real"
    assert messages[2] == b"x-api-key: sk-real"
    assert not any(b"mine" in head for head in heads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://x"}, "must be http"),
        ({"url": "http://u:p@x"}, "holds a password"),
        ({"url": "http://x", "key_env": "NO_SUCH_KEY_HERE"}, "the environment has no such variable"),
        ({"url": "http://x", "key_env": "sk-abc-123"}, "^--key-env: must be the name of an environment"),
        ({"url": "http://x", "insecure": True}, "is not https"),
        ({"url": "https://x", "client_key": Path("k.pem")}, "needs --client-cert"),
    ],
)
def test_bad_options_are_told_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(AgentloadError, match=message):
        Upstream(UpstreamOptions(**options))  # type: ignore[arg-type]
