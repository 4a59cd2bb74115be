"""The HTTP server under faults and admission, and whom and what a request says that it is."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from server_fixtures import HELLO, IDS, WatchedEngine, post, stream
from test_server_connections import raw_request, send_raw
from test_server_pacing import Clock, Sink, submit, until

from agentload_simbackend import CLASS_HEADER, CONTENT_HEADER, Drain, Refuse, Reset, Stall
from agentload_simbackend._pacing import Pacer
from agentload_simbackend._server import SimServer
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces import SpecError

MS = 1_000_000


async def test_a_stream_that_a_fault_ends_is_reset_in_its_middle() -> None:
    clock = Clock()
    engine = FixedStepEngine(step_ns=MS, faults=[Reset(at_s=0.0035)])
    async with SimServer(engine, clock=clock) as server:
        reader, writer = await raw_request(server, {"max_tokens": 100})
        await reader.readuntil(b"\r\n\r\n")
        clock.now_ns = 3 * MS
        seen = await reader.readuntil(b'"content":""')  # the role; then an event for each of three steps
        while seen.count(b'"content":"') < 4:
            seen += await reader.readuntil(b"\n\n\r\n")
        clock.now_ns = 4 * MS
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
    assert b"[DONE]" not in seen


class Collector(asyncio.Protocol):
    """Keeps all that comes, and how the connection ended."""

    def __init__(self) -> None:
        self.data = b""
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)


async def test_tokens_that_were_out_when_a_fault_came_are_sent_before_it() -> None:
    clock = Clock()
    engine = WatchedEngine(step_ns=MS, faults=[Reset(at_s=0.0035)])
    async with SimServer(engine, clock=clock) as server:
        loop, port = asyncio.get_running_loop(), int(server.url.rsplit(":", 1)[1])
        transport, collector = await loop.create_connection(Collector, "127.0.0.1", port)
        send_raw(transport, {"max_tokens": 100})
        await engine.was_submitted.wait()
        clock.now_ns = 50 * MS
        assert isinstance(await collector.ended, ConnectionResetError)
    # The event of the role, and three steps of a token.
    assert collector.data.count(b'"content":"') == 4
    assert collector.data.endswith(b"\n\n\r\n")
    assert b'"finish_reason":"' not in collector.data


async def test_a_client_that_does_not_read_is_reset_all_the_same() -> None:
    clock = Clock()
    pacer = Pacer(FixedStepEngine(step_ns=1_000, faults=[Reset(at_s=0.000_005)]), clock)
    slow = Sink([])
    slow.buffered = 10**6
    answer = submit(pacer, 0, 10_000, slow)
    clock.now_ns = 10_000
    await until(answer.written.done)
    assert isinstance(answer.written.exception(), ConnectionResetError)
    assert pacer.running == 0
    pacer.close()


def test_the_engine_for_tests_refuses_faults_that_it_does_not_know() -> None:
    for fault in (Drain(), Stall(for_s=1.0)):
        with pytest.raises(SpecError, match=f"has no {type(fault).__name__}"):
            FixedStepEngine(faults=[Reset(), fault])
        with pytest.raises(SpecError, match=f"has no {type(fault).__name__}"):
            FixedStepEngine().inject(fault, 0)


async def test_an_answer_that_is_not_streamed_becomes_a_503() -> None:
    async with (
        SimServer(FixedStepEngine(step_ns=MS, faults=[Reset(at_s=0.01)]), clock=(clock := Clock())) as server,
        aiohttp.ClientSession(base_url=server.url) as client,
    ):
        asked = asyncio.create_task(post(client, max_tokens=100))
        while not server._engine.submitted:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
        clock.now_ns = 20 * MS
        status, body = await asked
    assert status == 503
    assert body["error"] == {
        "message": "the connection broke",
        "type": "service_unavailable_error",
        "param": None,
        "code": "connection_reset",
    }


@pytest.mark.parametrize(
    ("fault", "status", "kind", "code", "retry_after"),
    [
        (Refuse(status=429, retry_after_s=1.5), 429, "rate_limit_error", "rate_limit_exceeded", "2"),
        (Refuse(status=503, retry_after_s=3), 503, "service_unavailable_error", "service_unavailable", "3"),
        (Refuse(status=503), 503, "service_unavailable_error", "service_unavailable", None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refused_request_gets_the_status_and_when_to_come_back(
    fault: Refuse, status: int, kind: str, code: str, retry_after: str | None, streamed: bool
) -> None:
    engine = FixedStepEngine(step_ns=MS, faults=[fault])
    async with SimServer(engine) as server, aiohttp.ClientSession(base_url=server.url) as client:
        body = {"model": "m", "messages": HELLO, "stream": streamed}
        async with client.post("/v1/chat/completions", json=body) as response:
            assert response.status == status
            assert response.headers.get("Retry-After") == retry_after
            error = (await response.json())["error"]
    assert (error["type"], error["code"]) == (kind, code)


CLASSES: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({}, {}, "standard"),
    ({CLASS_HEADER: "batch"}, {}, "batch"),
    ({}, {"priority": -1}, "interactive"),
    ({}, {"priority": 0}, "standard"),
    ({}, {"priority": None, "nvext": None}, "standard"),
    ({}, {"priority": 10}, "batch"),
    ({}, {"nvext": {"agent_hints": {"priority": 5}}}, "interactive"),
    ({}, {"nvext": {"agent_hints": {"priority": -5}}}, "batch"),
    ({}, {"nvext": {"agent_hints": {"priority": 0, "osl": 7}, "extra_fields": ["timing"]}}, "standard"),
    ({}, {"nvext": {"agent_hints": {"strict_priority": 2, "priority": -1}}}, "interactive"),
    ({}, {"nvext": {"agent_hints": {"latency_sensitivity": 1.2}}}, "interactive"),
    ({}, {"nvext": {}}, "standard"),
    # Dynamo's hints go before vLLM's field, and the header before both.
    ({}, {"priority": 10, "nvext": {"agent_hints": {"priority": 1}}}, "interactive"),
    ({CLASS_HEADER: "standard"}, {"priority": 3, "nvext": {"agent_hints": {"priority": 9}}}, "standard"),
]


@pytest.mark.parametrize(("headers", "body", "expected"), CLASSES)
async def test_the_latency_class_of_a_request(
    client: aiohttp.ClientSession,
    engine: WatchedEngine,
    headers: dict[str, str],
    body: dict[str, Any],
    expected: str,
) -> None:
    await stream(client, headers=headers, max_tokens=1, **body)
    assert [each.latency_class for each in engine.submitted] == [expected]


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        (
            {CLASS_HEADER: "urgent"},
            {},
            "Invalid header x-agentload-class: 'urgent'; must be interactive, standard or batch.",
        ),
        ({CLASS_HEADER: ""}, {}, "Invalid header x-agentload-class: ''; must be"),
        ({}, {"priority": "high"}, "Invalid value for 'priority': Expected `int | null`, got `str`."),
        (
            {},
            {"nvext": {"agent_hints": {"strict_priority": -1}}},
            "Invalid value for 'nvext.agent_hints.strict_priority': Expected `int` >= 0.",
        ),
    ],
)
async def test_a_class_that_is_none_is_one_line(
    client: aiohttp.ClientSession, headers: dict[str, str], body: dict[str, Any], message: str
) -> None:
    status, answer = await post(client, headers=headers, **body)
    assert status == 400
    assert answer["error"]["message"].startswith(message)


async def test_the_content_class_of_a_request() -> None:
    engine = FixedStepEngine()
    async with (
        SimServer(engine, contents=("coding", "general")) as server,
        aiohttp.ClientSession(base_url=server.url) as client,
    ):
        await post(client, max_tokens=1)
        await post(client, max_tokens=1, headers={**IDS, CONTENT_HEADER: "coding"})
        status, body = await post(client, max_tokens=1, headers={CONTENT_HEADER: "poems"})
    assert [each.content for each in engine.submitted] == [None, "coding"]
    assert (status, body["error"]["message"]) == (
        400,
        "Invalid header x-agentload-content: 'poems'; must be coding or general.",
    )


async def test_a_deployment_without_speculation_has_no_content_classes() -> None:
    async with (
        SimServer(FixedStepEngine(), contents=()) as server,
        aiohttp.ClientSession(base_url=server.url) as client,
    ):
        status, body = await post(client, max_tokens=1, headers={CONTENT_HEADER: "coding"})
    assert status == 400
    assert body["error"]["message"].endswith("this deployment does not speculate, leave it out.")
