"""What the replayer sees of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns, process_time_ns

import pytest
import uvloop

from agentload._exact_timers import ExactTimers
from agentload._loop_ticks import LoopTicks
from agentload._self_measure import INTERVAL_NS, SelfMeasure
from agentload._wall_clock import RunClock
from agentload_traces import ClientRow

LOOPS = {"stock": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(loop: str, watched: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(watched())  # type: ignore[arg-type]


class Rows(list[ClientRow]):
    """A sink that tells when it holds so many rows."""

    def __init__(self, wanted: int) -> None:
        self.full = asyncio.Event()
        self._wanted = wanted

    def add(self, row: ClientRow) -> None:
        self.append(row)
        if len(self) >= self._wanted:
            self.full.set()


def block(ns: int, clock: Callable[[], int] = perf_counter_ns) -> None:
    end_ns = clock() + ns
    while clock() < end_ns:
        pass


@pytest.mark.parametrize("loop", LOOPS)
def test_rows_follow_each_other_without_gaps_and_add_up_to_the_cpu_time(loop: str) -> None:
    async def watched() -> None:
        rows = Rows(3)
        began_ns = perf_counter_ns()
        async with SelfMeasure(rows.add, now_ns=perf_counter_ns, worker=2):
            block(20_000_000, process_time_ns)
            await rows.full.wait()
        took_ns = perf_counter_ns() - began_ns
        assert [row.worker for row in rows] == [2] * len(rows)
        for before, row in pairwise(rows):
            assert row.at_ns - row.span_ns == before.at_ns
        assert all(row.span_ns >= INTERVAL_NS // 2 for row in rows[:-1])
        assert sum(row.span_ns for row in rows) <= took_ns
        assert sum(row.cpu_ns for row in rows) >= 20_000_000
        assert all(row.rss_bytes and row.rss_bytes > 1_000_000 for row in rows)
        assert {row.send_late_ns for row in rows} == {row.unread_bytes for row in rows} == {None}

    run(loop, watched)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_stall_of_the_loop_is_seen_at_its_length(loop: str) -> None:
    async def watched() -> None:
        rows = Rows(2)
        async with SelfMeasure(rows.add, now_ns=perf_counter_ns):
            await asyncio.sleep(0)
            block(60_000_000)
            await rows.full.wait()
        # A tick is due within the first 25 ms of the stall.
        assert max(row.loop_lag_ns for row in rows) >= 35_000_000

    run(loop, watched)


def test_turns_lateness_and_unread_bytes_are_the_most_of_each_interval() -> None:
    async def watched() -> None:
        rows = Rows(1)
        async with SelfMeasure(rows.add, now_ns=perf_counter_ns) as measure:
            for late_ns in (5, 90, 20):
                measure.turn_sent(late_ns)
            measure.turn_ended()
            measure.unread(0)
            measure.unread(4_000)
            measure.unread(100)
            await rows.full.wait()
            measure.turn_ended()
        first, last = rows[0], rows[-1]
        assert (first.active_turns, first.send_late_ns, first.unread_bytes) == (3, 90, 4_000)
        # Those that were still on their way when the interval began count in it.
        assert (last.active_turns, last.send_late_ns, last.unread_bytes) == (2, None, None)

    run("uvloop", watched)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_sink_that_fails_is_called_once_and_its_failure_comes_out(loop: str) -> None:
    calls = []

    async def watched() -> None:
        failed = asyncio.Event()

        def full_disk(row: ClientRow) -> None:
            calls.append(row)
            failed.set()
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            async with SelfMeasure(full_disk, now_ns=perf_counter_ns):
                await failed.wait()

        async def fails_otherwise() -> None:
            async with SelfMeasure(full_disk, now_ns=perf_counter_ns):
                failed.clear()
                await failed.wait()
                raise ValueError("what really happened")

        with pytest.raises(ValueError, match="what really happened"):
            await fails_otherwise()

    run(loop, watched)
    assert len(calls) == 2


@pytest.mark.parametrize("kernel", [True, False])
def test_ticks_keep_an_absolute_schedule(monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    if not kernel:
        monkeypatch.setattr("agentload._loop_ticks.open_timerfd", lambda: None)
    tick_ns = 5_000_000

    async def watched() -> None:
        late: list[int] = []
        enough = asyncio.Event()
        began_ns = perf_counter_ns()

        def on_tick(late_ns: int) -> None:
            late.append(late_ns)
            if len(late) == 20:
                enough.set()

        ticks = LoopTicks(tick_ns, on_tick)
        await enough.wait()
        took_ns = perf_counter_ns() - began_ns
        ticks.close()
        ticks.close()
        count = len(late)
        await asyncio.sleep(2 * tick_ns / 1e9)
        assert len(late) == count
        # Missed ticks are left out, so twenty take twenty ticks or more; none comes before it is due.
        assert took_ns >= 20 * tick_ns - (0 if kernel else 2_000_000)
        assert min(late) >= 0

    run("uvloop", watched)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_waits_end_in_the_order_of_their_times_and_never_early(
    monkeypatch: pytest.MonkeyPatch, loop: str, kernel: bool
) -> None:
    if not kernel:
        monkeypatch.setattr("agentload._exact_timers.open_timerfd", lambda: None)
    after_ms = [7, 3, 5, 0, 3, -20, 9]

    async def waited() -> None:
        woken: list[tuple[int, int]] = []
        with RunClock() as clock:
            base_ns = perf_counter_ns() + 5_000_000

            async def one(ms: int) -> None:
                at_ns = base_ns + ms * 1_000_000
                await clock.until(at_ns)
                woken.append((ms, perf_counter_ns() - at_ns))

            cancelled = asyncio.create_task(clock.until(base_ns + 1_000_000))
            never = asyncio.create_task(clock.until(base_ns + 3_600 * 10**9))
            tasks = [asyncio.create_task(one(ms)) for ms in after_ms]
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(*tasks)
            assert not never.done()
            never.cancel()
        assert sorted(ms for ms, _ in woken) == sorted(after_ms)
        assert min(late_ns for _, late_ns in woken) >= 0
        if kernel:
            assert [ms for ms, _ in woken] == sorted(after_ms)

    run(loop, waited)


def test_a_timer_that_was_cancelled_calls_nothing() -> None:
    async def called() -> None:
        calls: list[str] = []
        last = asyncio.Event()
        with ExactTimers() as timers:
            now_ns = perf_counter_ns()
            first = timers.call_at(now_ns + 1_000_000, lambda: calls.append("first"))
            timers.call_at(now_ns + 2_000_000, last.set)
            timers.call_at(now_ns, lambda: calls.append("past"))
            first.cancel()
            first.cancel()
            await last.wait()
        assert calls == ["past"]

    run("uvloop", called)
