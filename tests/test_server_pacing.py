"""The pacer against a clock that the test sets: what is written when, and what is held back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from agentload_simbackend import EngineRequest, Finished, PromptRun
from agentload_simbackend._pacing import PacedAnswer, Pacer
from agentload_simbackend._pacing_histogram import PacingHistogram
from agentload_simbackend.testing import FixedStepEngine

STEP_NS = 1_000


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class PlainRenderer:
    """A step from token 2 to 5 is `2-5;`."""

    def steps(self, first: int, ends: list[int]) -> bytes:
        return b"".join(b"%d-%d;" % (start, end) for start, end in zip([first, *ends], ends, strict=False))

    def closing(self, finished: Finished, server_ns: int) -> bytes:
        return b"end after %d ns" % server_ns

    def error(self, message: str, code: str) -> bytes:
        return code.encode()


class Sink(asyncio.WriteTransport):
    """Keeps what is written; `buffered` is what it claims to hold back."""

    def __init__(self, log: list[tuple[str, bytes]], name: str = "") -> None:
        super().__init__()
        self.log = log
        self.name = name
        self.buffered = 0
        self.closing = False

    def write(self, data: Any) -> None:
        self.log.append((self.name, bytes(data)))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closing


def nothing() -> None:
    pass


def submit(pacer: Pacer, number: int, tokens: int, sink: Sink | None) -> PacedAnswer:
    request = EngineRequest(
        request_id=number,
        session_id="s",
        turn_id=str(number),
        context_id="s",
        prompt_runs=[PromptRun("p", 1)],
        input_tokens=1,
        output_tokens=tokens,
    )
    answer = pacer.submit(request, 0, PlainRenderer() if sink else None)
    if sink:
        pacer.attach(answer, sink, nothing)
    return answer


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the pacer's timers are to run between two looks
            await asyncio.sleep(0)


async def test_streams_of_a_batch_are_written_step_by_step_together() -> None:
    clock, log = Clock(), list[tuple[str, bytes]]()
    pacer = Pacer(FixedStepEngine(step_ns=STEP_NS, tokens_per_step=2), clock, tick_ns=0)
    answers = [submit(pacer, number, 5, Sink(log, name)) for number, name in enumerate("ab")]
    for step in (1, 2, 3):
        clock.now_ns = step * STEP_NS
        await until(lambda count=2 * step: len(log) == count)
    assert all(answer.written.done() for answer in answers)
    assert log == [
        *[("a", b"0-2;"), ("b", b"0-2;")],
        *[("a", b"2-4;"), ("b", b"2-4;")],
        *[("a", b"4-5;end after 3000 ns"), ("b", b"4-5;end after 3000 ns")],
    ]
    assert pacer.histogram.summary()["lateness_max_ms"] == 0
    pacer.close()


async def test_late_steps_share_a_write_but_not_an_event() -> None:
    clock, log = Clock(), list[tuple[str, bytes]]()
    pacer = Pacer(FixedStepEngine(step_ns=STEP_NS), clock)
    answer = submit(pacer, 0, 4, Sink(log))
    clock.now_ns = 3 * STEP_NS
    await until(lambda: log)
    clock.now_ns = 9 * STEP_NS
    await until(answer.written.done)
    assert [data for _, data in log] == [b"0-1;1-2;2-3;", b"3-4;end after 9000 ns"]
    assert pacer.histogram.summary()["writes"] == 2
    assert pacer.histogram.percentile_ns(1) == 5 * STEP_NS
    pacer.close()


async def test_a_client_that_does_not_read_gets_all_of_it_later() -> None:
    clock, log = Clock(), list[tuple[str, bytes]]()
    pacer = Pacer(FixedStepEngine(step_ns=STEP_NS), clock)
    slow, fast = Sink(log, "slow"), Sink(log, "fast")
    slow.buffered = 10**6
    answer = submit(pacer, 0, 10_000, slow)
    for at in range(1, 10_001):
        if at % 100 == 0:
            clock.now_ns = at * STEP_NS
            other = submit(pacer, at, 1, fast)
            clock.now_ns += STEP_NS
            await until(other.written.done)
            assert len(answer.steps) <= 4_096 + 200
    assert {name for name, _ in log} == {"fast"}
    log.clear()
    slow.buffered = 0
    await until(answer.written.done)
    text = b"".join(data for _, data in log).decode()
    events = [tuple(map(int, event.split("-"))) for event in text.split(";")[:-1]]
    assert events[0][0] == 0
    assert events[-1][1] == 10_000
    assert all(before[1] == after[0] for before, after in pairwise(events))
    assert max(end - start for start, end in events) > 1_000
    assert len(log) > 1
    pacer.close()


async def test_a_closed_connection_cancels_its_request() -> None:
    clock, engine = Clock(), FixedStepEngine(step_ns=STEP_NS)
    pacer = Pacer(engine, clock)
    sink = Sink([])
    answer = submit(pacer, 7, 100, sink)
    sink.closing = True
    clock.now_ns = STEP_NS
    await until(answer.written.done)
    assert isinstance(answer.written.exception(), ConnectionResetError)
    assert engine.cancelled == [7]
    assert pacer.running == 0


async def test_a_cancel_after_steps_that_nobody_has_seen_keeps_their_order() -> None:
    """The pacer wakes late: steps that ended before the cancel are told to the engine before it."""
    clock, log = Clock(), list[tuple[str, bytes]]()
    pacer = Pacer(FixedStepEngine(step_ns=STEP_NS), clock)
    gone, stays = submit(pacer, 1, 9, Sink(log, "gone")), submit(pacer, 2, 5, Sink(log, "stays"))
    clock.now_ns = 3 * STEP_NS + 1
    pacer.cancel(gone)
    await until(lambda: log)
    clock.now_ns = 5 * STEP_NS
    await until(stays.written.done)
    assert log == [("stays", b"0-1;1-2;2-3;"), ("stays", b"3-4;4-5;end after 5000 ns")]
    pacer.close()


async def test_a_cancel_of_what_has_just_ended_is_none() -> None:
    clock, engine = Clock(), FixedStepEngine(step_ns=STEP_NS)
    pacer = Pacer(engine, clock)
    answer = submit(pacer, 1, 5, Sink([]))
    clock.now_ns = 10 * STEP_NS
    pacer.cancel(answer)
    assert engine.cancelled == []
    assert pacer.running == 0
    pacer.close()


async def test_an_engine_that_fails_ends_all_streams() -> None:
    class Broken(FixedStepEngine):
        def progress(self, now_ns: int) -> Any:
            raise ArithmeticError("broken on purpose")

    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    clock = Clock()
    pacer = Pacer(Broken(step_ns=STEP_NS), clock)
    answer = submit(pacer, 1, 5, Sink([]))
    clock.now_ns = STEP_NS
    await until(answer.written.done)
    assert isinstance(answer.written.exception(), ConnectionResetError)
    assert isinstance(errors[0]["exception"], ArithmeticError)


async def test_time_that_goes_back_is_held_for_the_engine() -> None:
    clock, engine = Clock(), FixedStepEngine(step_ns=STEP_NS)
    pacer = Pacer(engine, clock)
    clock.now_ns = 10 * STEP_NS
    submit(pacer, 1, 5, None)
    clock.now_ns = 5 * STEP_NS
    second = submit(pacer, 2, 5, None)
    clock.now_ns = 15 * STEP_NS
    await until(second.outcome.done)
    outcome = second.outcome.result()
    assert isinstance(outcome, Finished)
    assert outcome.first_token_at_ns == 11 * STEP_NS
    pacer.close()


@pytest.mark.parametrize(("share", "expected_ns"), [(0.5, 500_000), (0.99, 990_000), (1, 1_000_000)])
def test_histogram_percentiles(share: float, expected_ns: int) -> None:
    histogram = PacingHistogram()
    for late_us in range(1, 101):
        histogram.add(5_000, 5_000 + 10_000 * late_us - 1)
    assert histogram.percentile_ns(share) == pytest.approx(expected_ns, abs=1)
    histogram.add(0, 10**10)
    assert histogram.summary()["lateness_max_ms"] == 10_000
    assert histogram.percentile_ns(1) == 10**10


def test_an_empty_histogram_knows_nothing() -> None:
    assert PacingHistogram().summary() == {
        "writes": 0,
        "lateness_p50_ms": None,
        "lateness_p99_ms": None,
        "lateness_max_ms": None,
    }
