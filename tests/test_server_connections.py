"""The HTTP server's connections: bytes on the wire, clients that go away or are slow, ports."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from server_fixtures import HELLO, WatchedEngine, post

from agentload_simbackend._server import SimServer
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces._errors import AgentloadError
from agentload_traces._tokens import count_tokens


async def raw_request(server: SimServer, body: dict[str, Any]) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    send_raw(writer, body)
    return reader, writer


def send_raw(writer: asyncio.StreamWriter | asyncio.WriteTransport, body: dict[str, Any]) -> None:
    data = json.dumps({"model": "m", "messages": HELLO, "stream": True} | body).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )


async def read_chunks(reader: asyncio.StreamReader) -> list[bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.lower().count(b"transfer-encoding: chunked") == 1
    chunks = []
    while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
        chunks.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return chunks


async def test_bytes_of_a_stream(server: SimServer) -> None:
    reader, writer = await raw_request(server, {"max_tokens": 4})
    chunks = await read_chunks(reader)
    first = json.loads(chunks[0].removeprefix(b"data: "))
    start = (
        '{"id":"%s","object":"chat.completion.chunk","created":%d,"model":"m","choices":[{"index":0,"delta":'
    )
    contents = [json.loads(chunk[6:])["choices"][0]["delta"]["content"] for chunk in chunks[1:3]]
    deltas = [
        ('{"role":"assistant","content":""}', "null"),
        (json.dumps({"content": contents[0]}, separators=(",", ":")), "null"),
        (json.dumps({"content": contents[1]}, separators=(",", ":")), "null"),
        ("{}", '"length"'),
    ]
    expected = [
        f"data: {start % (first['id'], first['created'])}{delta}"
        + f',"logprobs":null,"finish_reason":{reason}'
        "}]}\n\n"
        for delta, reason in deltas
    ]
    assert [chunk.decode() for chunk in chunks] == [*expected, "data: [DONE]\n\n"]
    assert list(map(count_tokens, contents)) == [3, 1]

    send_raw(writer, {"max_tokens": 4})  # the connection stays usable
    assert len(await read_chunks(reader)) == 5
    writer.close()
    await writer.wait_closed()


async def test_streaming_needs_http_1_1(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    data = json.dumps({"model": "m", "messages": HELLO, "stream": True}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    answer = await reader.read()
    assert b" 400 " in answer.splitlines()[0]
    message = json.loads(answer.split(b"\r\n\r\n")[1])["error"]["message"]
    assert message == (
        'A streamed answer needs HTTP/1.1, and this request is HTTP/1.0. Use HTTP/1.1, or "stream": false.'
    )
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_goes_away_cancels_its_request(
    server: SimServer, engine: WatchedEngine, streamed: bool
) -> None:
    reader, writer = await raw_request(server, {"max_tokens": 19_000, "stream": streamed})
    if streamed:
        await reader.readuntil(b'"content":" ')
    else:
        await asyncio.wait_for(engine.was_submitted.wait(), 20)
    writer.transport.abort()
    await asyncio.wait_for(engine.was_cancelled.wait(), 20)
    assert engine.cancelled == [1]


async def test_stopping_the_server_cuts_its_streams(engine: WatchedEngine) -> None:
    async with SimServer(engine) as server:
        reader, writer = await raw_request(server, {"max_tokens": 19_000})
        await reader.readuntil(b'"content":" ')
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readuntil(b"[DONE]")
    assert engine.cancelled == [1]
    writer.close()


async def test_a_slow_reader_gets_all_of_a_long_answer(engine: WatchedEngine) -> None:
    engine = WatchedEngine(step_ns=1_000, tokens_per_step=3)
    async with SimServer(engine) as server, aiohttp.ClientSession(base_url=server.url) as client:
        reader, writer = await raw_request(server, {"max_tokens": 60_000})
        await reader.readuntil(b'"content":" ')
        status, _ = await post(client, max_tokens=60_000)  # ends after the one that is not read
        assert status == 200
        text = await read_to_end(reader)
        assert text.count(b'"finish_reason":"length"') == 1
        writer.close()
        await writer.wait_closed()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while not data.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
        data += await reader.read(1 << 16)
    return data


async def test_a_port_in_use_is_one_clear_line(server: SimServer) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(AgentloadError, match=rf"cannot listen on 127\.0\.0\.1 port {port}: ") as caught:
        await SimServer(FixedStepEngine(), port=port).__aenter__()
    assert "\n" not in str(caught.value)


async def test_a_server_that_is_not_entered_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        _ = SimServer(FixedStepEngine()).pacing
