"""What the tests of the HTTP server share: a watched engine, a server on it, a client of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from agentload_simbackend import EngineRequest
from agentload_simbackend._server import SimServer
from agentload_simbackend.testing import FixedStepEngine

HELLO = [{"role": "user", "content": "hello world"}]
IDS = {"x-session-id": "s", "x-agentload-turn-id": "t"}


class WatchedEngine(FixedStepEngine):
    """Tells when a request has come and when one was cancelled."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.was_submitted = asyncio.Event()
        self.was_cancelled = asyncio.Event()

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        super().submit(request, now_ns)
        self.was_submitted.set()

    def cancel(self, request_id: int, now_ns: int) -> None:
        super().cancel(request_id, now_ns)
        if self.cancelled:
            self.was_cancelled.set()


@pytest.fixture
async def engine() -> WatchedEngine:
    return WatchedEngine(step_ns=100_000, tokens_per_step=3, prefill_ns=1_000_000, max_tokens=20_000)


@pytest.fixture
async def server(engine: WatchedEngine) -> AsyncIterator[SimServer]:
    async with SimServer(engine, seed=5, model="m", max_model_len=20_000) as running:
        yield running


@pytest.fixture
async def client(server: SimServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=server.url) as session:
        yield session


async def post(client: aiohttp.ClientSession, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
    """Ask for an answer that is not streamed: (status, parsed body)."""
    body = {"model": "any", "messages": HELLO} | body
    async with client.post("/v1/chat/completions", json=body, headers=headers) as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def stream(client: aiohttp.ClientSession, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
    """Ask for a stream: the events, parsed; the last one must be [DONE]."""
    body = {"model": "any", "messages": HELLO, "stream": True} | body
    async with client.post("/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def pieces(events: list[Any]) -> list[str]:
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    return [delta["content"] for delta in deltas if delta.get("content")]
