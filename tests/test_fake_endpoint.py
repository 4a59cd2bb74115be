"""The fake endpoint itself: real clients read what it sends, and each fault looks as it says."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any, get_args

import aiohttp
import pytest
from fake_endpoint import FakeEndpoint, Fault, Reply, ToolUse, fake_endpoint_thread

from agentload._options import Api

PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
}
BODY = {"model": "m", "stream": True, "max_tokens": 6, "messages": [{"role": "user", "content": "hi"}]}


async def ask(endpoint: FakeEndpoint, api: Api, **more: Any) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(endpoint.url + PATHS[api], json={**BODY, **more}) as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize("api", PATHS)
async def test_a_stream_has_as_many_words_as_asked_for(api: Api) -> None:
    async with FakeEndpoint() as endpoint:
        status, body = await ask(endpoint, api)
        assert (status, body.count(b"six"), body.count(b"seven")) == (200, 5 if api == "responses" else 1, 0)
        (seen,) = endpoint.requests
        assert (seen.path, seen.body["max_tokens"], json.loads(seen.raw)) == (PATHS[api], 6, seen.body)
        assert seen.answered_ns is not None
        assert seen.answered_ns >= seen.received_ns
        _, whole = await ask(endpoint, api, stream=False)
        assert " one two three four five six" in whole.decode()


@pytest.mark.parametrize("fault", get_args(Fault))
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", PATHS)
async def test_every_fault_ends(fault: Fault, stream: bool, api: Api) -> None:
    """Whatever the fault, the client is told of an end, once stalled answers are released."""
    async with FakeEndpoint(lambda number, body: Reply(fault=fault)) as endpoint:
        asking = asyncio.ensure_future(ask(endpoint, api, stream=stream))
        if fault in ("stall", "no_first_token"):
            await endpoint.stalled.wait()
            endpoint.release()
        breaks = {"close", "reset", "not_http", "reset_in_stream", "half_event", "bad_chunk"}
        if fault in breaks:
            with pytest.raises((aiohttp.ClientError, OSError)):
                await asking
        else:
            assert (await asking)[0] == 200
        endpoint._script = lambda number, body: Reply()
        assert (await ask(endpoint, api))[0] == 200


async def test_a_refusal_and_a_tool_call() -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        if number == 0:
            return Reply(status=429, headers={"retry-after": "1"}, message="slow down")
        return Reply(text="", tool_calls=[ToolUse("f", '{"a": [1, 2, 3]}')])

    async with FakeEndpoint(script) as endpoint:
        assert (await ask(endpoint, "messages"))[0] == 429
        _, body = await ask(endpoint, "messages")
        events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
        parts = [
            event["delta"].get("partial_json", "")
            for event in events
            if "index" in event and "delta" in event
        ]
        assert json.loads("".join(parts)) == {"a": [1, 2, 3]}


def test_in_a_thread() -> None:
    with fake_endpoint_thread() as endpoint:
        request = urllib.request.Request(f"{endpoint.url}/v1/completions", b'{"max_tokens": 2}')
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["choices"][0]["text"] == " one two"
        with urllib.request.urlopen(f"{endpoint.url}/v1/models") as response:
            assert json.load(response)["data"][0]["id"] == "m"
