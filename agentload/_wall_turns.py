"""One turn on the wall clock: built ahead, sent when due, sent again if the policy says so, recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import structs

from agentload._answers import LiveMessage, ParsedAnswer, ended_well, last_byte_ns, retry_after_s
from agentload._cap import Cap
from agentload._endpoint import Endpoint
from agentload._http_client import Answer, HttpRequest, StampingClient
from agentload._options import Api
from agentload._parsing import AnswerParser
from agentload._player import PlannedTurn, SessionPlayer
from agentload._requests import BuiltRequest, RequestBuilder, ToolResult
from agentload._retry import RetryPolicy
from agentload._rows import WallSink, planned_row
from agentload._self_measure import SelfMeasure
from agentload._token_fit import TokenFit
from agentload._wall_clock import RunClock
from agentload._wall_rows import fill_row, without_timeline
from agentload_simbackend import AGENT_HEADER, SESSION_HEADER, TURN_HEADER, encode_id
from agentload_traces import AgentloadError, RequestRow, ToolCallRow, Turn

BUILD_AHEAD_NS = 30_000_000
"""A request's body is built this long before it is due, so that building it delays nothing."""


_LATER_S = 0.002
"""An answer is parsed so long after it ended: the turns that it released go out before, undisturbed."""


class LiveTools(Protocol):
    """Really executes the tool calls of a turn."""

    async def run(
        self, turn: Turn, message: LiveMessage | None, clock: RunClock
    ) -> tuple[list[ToolCallRow], list[ToolResult]]:
        """The measured calls of an answer, or of the trace if no message was kept, and what they gave."""
        ...


class Wiring(NamedTuple):
    """What all turns of a run share.

    live: the history holds what really came. attempts: failed attempts of a turn, by session and turn id,
    from before the run was resumed. in_flight: turns on their way, by the same. secrets: what no row may
    hold, should an endpoint repeat it.
    """

    client: StampingClient
    endpoint: Endpoint
    api: Api
    parser: AnswerParser
    clock: RunClock
    cap: Cap
    retry: RetryPolicy
    continues: bool
    sink: WallSink
    measure: SelfMeasure
    warmup_ns: int
    live: bool
    fit: TokenFit | None
    tools: LiveTools | None
    attempts: Mapping[tuple[str, str], int]
    in_flight: set[tuple[str, str]]
    secrets: tuple[str, ...]
    worker: int | None
    progress: Callable[[], None]


class TurnSender:
    """Sends the turns of one session."""

    def __init__(
        self,
        wiring: Wiring,
        player: SessionPlayer,
        builder: RequestBuilder,
        later: Callable[[Awaitable[None]], None],
    ) -> None:
        """later: takes what may be finished after the turn is over for its session."""
        self._w = wiring
        self._player = player
        self._builder = builder
        self._later = later
        self._building = asyncio.Lock()
        self._unread = 0

    async def send(self, planned: PlannedTurn) -> None:
        """Bring a turn to its end. Where the run is ending it is not sent, and nothing is recorded of it."""
        row = planned_row(planned, self._w.warmup_ns)
        row.worker = self._w.worker
        try:
            await self._send(planned, row)
        except AgentloadError:
            raise  # the run cannot be written: no turn's failure
        except Exception as failure:
            _internal(row, failure)
            self._record_end(planned, row)

    async def _send(self, planned: PlannedTurn, row: RequestRow) -> None:
        w, turn = self._w, planned.turn
        await w.clock.until(w.cap.decided_ns(planned.scheduled_ns - BUILD_AHEAD_NS))
        if w.clock.ending():
            return
        if w.cap.refuses(planned.scheduled_ns):
            await w.clock.until(w.cap.decided_ns(planned.scheduled_ns))
            self._player.keep_back(planned)
            return
        built = await self._built(turn)
        row.sent_tokens = built.sent_tokens
        await w.clock.until(w.cap.decided_ns(planned.scheduled_ns))
        if w.clock.ending():
            return
        if not w.cap.may_send(planned.scheduled_ns):
            self._player.keep_back(planned)
            return
        key = (turn.session_id, turn.turn_id)
        w.in_flight.add(key)
        try:
            await self._attempts(planned, row, built)
        finally:
            w.in_flight.discard(key)

    async def _built(self, turn: Turn) -> BuiltRequest:
        """The request of a turn; other sessions are served between slices of the work.

        One request of a session is built at a time, for its agents go on from each other's histories.
        """
        async with self._building:
            slices = self._builder.build_in_slices(turn)
            while True:
                try:
                    next(slices)
                except StopIteration as built:
                    request: BuiltRequest = built.value
                    return request
                await asyncio.sleep(0)

    async def _attempts(self, planned: PlannedTurn, row: RequestRow, built: BuiltRequest) -> None:
        w, turn = self._w, planned.turn
        key = (turn.session_id, turn.turn_id)
        first = w.attempts.get(key, 0)
        failed = 0
        while True:
            attempt = structs.replace(row, attempt=first + failed)
            answer = await self._ask(planned, attempt, built)
            # A row never comes before that of a turn that it waited for.
            parsed = None if self._unread else w.parser.parse_at_once(answer)
            if parsed is None:
                if self._goes_on_at_once(answer):
                    self._finish_early(planned, attempt, answer)
                    return
                parsed = await self._parsed(attempt, answer)
            fill_row(attempt, answer, parsed, w.clock.origin_ns)
            if parsed.error is None:
                await self._finish(planned, attempt, parsed)
                return
            failed += 1
            asked_s = retry_after_s(answer) if answer.status is not None else None
            wait_ns = w.retry.wait_before_next_ns(failed, parsed.error_kind, asked_s, key)
            if wait_ns is None:
                self._record_end(planned, attempt)
                return
            attempt.status = "retried"
            without_timeline(attempt)
            self._add(attempt)
            again_ns = w.clock.now_ns() + wait_ns
            while not w.clock.ending() and w.clock.now_ns() < again_ns:
                await w.clock.until(again_ns)
            if w.clock.ending():
                return

    async def _parsed(self, row: RequestRow, answer: Answer) -> ParsedAnswer:
        """The answer, parsed. Where the run is stopped meanwhile its row is written nevertheless."""
        try:
            return await self._w.parser.parse(answer)
        except asyncio.CancelledError:
            self._later(self._record_later(row, answer, ()))
            raise

    async def _ask(self, planned: PlannedTurn, row: RequestRow, built: BuiltRequest) -> Answer:
        w, turn = self._w, planned.turn
        headers = {SESSION_HEADER: encode_id(turn.session_id), TURN_HEADER: encode_id(turn.turn_id)}
        if turn.agent_id is not None:
            headers[AGENT_HEADER] = encode_id(turn.agent_id)
        number = w.endpoint.pick(turn.session_id)
        row.url_index = number if len(w.endpoint.urls) > 1 else None
        # Of another attempt it is the endpoint that made it late.
        late_ns = w.clock.now_ns() - planned.scheduled_ns if not row.attempt else 0
        w.measure.turn_sent(max(0, late_ns))
        try:
            request = HttpRequest(w.endpoint.url_for(w.api, number), built.body, headers)
            answer = await w.client.post(request)
        except asyncio.CancelledError:
            self._record_interrupted(row)
            raise
        finally:
            w.measure.turn_ended()
        w.measure.unread(answer.unread_bytes)
        return answer

    def _goes_on_at_once(self, answer: Answer) -> bool:
        """Whether the session needs to know no more of an answer than that it is whole.

        What a look at it does not find may be worth a retry, so with retries it is parsed first.
        """
        w = self._w
        waits = w.live or w.tools is not None or w.fit is not None or w.retry.retries > 0
        return not waits and ended_well(answer, w.api)

    def _finish_early(self, planned: PlannedTurn, row: RequestRow, answer: Answer) -> None:
        """Let the session go on; read the answer when there is time."""
        end_ns = last_byte_ns(answer) - self._w.clock.origin_ns
        tool_calls = self._player.complete(planned, end_ns)
        self._unread += 1
        self._later(self._record_later(row, answer, tool_calls))

    async def _record_later(self, row: RequestRow, answer: Answer, tool_calls: Sequence[ToolCallRow]) -> None:
        await asyncio.sleep(_LATER_S)
        parsing = self._w.parser.parse(answer)
        answer = answer._replace(body=b"")  # which is now the parser's, to be put on disk if need be
        try:
            fill_row(row, answer, await parsing, self._w.clock.origin_ns)
        except Exception as failure:
            _internal(row, failure)
        finally:
            self._unread -= 1
        for tool_call in tool_calls:
            self._w.sink.add_tool_call(tool_call)
        self._add(row)

    async def _finish(self, planned: PlannedTurn, row: RequestRow, parsed: ParsedAnswer) -> None:
        """A turn was answered: run its tools if they are real ones, and tell the history what came."""
        w, turn = self._w, planned.turn
        assert row.end_ns is not None
        calls: list[ToolCallRow] | None = None
        results: list[ToolResult] = []
        if w.fit is not None and row.reported_input_tokens is not None:
            self._builder.reported(turn, row.reported_input_tokens)
        if w.tools is not None:
            try:
                calls, results = await w.tools.run(turn, parsed.message, w.clock)
            except asyncio.CancelledError:
                self._add(row)  # it was answered; its tools were not run to their end
                raise
        if w.live and parsed.message is not None:
            self._builder.answered(turn, parsed.message, results)
        for tool_call in self._player.complete(planned, row.end_ns, calls):
            w.sink.add_tool_call(tool_call)
        self._add(row)

    def _record_end(self, planned: PlannedTurn, row: RequestRow) -> None:
        """A turn failed for good."""
        if self._w.continues and row.end_ns is not None and row.error_kind != "internal":
            self._player.continue_after(planned, row.end_ns)
        else:
            self._player.fail(planned)
        self._add(row)

    def _record_interrupted(self, row: RequestRow) -> None:
        """A turn is on its way when the run is stopped; it is sent again if the run is resumed."""
        row.status, row.error_kind = "retried", "interrupted"
        row.error = "the run was stopped while the turn was on its way"
        row.end_ns = self._w.clock.now_ns()
        self._add(row)

    def _add(self, row: RequestRow) -> None:
        if row.error is not None:
            for secret in self._w.secrets:
                row.error = row.error.replace(secret, "***")
        self._w.sink.add_request(row)
        self._w.sink.tick(self._w.clock.now_ns())
        if row.status != "retried":
            self._w.progress()


def _internal(row: RequestRow, failure: Exception) -> None:
    """One turn must not take down the run and all other sessions with it."""
    row.status, row.error_kind = "failed", "internal"
    row.error = f"internal error: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
