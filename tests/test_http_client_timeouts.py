"""What ends a request that takes too long, and what kind of failure each fault of an endpoint is."""

from __future__ import annotations

import asyncio
import socket
import struct
from time import perf_counter_ns

import pytest
from http_peers import HEAD, WHOLE, asks, chunk, on_both_loops, send, serve, turns

from agentload._http_client import StampingClient, Timeouts

EVENT = chunk(b"data: x\n\n")


async def _forever(writer: asyncio.StreamWriter, _: int) -> None:
    await send(writer, HEAD + EVENT)
    await asyncio.Event().wait()


@on_both_loops
async def test_no_token_in_time() -> None:
    asked: list[bytes] = []

    def shows_token(body: bytes) -> bool:
        asked.append(body)
        return False

    client = StampingClient(timeouts=Timeouts(first_token_s=0.5), shows_token=shows_token)
    async with serve(_forever) as url, client:
        answer = await client.post(asks(url))
    assert (answer.error, answer.error_kind) == ("no token came within 0.5 s", "first_token_timeout")
    assert asked == [b"data: x\n\n"]
    assert (answer.status, answer.body) == (200, b"data: x\n\n")
    assert answer.end_ns - answer.sent_ns >= 498_000_000


@on_both_loops
async def test_a_token_that_came_in_time_is_asked_for_once() -> None:
    asked: list[bytes] = []
    go_on = asyncio.Event()

    def shows_token(body: bytes) -> bool:
        asked.append(body)
        go_on.set()
        return True

    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD + EVENT)
        await go_on.wait()
        await send(writer, EVENT + b"0\r\n\r\n")

    client = StampingClient(timeouts=Timeouts(first_token_s=0.5), shows_token=shows_token)
    async with serve(handler) as url, client:
        answer = await client.post(asks(url))
    assert (answer.error, answer.error_kind, answer.body) == (None, None, b"data: x\n\n" * 2)
    assert asked == [b"data: x\n\n"]


@on_both_loops
async def test_an_answer_that_is_over_is_not_asked_for_its_tokens() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, WHOLE)

    asked: list[bytes] = []
    client = StampingClient(timeouts=Timeouts(first_token_s=0.5, total_s=0.5), shows_token=asked.append)  # type: ignore[arg-type]
    async with serve(handler) as url, client:
        answers = [await client.post(asks(url)) for _ in range(3)]
        await asyncio.get_running_loop().run_in_executor(None, _outlast, answers[-1].end_ns + 520_000_000)
        answers.append(await client.post(asks(url)))
    assert [answer.error for answer in answers] == [None] * 4
    assert not asked
    assert [answer.opened is None for answer in answers] == [False, True, True, True]


def _outlast(until_ns: int) -> None:
    while perf_counter_ns() < until_ns:
        pass


@on_both_loops
async def test_an_answer_that_goes_on_for_too_long() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        while True:
            await send(writer, EVENT)

    async with serve(handler) as url, StampingClient(timeouts=Timeouts(total_s=0.5)) as client:
        answer = await client.post(asks(url))
    assert (answer.error, answer.error_kind) == ("the answer was not over within 0.5 s", "total_timeout")
    assert answer.marks.body_bytes[-1] == len(answer.body)
    assert answer.body.startswith(b"data: x\n\n")


@on_both_loops
async def test_a_stall_is_counted_from_the_last_read() -> None:
    async def handler(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 0:
            await send(writer, WHOLE)
            return
        await send(writer, HEAD + EVENT)
        # Half of the time: the timer of the connection then finds that it must wait longer.
        await asyncio.sleep(0.5)
        await send(writer, EVENT)
        await asyncio.Event().wait()

    async with serve(handler) as url, StampingClient(timeouts=Timeouts(stall_s=1.0)) as client:
        await client.post(asks(url))
        answer = await client.post(asks(url))
    assert (answer.error, answer.error_kind) == ("nothing came from the endpoint for 1 s", "stall_timeout")
    assert answer.body == b"data: x\n\n" * 2
    assert answer.end_ns - answer.marks.at_ns[-1] >= 998_000_000


@on_both_loops
async def test_no_connection_in_time() -> None:
    # A listener whose queue is full: the kernel lets further clients wait.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        waiting = [socket.socket() for _ in range(8)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            for times, kind in (
                (Timeouts(connect_s=0.1), "connect_timeout"),
                (Timeouts(first_token_s=0.1), "first_token_timeout"),
                (Timeouts(total_s=0.1), "total_timeout"),
            ):
                async with StampingClient(timeouts=times) as client:
                    answer = await client.post(asks(url))
                assert (answer.status, answer.error_kind, answer.opened) == (None, kind, None)
                assert "0.1 s" in str(answer.error)
        finally:
            for each in waiting:
                each.close()


@on_both_loops
async def test_kinds_of_failure() -> None:
    def reset(writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    faults = [
        (b"", reset, "reset"),
        (b"", asyncio.StreamWriter.close, "reset"),
        (b"HTTP/1.1 200 O", asyncio.StreamWriter.close, "reset"),
        (HEAD + EVENT, reset, "cut_off"),
        (HEAD + EVENT + EVENT[:-4], asyncio.StreamWriter.close, "cut_off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", asyncio.StreamWriter.close, "cut_off"),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", reset, "cut_off"),
        (b"what?\r\n\r\n", asyncio.StreamWriter.close, "bad_stream"),
        (HEAD + EVENT + b"zz\r\n", asyncio.StreamWriter.close, "bad_stream"),
    ]
    for sent, end, kind in faults:

        async def handler(writer: asyncio.StreamWriter, _: int) -> None:
            await send(writer, sent)  # noqa: B023
            end(writer)  # noqa: B023

        async with serve(handler) as url, StampingClient() as client:
            answer = await client.post(asks(url))
        assert (sent, answer.error_kind) == (sent, kind)
        assert answer.error
        assert len(answer.error.splitlines()) == 1


@on_both_loops
async def test_what_cannot_be_reached() -> None:
    async with StampingClient() as client:
        for url in ("http://127.0.0.1:9/", "http://[::1]:9/", "http://a.host.that.is.invalid/"):
            answer = await client.post(asks(url))
            assert (answer.status, answer.error_kind) == (None, "connect")
            assert str(answer.error).startswith("cannot ")
        for url in ("ftp://127.0.0.1/", "http://", "http://127.0.0.1:99999/", "nonsense"):
            answer = await client.post(asks(url))
            assert (answer.status, answer.error_kind) == (None, "internal")


@pytest.mark.parametrize("size", [2, 40_000_000])
@on_both_loops
async def test_when_a_request_was_written(size: int) -> None:
    """The second one is more than the sockets hold, so that it is written only as the endpoint reads."""
    reading = asyncio.Event()
    read_ns = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal read_ns
        await reader.readuntil(b"\r\n\r\n")
        await reading.wait()
        read_ns = perf_counter_ns()
        await reader.readexactly(size)
        writer.write(WHOLE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = "http://127.0.0.1:{}/".format(*server.sockets[0].getsockname()[1:2])
    async with server, StampingClient() as client:
        task = asyncio.create_task(client.post(asks(url, b"x" * size)))
        for _ in range(100):
            await asyncio.sleep(0)
        reading.set()
        answer = await task
    assert answer.error is None
    assert answer.written_ns is not None
    assert answer.first_byte_ns is not None
    assert (
        answer.sent_ns <= answer.written_ns <= answer.first_byte_ns <= answer.marks.at_ns[0] <= answer.end_ns
    )
    assert (answer.written_ns > read_ns) == (size > 2)


@on_both_loops
async def test_an_early_answer_ends_the_request_and_its_connection() -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = "http://127.0.0.1:{}/".format(*server.sockets[0].getsockname()[1:2])
    async with server, StampingClient() as client:
        answers = [await client.post(asks(url, b"x" * 40_000_000)) for _ in range(2)]
        gone.set()
    for answer in answers:
        assert (answer.status, answer.body, answer.error, answer.written_ns) == (413, b"big", None, None)
        assert answer.opened is not None


@on_both_loops
async def test_what_lay_unread_is_told() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        writer.write(HEAD)
        await writer.drain()
        writer.write(chunk(b"x" * size) + b"0\r\n\r\n")
        await writer.drain()

    async with serve(handler) as url, StampingClient() as client:
        size = 1_000
        assert 1_000 < (await client.post(asks(url))).unread_bytes < 1_300
        size = 2_000_000
        big = await client.post(asks(url))
    # Reads take no more than 256,000 bytes at a time, so that what is told beyond comes from the system.
    assert big.error is None
    assert (
        max(b - a for a, b in zip([0, *big.marks.body_bytes], big.marks.body_bytes, strict=False))
        <= big.unread_bytes
    )


@on_both_loops
async def test_a_stranger_on_an_idle_connection_closes_it() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, WHOLE)
        await send(writer, b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

    async with serve(handler) as url, StampingClient() as client:
        answers = []
        for _ in range(3):
            answers.append(await client.post(asks(url)))
            await turns()
            await turns()
    assert [(answer.status, answer.error) for answer in answers] == [(200, None)] * 3
    assert all(answer.opened is not None for answer in answers)
