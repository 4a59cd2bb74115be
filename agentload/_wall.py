"""The wall-clock driver: the session players against an endpoint, with asyncio.

Parsing and token counting happen in one worker thread after an answer has ended; the loop that stamps
arrivals only plans, builds and sends.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from agentload._answers import shows_token
from agentload._cap import Cap
from agentload._earlier import Earlier
from agentload._endpoint import Connection, Endpoint
from agentload._endpoint_options import extra_body_of
from agentload._feed import Launch, SessionFeed
from agentload._http_client import StampingClient, Timeouts
from agentload._load import pace_of, warmup_ns
from agentload._options import FailureOptions, ReplayOptions
from agentload._parsing import AnswerParser
from agentload._player import CallTime, SessionPlayer
from agentload._quiet_gc import quiet_gc
from agentload._requests import RequestBuilder
from agentload._retry import RetryPolicy
from agentload._rows import WallSink, skipped_rows
from agentload._self_measure import SelfMeasure
from agentload._token_fit import TokenFit
from agentload._tool_pool import ToolPool
from agentload._wall_clock import RunClock
from agentload._wall_turns import BUILD_AHEAD_NS, LiveTools, TurnSender, Wiring
from agentload_traces import Turn, count_tokens

_WHENEVER_NS = 1 << 63


class WallRun:
    """Plays the sessions of `feed` against `endpoint` and writes their rows to `sink`.

    directory: of the run; answers that do not fit in memory are put there until they are read.
    tools, call_ns, unfit: see `SessionPlayer`. live_tools: what really executes tool calls, instead.
    begin: awaited when all is ready; gives when the run's clock reads 0 (`perf_counter_ns`). Without it the
    clock starts when the first bodies have had their time to be built. worker: number of this worker, if
    there are several.
    on_start: called when the run starts, with the time (`time.monotonic_ns`) at which its clock reads 0.
    progress: called after each turn that was sent and ended.
    """

    def __init__(
        self,
        options: ReplayOptions,
        endpoint: Endpoint,
        feed: SessionFeed,
        sink: WallSink,
        *,
        directory: Path,
        cap: Cap,
        tools: ToolPool | None = None,
        call_ns: CallTime | None = None,
        live_tools: LiveTools | None = None,
        unfit: Callable[[Turn], str | None] | None = None,
        earlier: Earlier | None = None,
        begin: Callable[[], Awaitable[int]] | None = None,
        worker: int | None = None,
        on_start: Callable[[int], None] = lambda origin_ns: None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._options = options
        self._endpoint = endpoint
        self._feed = feed
        self._sink = sink
        self._directory = directory
        self._cap = cap
        self._live_tools = live_tools
        self._earlier = earlier = earlier or Earlier()
        self._begin = begin
        self._worker = worker
        self._on_start = on_start
        self._progress = progress
        self._clock = RunClock()
        self._player = partial(
            SessionPlayer,
            pace=pace_of(options.load),
            max_turns=options.load.max_turns,
            tools=tools or ToolPool(),
            unfit=unfit,
            call_ns=call_ns,
            on_failure=options.failure.on_failure,
            resume_ns=earlier.clock_start_ns,
        )
        self._extra_body = extra_body_of(options.endpoint)
        self._fit = TokenFit() if options.endpoint.tokens == "server" else None
        self._reading: set[asyncio.Task[None]] = set()
        self._main: asyncio.Task[None] | None = None
        self._in_flight: set[tuple[str, str]] = set()
        self._stopped = False
        self._played = False
        self._failure: BaseException | None = None
        self.left_something = False
        """Whether the run was ended before all was played."""

    @property
    def told_to_stop(self) -> bool:
        """Whether `drain` or `stop` was called, even if nothing was left to be stopped."""
        return self._clock.ending()

    def drain(self) -> int:
        """Send no further turn and finish those on their way; returns how many these are."""
        self._clock.end()
        return len(self._in_flight)

    def stop(self) -> None:
        """End at once; turns on their way are recorded as interrupted attempts."""
        self._clock.end()
        if self._main is not None and not self._stopped and not self._played:
            self._stopped = self.left_something = True
            self._main.cancel()

    async def run(self) -> None:
        """Play everything to its end, or as far as `drain` and `stop` let it."""
        self._main = asyncio.current_task()
        raise_open_files()
        async with AsyncExitStack() as stack:
            wiring = await self._open(stack)
            try:
                await self._play_feed(wiring)
            except asyncio.CancelledError:
                if not self._stopped and self._failure is None:
                    raise
                assert self._main is not None
                self._main.uncancel()
            finally:
                # What has been answered is recorded, whatever ended the run.
                self._played = True
                await asyncio.gather(*self._reading, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    async def _open(self, stack: AsyncExitStack) -> Wiring:
        options, live = self._options, self._options.endpoint.history == "live"
        parser = AnswerParser(self._directory, options.endpoint.api, keep_message=live)
        stack.enter_context(parser)
        stack.enter_context(self._clock)
        client = StampingClient(
            connection=self._endpoint.connection,
            timeouts=timeouts_of(options.failure),
            shows_token=shows_token(options.endpoint.api),
        )
        await stack.enter_async_context(client)
        count_tokens("loads the vocabulary and its merges now, not between two turns: qzxwv \ufffd")
        stack.enter_context(quiet_gc())
        await self._start_clock()
        measure = SelfMeasure(self._sink.add_client, now_ns=self._clock.now_ns, worker=self._worker or 0)
        await stack.enter_async_context(measure)
        self._cap.on_spent = self._clock.wake
        return Wiring(
            client=client,
            endpoint=self._endpoint,
            api=options.endpoint.api,
            parser=parser,
            clock=self._clock,
            cap=self._cap,
            retry=RetryPolicy.of(options.failure, options.seed),
            continues=options.failure.on_failure == "continue",
            sink=self._sink,
            measure=measure,
            warmup_ns=warmup_ns(options.load),
            live=live,
            fit=self._fit,
            tools=self._live_tools,
            attempts=self._earlier.attempts,
            in_flight=self._in_flight,
            secrets=secrets_of(self._endpoint.connection),
            worker=self._worker,
            progress=self._progress,
        )

    async def _start_clock(self) -> None:
        if self._begin is not None:
            self._clock.origin_ns = await self._begin()
            return
        self._on_start(self._clock.start(self._earlier.clock_start_ns - BUILD_AHEAD_NS))

    async def _play_feed(self, wiring: Wiring) -> None:
        active: set[asyncio.Task[None]] = set()
        clock, clock_start_ns = self._clock, self._earlier.clock_start_ns
        async with asyncio.TaskGroup() as group:
            while True:
                start_ns = self._feed.next_start_ns(len(active), max(clock.now_ns(), clock_start_ns))
                if start_ns is not None and (clock.ending() or self._cap.refuses(start_ns)):
                    self.left_something = self.left_something or clock.ending()
                    start_ns = None
                if start_ns is None and not active:
                    return
                if start_ns is not None and start_ns - BUILD_AHEAD_NS <= clock.now_ns():
                    task = group.create_task(self._play(wiring, self._feed.take()))
                    active.add(task)
                    task.add_done_callback(active.discard)
                else:
                    await self._wait(active, start_ns)

    async def _wait(self, active: set[asyncio.Task[None]], start_ns: int | None) -> None:
        """Until the next session may start, one has ended, or the run is ending."""
        if start_ns is None:
            await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
            return
        due = asyncio.ensure_future(self._clock.until(start_ns - BUILD_AHEAD_NS))
        try:
            await asyncio.wait({due, *active}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            due.cancel()

    async def _play(self, wiring: Wiring, launch: Launch) -> None:
        session, options = launch.session, self._options
        answered = self._earlier.answered.get(session.session_id, {})
        player = self._player(
            session, start_ns=launch.start_ns, first_position=launch.first_position, answered=answered
        )
        builder = RequestBuilder(
            session,
            seed=options.seed,
            model=self._endpoint.model,
            api=options.endpoint.api,
            salt=launch.salt,
            history=options.endpoint.history,
            fit=self._fit,
            force_output=options.endpoint.force_output,
            extra_body=self._extra_body,
        )
        for position, turn in enumerate(session.turns):
            if position < launch.first_position or turn.turn_id in answered:
                builder.skip(turn)
                await asyncio.sleep(0)  # others are served in between
        await self._send_all(player, TurnSender(wiring, player, builder, self._read_later))
        if player.ended_by_cap:
            self._cap.session_ended()
        if player.finished:
            for row in skipped_rows(player):
                self._sink.add_request(row)
        else:
            self.left_something = True

    async def _send_all(self, player: SessionPlayer, sender: TurnSender) -> None:
        sending: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while not player.finished:
                # Released turns are taken at once; each waits for its time by itself.
                released = player.take_due(_WHENEVER_NS)
                if len(released) == 1 and not sending:
                    # Until this one is over no other can be released.
                    await sender.send(released[0])
                    continue
                for planned in released:
                    task = group.create_task(sender.send(planned))
                    sending.add(task)
                    task.add_done_callback(sending.discard)
                if not sending:
                    return  # the run is ending
                await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)

    def _read_later(self, reading: Awaitable[None]) -> None:
        task = asyncio.ensure_future(reading)
        self._reading.add(task)
        task.add_done_callback(self._was_read)

    def _was_read(self, task: asyncio.Task[None]) -> None:
        """What cannot be recorded ends the run: nobody awaits the task by which it is found."""
        self._reading.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self._clock.end()
            if self._main is not None and not self._played:
                self._main.cancel()


def timeouts_of(options: FailureOptions) -> Timeouts:
    """The limits of one request."""
    return Timeouts(
        options.connect_timeout_s,
        options.first_token_timeout_s,
        options.stall_timeout_s,
        options.total_timeout_s,
    )


def raise_open_files() -> None:
    """Let the process open as many connections as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_SHORTEST_SECRET = 6
"""Shorter values of headers are words, and no secrets."""


def secrets_of(connection: Connection) -> tuple[str, ...]:
    """What is sent and must not be written: values of headers, and what stands behind their schemes."""
    values = list(connection.headers.values())
    if connection.proxy is not None and connection.proxy.authorization is not None:
        values.append(connection.proxy.authorization)
    parts = [part for value in values for part in (value, value.rpartition(" ")[2])]
    return tuple(sorted({part for part in parts if len(part) >= _SHORTEST_SECRET}, key=len, reverse=True))
