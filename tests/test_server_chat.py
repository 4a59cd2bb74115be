"""The HTTP server on loopback: what clients of OpenAI's chat completions get."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from engine_driving import answer, variant
from engine_driving import request as engine_request
from server_fixtures import HELLO, IDS, WatchedEngine, pieces, post, stream

from agentload_simbackend import (
    AGENT_HEADER,
    SESSION_HEADER,
    TURN_HEADER,
    Emission,
    Finished,
    Rejected,
    ServerTimes,
    _server,
    build_engine,
    encode_id,
)
from agentload_simbackend._server import SimServer
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces._tokens import count_tokens


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({}, 256),
        ({"max_tokens": None}, 256),
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 500}, 500),
        ({"max_tokens": 3, "max_completion_tokens": 65}, 65),
    ],
)
async def test_an_answer_has_exactly_the_tokens_asked_for(
    client: aiohttp.ClientSession, asked: dict[str, Any], tokens: int
) -> None:
    status, body = await post(client, **asked)
    assert status == 200
    choice = body["choices"][0]
    assert count_tokens(choice["message"]["content"]) == tokens
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": tokens,
        "total_tokens": tokens + 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    events = await stream(client, **asked)
    assert count_tokens("".join(pieces(events))) == tokens


async def test_the_text_depends_on_seed_session_and_turn_alone(
    client: aiohttp.ClientSession, engine: WatchedEngine
) -> None:
    _, whole = await post(client, headers=IDS, max_tokens=100)
    text = whole["choices"][0]["message"]["content"]
    assert "".join(pieces(await stream(client, headers=IDS, max_tokens=100))) == text
    other_turn = await stream(client, headers={**IDS, "x-agentload-turn-id": "u"}, max_tokens=100)
    assert "".join(pieces(other_turn)) != text
    async with (
        SimServer(FixedStepEngine(step_ns=1_000), seed=6) as other,
        aiohttp.ClientSession(base_url=other.url) as other_client,
    ):
        other_seed = await stream(other_client, headers=IDS, max_tokens=100)
        assert "".join(pieces(other_seed)) != text


async def test_each_decode_step_is_an_event_with_its_tokens(client: aiohttp.ClientSession) -> None:
    events = await stream(client, max_tokens=8)
    assert [count_tokens(piece) for piece in pieces(events)] == [3, 3, 2]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 4 + ["length"]
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize("tokens_per_step", [1, 2])
async def test_a_long_stream_is_whole(tokens_per_step: int) -> None:
    engine = FixedStepEngine(step_ns=20_000, tokens_per_step=tokens_per_step)
    async with SimServer(engine) as server, aiohttp.ClientSession(base_url=server.url) as client:
        got = pieces(await stream(client, headers=IDS, max_tokens=3_000))
        _, whole = await post(client, headers=IDS, max_tokens=3_000)
    assert len(got) == 3_000 // tokens_per_step
    assert "".join(got) == whole["choices"][0]["message"]["content"]


async def test_usage_comes_in_a_chunk_of_its_own_with_the_times(client: aiohttp.ClientSession) -> None:
    events = await stream(client, max_tokens=8, stream_options={"include_usage": True})
    *others, last = events
    assert all(event["usage"] is None for event in others)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 2
    assert last["usage"]["completion_tokens"] == 8
    times = last["agentload"]
    assert (times["queue_ns"], times["prefill_ns"], times["handoff_ns"]) == (0, 1_000_000, 0)
    assert 200_000 < times["decode_ns"] <= 300_000
    assert times["server_ns"] >= times["prefill_ns"] + times["decode_ns"]
    assert (times["steps"], times["replica"], times["cached_tokens"]) == (3, 0, 0)


async def test_an_answer_that_is_not_streamed_has_the_times_too(client: aiohttp.ClientSession) -> None:
    await post(client)
    _, body = await post(client)
    assert body["agentload"]["cached_tokens"] == 2
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    phases = [body["agentload"][name] for name in ("queue_ns", "prefill_ns", "handoff_ns", "decode_ns")]
    assert sum(phases) <= body["agentload"]["server_ns"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"{", None, "could not parse the JSON body"),
        (b"[" * 100_000, None, "Expected `object`"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}', None, "could not parse"),
        (b'{"messages": []}', "model", "Missing required parameter: 'model'"),
        (b'{"model": "m"}', "messages", "Missing required parameter: 'messages'"),
        (b'{"model": 3, "messages": []}', "model", "Expected `str`, got `int`"),
        (b'{"model": "m", "messages": "hello"}', "messages", "expected an array"),
        (b'{"model": "m", "messages": [ ]}', "messages", "at least one message"),
        (b'{"model": "m", "messages": [{"role": "user", "content": ""}]}', "messages", "no text"),
        (b'{"model": "m", "messages": [1]}', "messages[0]", "Expected `object`, got `int`"),
        (b'{"model": "m", "messages": [{"content": ""}]}', "messages[0].role", "Missing required"),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 3}]}',
            "messages[1].content",
            "got `int`",
        ),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}',
            "messages[0].content[0].text",
            "got `int`",
        ),
        (b'{"model": "m", "messages": [], "max_tokens": "7"}', "max_tokens", "got `str`"),
        (b'{"model": "m", "messages": [], "max_tokens": 0}', "max_tokens", ">= 1"),
        (b'{"model": "m", "messages": [], "n": 2}', "n", "<= 1"),
        (b'{"model": "m", "messages": [], "stream": "yes"}', "stream", "got `str`"),
    ],
)
@pytest.mark.parametrize("headers", [IDS, {}])
async def test_bad_requests_name_the_field(
    client: aiohttp.ClientSession, body: bytes, param: str | None, message: str, headers: dict[str, str]
) -> None:
    async with client.post("/v1/chat/completions", data=body, headers=headers) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)


@pytest.mark.parametrize("streamed", [True, False])
async def test_too_long_a_prompt_is_refused_in_openais_words(
    client: aiohttp.ClientSession, streamed: bool
) -> None:
    long = [{"role": "user", "content": " word" * 20_001}]
    status, body = await post(client, messages=long, stream=streamed)
    assert status == 400
    assert body["error"] == {
        "message": "This model's maximum context length is 20000 tokens. However, your messages resulted in "
        "20001 tokens. Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    status, body = await post(client, max_tokens=20_000, stream=streamed)
    assert status == 400
    assert (
        "you requested 20002 tokens (2 in the messages, 20000 in the completion)" in body["error"]["message"]
    )


async def test_a_refusal_within_a_stream_is_an_error_event() -> None:
    class Overloaded(FixedStepEngine):
        def advance(self, now_ns: int) -> list[Emission]:
            def refuse(emission: Emission) -> Emission:
                if isinstance(emission, Finished):
                    return Rejected(
                        emission.request_id, emission.at_ns, "service_unavailable", "too much", 503, 2.5
                    )
                return emission

            return list(map(refuse, super().advance(now_ns)))

    async with SimServer(Overloaded()) as server, aiohttp.ClientSession(base_url=server.url) as client:
        body = {"model": "m", "messages": HELLO, "stream": True, "max_tokens": 3}
        async with client.post("/v1/chat/completions", json=body) as response:
            last = (await response.text()).split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "service_unavailable"
        status, answer = await post(client, max_tokens=3)
        assert (status, answer["error"]["message"]) == (503, "too much")


async def test_a_request_that_is_too_large_is_413(
    monkeypatch: pytest.MonkeyPatch, engine: WatchedEngine
) -> None:
    monkeypatch.setattr(_server, "CLIENT_MAX_BYTES", 65_536)
    async with SimServer(engine) as server, aiohttp.ClientSession(base_url=server.url) as client:
        status, body = await post(client, messages=[{"role": "user", "content": "x" * 65_536}])
    assert status == 413
    assert "more than 65,536 bytes" in body["error"]["message"]


async def test_other_paths_and_methods(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/nothing") as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    async with client.get("/v1/chat/completions") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert "error" in await response.json()


async def test_models_and_health(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("m", "model", 20_000)
    await stream(client, max_tokens=30)
    async with client.get("/health") as response:
        health = await response.json()
    assert (health["status"], health["running"]) == ("ok", 0)
    assert 1 <= health["pacing"]["writes"] <= 10
    assert 0 <= health["pacing"]["lateness_p50_ms"] <= health["pacing"]["lateness_max_ms"]


async def test_headers_reach_the_engine(client: aiohttp.ClientSession, engine: WatchedEngine) -> None:
    await post(client, headers={**IDS, "x-agentload-agent-id": "a"}, max_tokens=9)
    (request,) = engine.submitted
    assert (request.session_id, request.turn_id, request.context_id) == ("s", "t", "s\0a")
    assert (request.input_tokens, request.output_tokens) == (2, 9)


async def test_ids_of_any_text_reach_the_engine(client: aiohttp.ClientSession, engine: WatchedEngine) -> None:
    ids = ["zwei\r\nZeilen", " t %41 ", "ä/б"]
    headers = dict(zip([SESSION_HEADER, TURN_HEADER, AGENT_HEADER], map(encode_id, ids), strict=True))
    await post(client, headers=headers, max_tokens=9)
    (request,) = engine.submitted
    assert [request.session_id, request.turn_id, request.context_id] == [*ids[:2], "zwei\r\nZeilen\0ä/б"]


@pytest.mark.parametrize("block_tokens", [16, 64])
async def test_cached_tokens_are_those_of_virtual_time(tmp_path: Path, block_tokens: int) -> None:
    """Prompts of 100, 199 and 330 tokens, each going on from the one before."""
    deployment = variant(tmp_path, "gemma4-31b/pd", prefill__cache_block=block_tokens)
    lengths = [100, 199, 330]
    virtual = build_engine(deployment, 0)
    expected = [
        answer(virtual, engine_request(turn, tokens, 1, context="s"), turn * 10**9).cached_tokens
        for turn, tokens in enumerate(lengths)
    ]
    assert expected == [0, *(tokens // block_tokens * block_tokens for tokens in lengths[:-1])]
    engine = build_engine(deployment, 0)
    async with (
        SimServer(engine, block_tokens=block_tokens) as server,
        aiohttp.ClientSession(base_url=server.url) as client,
    ):
        messages, cached, before = [], [], 0
        for tokens in lengths:
            messages.append({"role": "user", "content": " word" * (tokens - before)})
            before = tokens
            _, body = await post(client, messages=messages, headers={SESSION_HEADER: "s"}, max_tokens=1)
            assert body["usage"]["prompt_tokens"] == tokens
            cached.append(msgspec.convert(body["agentload"], ServerTimes).cached_tokens)
    assert cached == expected


async def test_a_conversation_without_headers_is_one_session(
    client: aiohttp.ClientSession, engine: WatchedEngine
) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": " a question" * 100}]
    for _ in range(3):
        _, body = await post(client, messages=messages, max_tokens=70)
        messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": "go on"})
    first, second, third = engine.submitted
    assert first.session_id == second.session_id == third.session_id
    assert [request.turn_id for request in engine.submitted] == ["0", "1", "2"]
    assert [request.input_tokens for request in engine.submitted] == [200, 272, 344]
    assert list(second.prompt_runs[:3]) == list(first.prompt_runs[:3])
    assert list(third.prompt_runs[:4]) == list(second.prompt_runs[:4])


async def test_concurrent_requests_of_one_session_are_read_one_after_the_other(
    client: aiohttp.ClientSession, engine: WatchedEngine
) -> None:
    long = [{"role": "user", "content": " some words" * 4_000}]
    bodies = [[*long, {"role": "user", "content": f"{number}"}] for number in range(6)]
    answers = [post(client, messages=body, headers={"x-session-id": "s"}, max_tokens=3) for body in bodies]
    assert {status for status, _ in await asyncio.gather(*answers)} == {200}
    assert {request.input_tokens for request in engine.submitted} == {8_001}
    assert len({request.prompt_runs[-1].key for request in engine.submitted}) == 6
    assert len({request.prompt_runs[124] for request in engine.submitted}) == 1
