"""The stamping HTTP client against servers that answer byte by byte."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

import pytest
from http_peers import HEAD, WHOLE, Handler, asks, chunk, on_both_loops, send, serve, turns

from agentload._http_client import Answer, StampingClient, Timeouts


async def post(handler: Handler, times: int = 1) -> list[Answer]:
    async with serve(handler) as url, StampingClient() as client:
        return [await client.post(asks(url)) for _ in range(times)]


@pytest.mark.parametrize("with_head", [0, 1, 3])
@on_both_loops
async def test_each_read_of_a_chunked_body_is_stamped(with_head: int) -> None:
    events = [b"data: %d\n\n" % number for number in range(6)]

    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD + b"".join(chunk(e) for e in events[:with_head]))
        for event in events[with_head:]:
            await send(writer, chunk(event))
        await send(writer, b"0\r\n\r\n")

    before = perf_counter_ns()
    for answer in await post(handler, times=3):
        assert answer.error is None
        assert answer.body == b"".join(events)
        sizes = answer.marks.body_bytes
        assert sizes == sorted(sizes)
        assert sizes[-1] == len(answer.body)
        assert len(set(sizes)) >= 6 - with_head
        times = answer.marks.at_ns
        assert times == sorted(times)
        assert before <= answer.sent_ns <= times[0]
        assert times[-1] <= answer.end_ns
        before = answer.end_ns


@pytest.mark.parametrize("cut", range(1, 5))
@on_both_loops
async def test_the_end_of_the_body_may_come_in_pieces(cut: int) -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        await send(writer, chunk(b"data: x\n\n") + b"0\r\n\r\n"[:cut])
        for number in range(cut, 5):
            await send(writer, b"0\r\n\r\n"[number : number + 1])

    for answer in await post(handler, times=2):
        assert (answer.error, answer.body) == (None, b"data: x\n\n")


@on_both_loops
async def test_trailers_after_the_body() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        await send(writer, chunk(b"data: x\n\n"))
        await send(writer, b"0\r\nX-Took: 1\r\n\r\n")

    (answer,) = await post(handler)
    assert (answer.error, answer.body) == (None, b"data: x\n\n")


@pytest.mark.parametrize("event", [b"data: x\n\n", b"data: x\r\n\r\n", b"data: x\r\r"])
@on_both_loops
async def test_line_ends_of_events_do_not_matter(event: bytes) -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        for _i in range(3):
            await send(writer, chunk(event))
        await send(writer, b"0\r\n\r\n")

    (answer,) = await post(handler)
    assert (answer.error, answer.body) == (None, event * 3)


@on_both_loops
async def test_a_body_with_a_length_and_one_that_ends_with_the_connection() -> None:
    async def with_length(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, b"HTTP/1.1 500 Oops\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nabc")
        await send(writer, b"def")

    async def until_close(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await send(writer, b"data: x\n\n")
        writer.close()

    first, again = await post(with_length, times=2)
    assert (
        (first.status, first.body, first.error)
        == (again.status, again.body, again.error)
        == (500, b"abcdef", None)
    )
    (closed,) = await post(until_close)
    assert (closed.status, closed.body, closed.error) == (200, b"data: x\n\n", None)
    assert closed.marks.body_bytes[-1] == len(closed.body)


@pytest.mark.parametrize("end", [b"0\r\n\r\nextra", b"0\r\n\n", b"zz\r\nfoo\r\n"])
@on_both_loops
async def test_an_end_that_the_last_bytes_do_not_show_is_found(end: bytes) -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        await send(writer, chunk(b"data: x\n\n"))
        await send(writer, end)

    (answer,) = await post(handler)
    assert answer.body == b"data: x\n\n"
    assert (answer.error is None) == (end != b"zz\r\nfoo\r\n")


@on_both_loops
async def test_interim_answers_do_not_hide_the_arrivals() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        await send(writer, b"HTTP/1.1 100 Continue\r\n\r\n")
        await send(writer, HEAD)
        for _i in range(3):
            await send(writer, chunk(b"data: x\n\n"))
        await send(writer, b"0\r\n\r\n")

    (answer,) = await post(handler)
    assert (answer.status, answer.error, answer.body) == (200, None, b"data: x\n\n" * 3)
    assert {9, 18, 27} <= set(answer.marks.body_bytes)


@pytest.mark.parametrize("begun", [b"", b"5"])
@on_both_loops
async def test_an_endpoint_that_sends_a_head_and_no_body_fails(begun: bytes) -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD + begun)
        await asyncio.Event().wait()

    async with serve(handler) as url, StampingClient(timeouts=Timeouts(stall_s=0.2)) as client:
        answer = await client.post(asks(url))
    assert (answer.status, answer.error) == (200, "nothing came from the endpoint for 0.2 s")


@pytest.mark.parametrize("chunks", [0, 3])
@on_both_loops
async def test_a_silent_endpoint_fails_and_what_came_is_kept(chunks: int) -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        if chunks:
            await send(writer, HEAD)
        for _i in range(chunks):
            await send(writer, chunk(b"data: x\n\n"))
        await asyncio.Event().wait()

    async with serve(handler) as url, StampingClient(timeouts=Timeouts(stall_s=0.2)) as client:
        answer = await client.post(asks(url))
    assert answer.error == "nothing came from the endpoint for 0.2 s"
    assert answer.body == b"data: x\n\n" * chunks


@on_both_loops
async def test_a_cancelled_request_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    arrived = asyncio.Event()

    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        await send(writer, chunk(b"data: x\n\n"))
        arrived.set()
        await asyncio.Event().wait()

    async with serve(handler) as url:
        async with StampingClient() as client:
            task = asyncio.create_task(client.post(asks(url)))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await turns()
    assert caplog.text == ""


@on_both_loops
async def test_a_cut_stream_keeps_what_came() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        await send(writer, HEAD)
        await send(writer, chunk(b"data: 1\n\n"))
        await send(writer, chunk(b"data: 2\n\n")[:-4])
        writer.close()

    (answer,) = await post(handler)
    assert answer.error == "the stream was cut off before its end"
    assert answer.status == 200
    assert answer.body.startswith(b"data: 1\n\n")
    assert answer.marks.at_ns


@pytest.mark.parametrize("number_closed", [0, 1])
@on_both_loops
async def test_a_request_is_never_sent_again_unasked(number_closed: int) -> None:
    seen = 0

    async def handler(writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal seen
        seen += 1
        if number == number_closed:
            writer.close()
            return
        await send(writer, WHOLE)

    answers = await post(handler, times=number_closed + 1)
    assert answers[-1].error == "the endpoint closed the connection without an answer"
    assert seen == number_closed + 1


@on_both_loops
async def test_a_request_that_cannot_be_sent_fails_in_one_line() -> None:
    async with StampingClient() as client:
        answer = await client.post(asks("http://127.0.0.1:9/", headers={"x-bad": "a\nb"}))
    assert answer.status is None
    assert answer.error is not None
    assert "\n" not in answer.error


@on_both_loops
async def test_redirects_are_answers_not_followed() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        head = b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
        await send(writer, head)

    (answer,) = await post(handler)
    assert (answer.status, answer.error) == (301, None)


@on_both_loops
async def test_an_endpoint_that_never_answers_fails_in_one_line() -> None:
    async def handler(writer: asyncio.StreamWriter, _: int) -> None:
        writer.close()

    (answer,) = await post(handler)
    assert (answer.status, answer.error) == (None, "the endpoint closed the connection without an answer")


@on_both_loops
async def test_an_unreachable_endpoint_fails_in_one_line() -> None:
    async with serve(lambda *_: asyncio.sleep(0)) as url:
        pass
    async with StampingClient() as client:
        answer = await client.post(asks(url))
    assert answer.status is None
    assert answer.error is not None
    assert "\n" not in answer.error


@on_both_loops
async def test_answers_of_many_connections_are_kept_apart() -> None:
    async def handler(writer: asyncio.StreamWriter, number: int) -> None:
        await send(writer, HEAD)
        for _ in range(5):
            await send(writer, chunk(b"data: %d\n\n" % number))
        await send(writer, b"0\r\n\r\n")

    async with serve(handler) as url, StampingClient() as client:
        for number in range(3):
            answers = await asyncio.gather(*(client.post(asks(url)) for _ in range(8)))
            for answer in answers:
                assert answer.body == b"data: %d\n\n" % number * 5
                assert answer.marks.body_bytes[-1] == len(answer.body)
