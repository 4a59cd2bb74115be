"""The virtual-time driver: the session players and the engine in one event loop over a heap.

Time jumps from event to event, so a run takes what its events cost to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from agentload._cap import Cap
from agentload._feed import SessionFeed
from agentload._player import CallTime, Pace, PlannedTurn, SessionPlayer
from agentload._prompts import PromptPlanner
from agentload._requests import asked_tokens
from agentload._rows import RowSink, planned_row, put_arrivals, skipped_rows
from agentload._tool_pool import ToolPool
from agentload_simbackend import (
    Emission,
    Engine,
    EngineRequest,
    Failed,
    Finished,
    FirstToken,
    LatencyClass,
    Rejected,
)
from agentload_traces import ErrorKind, RequestRow, Turn


class _Playing(NamedTuple):
    player: SessionPlayer
    planner: PromptPlanner


class VirtualRun:
    """Plays the sessions of `feed` on `engine` and writes their rows to `sink`.

    max_turns, tools, unfit, call_ns: see `SessionPlayer`. cap: ends the run before its sessions do.
    warmup_ns: turns that are due before it are marked. on_failure: whether a failed turn ends its session.
    content, latency_class: of all requests, see `EngineRequest`.
    arrivals: also write each answer's token timeline, which costs time per decode step.
    progress: called after each turn that was sent and ended.
    """

    def __init__(
        self,
        engine: Engine,
        feed: SessionFeed,
        sink: RowSink,
        *,
        pace: Pace | None = None,
        max_turns: int | None = None,
        tools: ToolPool | None = None,
        unfit: Callable[[Turn], str | None] | None = None,
        call_ns: CallTime | None = None,
        cap: Cap | None = None,
        warmup_ns: int = 0,
        on_failure: Literal["end", "continue"] = "end",
        content: str | None = None,
        latency_class: LatencyClass = "standard",
        arrivals: bool = True,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._feed = feed
        self._sink = sink
        self._player = partial(
            SessionPlayer,
            pace=pace,
            max_turns=max_turns,
            tools=tools or ToolPool(),
            unfit=unfit,
            call_ns=call_ns,
        )
        self._cap = cap or Cap()
        self._warmup_ns = warmup_ns
        self._on_failure = on_failure
        self._content = content
        self._latency_class = latency_class
        self._arrivals = arrivals
        self._progress = progress
        self._heap: list[tuple[int, int, _Playing]] = []
        self._order = 0
        self._active = 0
        self._start_ns: int | None = None
        self._start_may_have_come = True
        self._requests = 0
        self._in_flight: dict[int, tuple[_Playing, PlannedTurn]] = {}

    def run(self) -> None:
        """Play everything to its end."""
        engine, heap = self._engine, self._heap
        now_ns = 0
        while True:
            if self._start_may_have_come:
                self._start_sessions(now_ns)
            next_ns = heap[0][0] if heap else self._start_ns
            if self._start_ns is not None and next_ns is not None and self._start_ns < next_ns:
                next_ns = self._start_ns
            # The engine goes first at equal times: what an answer releases is then due at that same time.
            emissions = engine.advance_to_emission(next_ns)
            if emissions:
                now_ns = max(now_ns, emissions[-1].at_ns)
                for emission in emissions:
                    self._take(emission)
            elif next_ns is None:
                return
            else:
                now_ns = max(now_ns, next_ns)
                self._start_may_have_come = next_ns == self._start_ns
                if heap and heap[0][0] <= now_ns:
                    self._submit_due(now_ns)

    def _start_sessions(self, now_ns: int) -> None:
        self._start_may_have_come = False
        while (start_ns := self._feed.next_start_ns(self._active, now_ns)) is not None:
            if self._cap.refuses(start_ns):
                start_ns = None
                break
            if start_ns > now_ns:
                break
            launch = self._feed.take()
            player = self._player(
                launch.session, start_ns=launch.start_ns, first_position=launch.first_position
            )
            planner = PromptPlanner(launch.session, launch.salt)
            for turn in launch.session.turns[: launch.first_position]:
                planner.plan(turn)
            self._active += 1
            playing = _Playing(player, planner)
            self._wake(playing)
            self._close_if_finished(playing)
        self._start_ns = start_ns

    def _wake(self, playing: _Playing) -> None:
        """Put the session on the heap for its next due turn, if it has one."""
        due_ns = playing.player.next_due_ns()
        if due_ns is not None:
            self._order += 1
            heappush(self._heap, (due_ns, self._order, playing))

    def _close_if_finished(self, playing: _Playing) -> None:
        if playing.player.finished:
            self._active -= 1
            self._start_may_have_come = True
            if playing.player.ended_by_cap:
                self._cap.session_ended()
            for row in skipped_rows(playing.player):
                self._sink.add_request(row)

    def _submit_due(self, now_ns: int) -> None:
        _, _, playing = heappop(self._heap)
        kept_back = False
        for planned in playing.player.take_due(now_ns):
            if self._cap.may_send(planned.scheduled_ns):
                self._submit(playing, planned, now_ns)
            else:
                playing.player.keep_back(planned)
                kept_back = True
        self._wake(playing)
        if kept_back:
            self._close_if_finished(playing)

    def _submit(self, playing: _Playing, planned: PlannedTurn, now_ns: int) -> None:
        turn = planned.turn
        self._requests += 1
        self._in_flight[self._requests] = (playing, planned)
        if turn.input_tokens < 1:
            self._take(Rejected(self._requests, now_ns, "invalid_request", "a prompt has at least 1 token"))
            return
        request = EngineRequest(
            request_id=self._requests,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            context_id=f"{turn.session_id}\0{turn.agent_id or ''}",
            prompt_runs=playing.planner.plan(turn).runs,
            input_tokens=turn.input_tokens,
            output_tokens=asked_tokens(turn),
            content=self._content,
            latency_class=self._latency_class,
        )
        self._engine.submit(request, now_ns)

    def _take(self, emission: Emission) -> None:
        if isinstance(emission, FirstToken):
            return
        playing, planned = self._in_flight.pop(emission.request_id)
        player = playing.player
        waits_until_ns = player.next_due_ns()
        row = planned_row(planned, self._warmup_ns)
        row.sent_ns = planned.scheduled_ns
        row.end_ns = emission.at_ns
        if not isinstance(emission, Rejected):
            self._fill(row, emission)
        if not isinstance(emission, Finished):
            row.status, row.error = "failed", f"{emission.code}: {emission.message}"
            row.error_kind = _kind(emission)
            if self._on_failure == "continue":
                player.continue_after(planned, emission.at_ns)
            else:
                player.fail(planned)
        else:
            for tool_call in player.complete(planned, emission.at_ns):
                self._sink.add_tool_call(tool_call)
        self._sink.add_request(row)
        self._progress()
        due_ns = player.next_due_ns()
        if due_ns is not None and (waits_until_ns is None or due_ns < waits_until_ns):
            self._wake(playing)
        self._close_if_finished(playing)

    def _fill(self, row: RequestRow, done: Finished | Failed) -> None:
        row.first_token_ns = done.first_token_at_ns
        row.queue_ns, row.prefill_ns = done.phases.queue_ns, done.phases.prefill_ns
        row.handoff_ns, row.decode_ns = done.phases.handoff_ns, done.phases.decode_ns
        row.client_ns = 0
        row.sent_tokens = row.input_tokens
        row.output_tokens = done.output_tokens
        row.replica = done.replica
        if isinstance(done, Finished):
            # What an endpoint tells at the end of an answer.
            row.reported_input_tokens, row.reported_output_tokens = row.input_tokens, done.output_tokens
            row.cached_tokens, row.steps = done.cached_tokens, done.steps
            row.handoff_tokens = done.handoff_tokens
        if self._arrivals and done.output_tokens:
            put_arrivals(row, done.arrivals())


def _kind(emission: Rejected | Failed) -> ErrorKind:
    """What kind of failure it is to a client, as an endpoint tells of it."""
    if isinstance(emission, Failed):
        return "error_event"
    if emission.status == 429:
        return "rate_limited"
    return "unavailable" if emission.status >= 500 else "refused"
