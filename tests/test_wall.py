"""Wall-clock replay over HTTP: it agrees with virtual time, and no endpoint makes it lose a row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from msgspec import structs
from session_feeds import closed_loop
from test_virtual import Rows, play
from wall_runs import WallRows, play_wall

from agentload_simbackend import SimServer, build_engine, load_deployment
from agentload_traces import RequestRow, RunDirectoryError, Session, ToolCall, Turn, open_trace, sample_path

DEPLOYMENT = "gemma4-31b/pd"


def _session(session_id: str, turns: int = 6) -> Session:
    """Contexts grow, tools take time, one sub-agent is joined."""
    made = []
    context = 0
    for number in range(turns):
        new = 2_000 if number == 0 else 150
        made.append(
            Turn(
                session_id=session_id,
                turn_id=f"t{number}",
                wait_for=()
                if not number
                else (f"t{number - 1}", "x")
                if number == 3
                else (f"t{number - 1}",),
                trigger="tool" if number else "user",
                delay_ms=3.0,
                input_tokens=context + new,
                new_input_tokens=new,
                output_tokens=60 + number,
                tool_calls=(ToolCall(name="shell", duration_ms=20.0),),
            )
        )
        context += new + 60 + number
        if number == 1:
            made.append(
                Turn(
                    session_id=session_id,
                    turn_id="x",
                    agent_id="explore",
                    parent_turn_id="t1",
                    input_tokens=3_000,
                    output_tokens=80,
                )
            )
    return Session(session_id, tuple(made))


async def _replay(url: str, sessions: list[Session], concurrency: int = 1, seed: int = 5) -> Rows:
    rows = WallRows()
    await play_wall(url, closed_loop(sessions, concurrency), rows, seed=seed)
    assert sum(row.active_turns for row in rows.client) > 0
    return rows


def _session_ns(rows: Rows) -> dict[str, int]:
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for row in rows.requests:
        if row.gate_turn_id is None:
            starts[row.session_id] = (row.scheduled_ns or 0) - row.think_ns - row.tool_ns
        ends[row.session_id] = max(ends.get(row.session_id, 0), row.end_ns or 0)
    return {session_id: ends[session_id] - starts[session_id] for session_id in starts}


def _client_ns(rows: Rows) -> dict[str, int]:
    """What network and client took in each session, by its rows."""
    took: dict[str, int] = {}
    for row in rows.requests:
        took[row.session_id] = took.get(row.session_id, 0) + (row.client_ns or 0)
    return took


async def test_session_times_agree_with_virtual_time() -> None:
    sessions = [_session("a"), _session("b")]
    virtual = play(closed_loop(sessions, 1), DEPLOYMENT, seed=5)
    async with SimServer(build_engine(load_deployment(DEPLOYMENT), 5), seed=5, model="m") as server:
        wall = await _replay(server.url, sessions)
    assert [row.status for row in wall.requests] == ["ok"] * 14
    by_turn = {(row.session_id, row.turn_id): row for row in virtual.requests}
    for row in wall.requests:
        expected = by_turn[row.session_id, row.turn_id]
        assert row.output_tokens == expected.output_tokens
        assert row.reported_input_tokens == expected.input_tokens
        assert row.cached_tokens == expected.cached_tokens
        assert row.steps == expected.steps
        assert row.prefill_ns == expected.prefill_ns
    took = _session_ns(wall)
    late_ns = _client_ns(wall)
    for session_id, expected_ns in _session_ns(virtual).items():
        # Two per cent and 2 ms a turn. What a busy machine adds stands in the rows as the client's: it is
        # allowed beyond that, for this is a test of agreement and not of the machine.
        excess_ns = max(0, late_ns[session_id] - 7 * 2_000_000)
        assert expected_ns <= took[session_id] <= expected_ns * 1.02 + 7 * 2_000_000 + excess_ns


async def test_branching_contexts_hit_the_cache_as_in_virtual_time() -> None:
    # This recording goes back in its context at some turns and repeats prompts at others.
    session = next(open_trace(sample_path("weka_trace_0291.json")).sessions())
    session = Session(session.session_id, tuple(_in_no_time(turn) for turn in session.turns[:14]))
    virtual = play(closed_loop([session], 1), DEPLOYMENT, seed=5)
    async with SimServer(build_engine(load_deployment(DEPLOYMENT), 5), seed=5, model="m") as server:
        wall = await _replay(server.url, [session])
    assert [row.status for row in wall.requests] == ["ok"] * 14
    cached = [(row.turn_id, row.cached_tokens, row.prefill_ns) for row in wall.requests]
    assert cached == [(row.turn_id, row.cached_tokens, row.prefill_ns) for row in virtual.requests]
    assert len({row.cached_tokens for row in wall.requests}) > 5


def _in_no_time(turn: Turn) -> Turn:
    """The turn with short answers, and tools and people that take no time."""
    calls = tuple(structs.replace(call, duration_ms=None) for call in turn.tool_calls)
    return structs.replace(
        turn, delay_ms=None, output_tokens=min(turn.output_tokens or 1, 40), tool_calls=calls
    )


async def test_phases_sum_to_the_time_of_a_turn() -> None:
    async with SimServer(build_engine(load_deployment(DEPLOYMENT), 5), seed=5, model="m") as server:
        wall = await _replay(server.url, [_session("a", 3)])
    for row in wall.requests:
        assert row.client_ns is not None
        assert row.client_ns >= 0
        told = (row.queue_ns, row.prefill_ns, row.handoff_ns, row.decode_ns, row.client_ns)
        assert sum(phase or 0 for phase in told) == (row.end_ns or 0) - (row.scheduled_ns or 0)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _against(handler: Handler) -> Rows:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        turns = (
            Turn(session_id="s", turn_id="a", input_tokens=50, output_tokens=3),
            Turn(session_id="s", turn_id="b", wait_for=("a",), input_tokens=70, output_tokens=3),
        )
        return await _replay(f"http://{host}:{port}", [Session("s", turns)])
    finally:
        await runner.cleanup()


async def _stream(request: web.Request, *events: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


async def _answer_500(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "boom"}}, status=500)


async def _answer_429(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "1"})


async def _answer_garbage(request: web.Request) -> web.StreamResponse:
    return await _stream(request, b"data: {nonsense\n\n", b"data: [DONE]\n\n")


async def _answer_nothing(request: web.Request) -> web.StreamResponse:
    return await _stream(request)


async def _answer_and_cut(request: web.Request) -> web.StreamResponse:
    event = {"choices": [{"delta": {"content": " one two"}, "finish_reason": None}]}
    response = await _stream(request, b"data: %s\n\n" % json.dumps(event).encode())
    assert request.transport is not None
    # What was written must reach the client before the connection is reset.
    await asyncio.sleep(0)
    request.transport.close()
    return response


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (_answer_500, "HTTP 500: boom"),
        (_answer_429, "HTTP 429: slow down"),
        (_answer_garbage, "event 1 of the stream is not a completion chunk"),
        (_answer_nothing, "the stream ended without a finish reason"),
        (_answer_and_cut, "the stream was cut off before its end"),
    ],
)
async def test_a_faulty_endpoint_is_a_recorded_failure(handler: Handler, error: str) -> None:
    rows = (await _against(handler)).requests
    assert [(row.turn_id, row.status) for row in rows] == [("a", "failed"), ("b", "skipped")]
    assert rows[0].error is not None
    assert rows[0].error.startswith(error)
    assert rows[0].end_ns is not None
    if handler is _answer_and_cut:
        assert rows[0].output_tokens == 2


async def test_ids_of_any_characters_reach_the_endpoint() -> None:
    turn = Turn(
        session_id="a\nb %41 \u00e9/", turn_id=" t ", agent_id="x\ty", input_tokens=50, output_tokens=400
    )
    session = Session(turn.session_id, (turn,))
    virtual = play(closed_loop([session], 1), DEPLOYMENT, seed=5)
    async with SimServer(build_engine(load_deployment(DEPLOYMENT), 5), seed=5, model="m") as server:
        (row,) = (await _replay(server.url, [session])).requests
    # The draws hang on the ids, so equal steps mean that the server read the same ones.
    assert (row.status, row.steps) == ("ok", virtual.requests[0].steps)


async def test_an_endpoint_that_tells_no_phases() -> None:
    async def plain(request: web.Request) -> web.StreamResponse:
        events = [
            b'data: {"choices":[{"delta":{"content":" one"}}]}\n\n',
            b'data: {"choices":[{"delta":{"content":" two three"},"finish_reason":"length"}]}\n\n',
            b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":3}}\n\n',
        ]
        return await _stream(request, *events)

    for row in (await _against(plain)).requests:
        assert row.status == "ok"
        assert row.queue_ns is None
        assert row.output_tokens == row.reported_output_tokens == 3
        parts = (row.first_token_wait_ns, row.decode_ns, row.client_ns)
        assert sum(part or 0 for part in parts) == (row.end_ns or 0) - (row.scheduled_ns or 0)


class _FullDisk(WallRows):
    """Takes no row of a turn any more after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.add_request = self._take_one

    def _take_one(self, row: RequestRow) -> None:
        if self.requests:
            raise RunDirectoryError("run: cannot be written: no space left on device")
        self.requests.append(row)


async def test_a_row_that_cannot_be_written_ends_the_run_and_is_no_failed_turn() -> None:
    rows = _FullDisk()
    async with SimServer(build_engine(load_deployment(DEPLOYMENT), 5), seed=5, model="m") as server:
        with pytest.raises(BaseException) as ended:  # noqa: PT011 (a group of it, or itself)
            await play_wall(server.url, closed_loop([_session("a"), _session("b")], 2), rows, seed=5)
    failure = ended.value
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    assert isinstance(failure, RunDirectoryError)
    assert len(rows.requests) == 1


async def test_an_answer_that_cannot_be_read_is_a_failed_turn_and_no_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise TypeError("unhashable")

    monkeypatch.setattr("agentload._parsing.parse_answer", broken)
    async with SimServer(build_engine(load_deployment(DEPLOYMENT), 5), seed=5, model="m") as server:
        # Long enough to be read in the thread, after its session went on.
        turns = (
            Turn(session_id="s", turn_id="a", input_tokens=50, output_tokens=400),
            Turn(session_id="s", turn_id="b", wait_for=("a",), input_tokens=500, output_tokens=400),
        )
        rows = await _replay(server.url, [Session("s", turns)])
    assert [(row.turn_id, row.status, row.error_kind) for row in rows.requests] == [
        ("a", "failed", "internal"),
        ("b", "failed", "internal"),
    ]
