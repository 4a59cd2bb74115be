"""The wall-clock driver: the session players against an OpenAI-compatible endpoint, with asyncio.

Parsing and token counting happen in one worker thread after an answer has ended; the loop that stamps
arrivals only plans, builds and sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic_ns, perf_counter_ns

from agentload._answers import ParsedAnswer, last_byte_ns, parse_answer
from agentload._feed import SessionFeed
from agentload._http_client import IDLE_TIMEOUT_S, Answer, StampingClient
from agentload._messages import RequestBuilder
from agentload._player import Pace, PlannedTurn, SessionPlayer
from agentload._rows import RowSink, planned_row, put_arrivals, skipped_rows
from agentload._tool_pool import ToolPool
from agentload_simbackend import AGENT_HEADER, SESSION_HEADER, TURN_HEADER, Arrival, encode_id
from agentload_traces import RequestRow, Session, Turn, count_tokens

_NS_PER_S = 1_000_000_000

BUILD_AHEAD_NS = 30_000_000
"""A request's body is built this long before it is due, so that building it delays nothing."""


_WHENEVER_NS = 1 << 63


class WallRun:
    """Plays the sessions of `feed` against `base_url` (without `/v1`) and writes their rows to `sink`.

    idle_s: a turn of whose answer nothing comes for so long has failed.
    tools, unfit: see `SessionPlayer`.
    clock_start_ns: where the run's clock starts; a resumed run goes on after its last row.
    on_start: called when the run starts, with the time (`time.monotonic_ns`) at which its clock reads 0.
    progress: called after each answered turn.
    """

    def __init__(
        self,
        base_url: str,
        feed: SessionFeed,
        sink: RowSink,
        *,
        seed: int,
        model: str,
        headers: dict[str, str],
        idle_s: float = IDLE_TIMEOUT_S,
        pace: Pace | None = None,
        max_turns: int | None = None,
        tools: ToolPool | None = None,
        unfit: Callable[[Turn], str | None] | None = None,
        clock_start_ns: int = 0,
        on_start: Callable[[int], None] = lambda origin_ns: None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._feed = feed
        self._sink = sink
        self._seed = seed
        self._model = model
        self._client = StampingClient(headers=headers, idle_s=idle_s)
        self._player = partial(
            SessionPlayer, pace=pace, max_turns=max_turns, tools=tools or ToolPool(), unfit=unfit
        )
        self._on_start = on_start
        self._progress = progress
        self._clock_start_ns = clock_start_ns
        self._origin_ns = 0

    def _now_ns(self) -> int:
        return perf_counter_ns() - self._origin_ns

    async def run(self) -> None:
        """Play everything to its end. When cancelled, rows of whole turns are already with the sink."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentload-parse") as self._parser:
            async with self._client:
                count_tokens("loads the vocabulary now, not between two turns")
                # The clock starts when the first bodies have had their time to be built.
                self._origin_ns = perf_counter_ns() + BUILD_AHEAD_NS - self._clock_start_ns
                self._on_start(self._origin_ns + monotonic_ns() - perf_counter_ns())
                await self._play_feed()

    async def _play_feed(self) -> None:
        active: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                now_ns = max(self._now_ns(), self._clock_start_ns)
                start_ns = self._feed.next_start_ns(len(active), now_ns)
                if start_ns is None and not active:
                    return
                if start_ns is not None and start_ns - BUILD_AHEAD_NS <= self._now_ns():
                    task = group.create_task(self._play(self._feed.take(), start_ns))
                    active.add(task)
                    task.add_done_callback(active.discard)
                elif active:
                    wait_s = None if start_ns is None else self._until(start_ns - BUILD_AHEAD_NS)
                    await asyncio.wait(active, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                elif start_ns is not None:
                    await self._sleep_until(start_ns - BUILD_AHEAD_NS)

    def _until(self, at_ns: int) -> float:
        return max(0, at_ns - self._now_ns()) / _NS_PER_S

    async def _sleep_until(self, at_ns: int) -> None:
        # Event loops wake up to a millisecond early, and a turn is never sent before it is due.
        while self._now_ns() < at_ns:  # noqa: ASYNC110 (waits for a time, not for an event)
            await asyncio.sleep(self._until(at_ns))

    async def _play(self, session: Session, start_ns: int) -> None:
        player = self._player(session, start_ns=start_ns)
        builder = RequestBuilder(session, seed=self._seed, model=self._model)
        sending: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while not player.finished:
                # Released turns are taken at once; each waits for its time by itself.
                for planned in player.take_due(_WHENEVER_NS):
                    task = group.create_task(self._send(player, builder, planned))
                    sending.add(task)
                    task.add_done_callback(sending.discard)
                await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        for row in skipped_rows(player):
            self._sink.add_request(row)

    async def _send(self, player: SessionPlayer, builder: RequestBuilder, planned: PlannedTurn) -> None:
        row = planned_row(planned)
        try:
            await self._ask(builder, planned, row)
        except Exception as failure:
            # One turn must not take down the run and all other sessions with it.
            row.status = "failed"
            row.error = f"internal error: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
        if row.status == "ok":
            assert row.end_ns is not None
            for tool_call in player.complete(planned, row.end_ns):
                self._sink.add_tool_call(tool_call)
        else:
            player.fail(planned)
        self._sink.add_request(row)
        self._sink.tick(self._now_ns())
        self._progress()

    async def _ask(self, builder: RequestBuilder, planned: PlannedTurn, row: RequestRow) -> None:
        """Send a turn when it is due, and fill its row with the answer."""
        turn = planned.turn
        await self._sleep_until(planned.scheduled_ns - BUILD_AHEAD_NS)
        built = builder.build(turn)
        row.sent_tokens = built.sent_tokens
        headers = {SESSION_HEADER: encode_id(turn.session_id), TURN_HEADER: encode_id(turn.turn_id)}
        if turn.agent_id is not None:
            headers[AGENT_HEADER] = encode_id(turn.agent_id)
        await self._sleep_until(planned.scheduled_ns)
        answer = await self._client.post(self._url, built.body, headers)
        loop = asyncio.get_running_loop()
        parsed = await loop.run_in_executor(self._parser, parse_answer, answer)
        self._fill(row, answer, parsed)

    def _fill(self, row: RequestRow, answer: Answer, parsed: ParsedAnswer) -> None:
        assert row.scheduled_ns is not None
        # An answer that was broken off ended when it broke, which may be long after its last byte.
        end_ns = (answer.end_ns if answer.error else last_byte_ns(answer)) - self._origin_ns
        row.http_status = answer.status
        row.sent_ns = answer.sent_ns - self._origin_ns
        row.end_ns = end_ns
        row.output_tokens = parsed.output_tokens
        if parsed.error is not None:
            row.status, row.error = "failed", parsed.error
        elif not parsed.arrivals:
            row.status, row.error = "failed", "the answer has no tokens"
        if parsed.usage is not None:
            row.reported_input_tokens = parsed.usage.prompt_tokens
            row.reported_output_tokens = parsed.usage.completion_tokens
            if parsed.usage.prompt_tokens_details is not None:
                row.cached_tokens = parsed.usage.prompt_tokens_details.cached_tokens
        if not parsed.arrivals:
            return
        row.first_token_ns = parsed.arrivals[0].at_ns - self._origin_ns
        put_arrivals(row, [Arrival(at - self._origin_ns, tokens) for at, tokens in parsed.arrivals])
        total_ns = end_ns - row.scheduled_ns
        timing = parsed.timing
        told_ns = 0
        if timing is not None:
            told_ns = timing.queue_ns + timing.prefill_ns + timing.handoff_ns + timing.decode_ns
        if timing is None or told_ns > total_ns:
            # Phases that take longer than the turn are not believed.
            row.first_token_wait_ns = row.first_token_ns - row.sent_ns
            row.decode_ns = end_ns - row.first_token_ns
            row.client_ns = total_ns - row.first_token_wait_ns - row.decode_ns
            return
        row.queue_ns, row.prefill_ns = timing.queue_ns, timing.prefill_ns
        row.handoff_ns, row.decode_ns = timing.handoff_ns, timing.decode_ns
        row.steps, row.replica = timing.steps, timing.replica
        row.handoff_tokens = timing.handoff_tokens
        row.client_ns = total_ns - told_ns
