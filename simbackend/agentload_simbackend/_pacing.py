"""The pacer: one loop that writes every stream, on the engine's own step clock.

At each wake-up the engine is advanced step by step to now, and each stream that has new tokens gets one
write with all its events that are due when its turn comes. When writing takes much of the time, wake-ups
are spread to up to `tick_ns`, so that steps share a write; the histogram counts each write from the time
that the engine's schedule gives its oldest event, so that it shows this.
A client that does not read gets nothing more until it does; its steps are merged when they become many,
as real servers do, so that it costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentload_simbackend._api import (
    Emission,
    Engine,
    EngineRequest,
    Failed,
    Finished,
    FirstToken,
    Rejected,
)
from agentload_simbackend._pacing_histogram import PacingHistogram
from agentload_simbackend._server_sse import StreamRenderer

TICK_NS = 500_000
"""Wake-ups are put off by no more than this to let steps share a write."""

_GAP_COSTS = 2
"""From one wake-up to the next at least so many times what one costs passes, as far as the tick allows."""

_BLOCKED_BYTES = 256 * 1024
_BLOCKED_RETRY_NS = 5_000_000
_EVENTS_A_WRITE = 1_024

_MOST_WAITING_STEPS = 4_096

Outcome = Finished | Rejected | Failed

Step = tuple[int, int, int]
"""Request id, tokens of its answer so far, end of the decode step in ns: what `Engine.progress` yields."""


class PacedAnswer:
    """A request on its way through the engine, and the stream that it is written to.

    outcome: set when the engine has done with it. written: set when its last byte is handed to the
    transport; fails with `ConnectionResetError` if the client went away, or a fault ended the answer.
    """

    def __init__(self, request: EngineRequest, arrived_ns: int, renderer: StreamRenderer | None) -> None:
        self.request = request
        self.arrived_ns = arrived_ns
        self.renderer = renderer
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self.written: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.WriteTransport | None = None
        self.end_body: Callable[[], None] = _nothing
        self.tokens = 0
        self.sent = 0
        self.steps: list[Step] = []

    def merge_steps(self) -> None:
        """Forget where the waiting steps ended but for the last, to hold no more of them than some."""
        if len(self.steps) > _MOST_WAITING_STEPS:
            del self.steps[:-1]

    def render(self) -> bytes | memoryview:
        """Return the events that are due; of many, as many as are good to write at once."""
        assert self.renderer is not None
        ends = [step[1] for step in self.steps[:_EVENTS_A_WRITE]]
        data = self.renderer.steps(self.sent, ends)
        self.sent = ends[-1]
        del self.steps[:_EVENTS_A_WRITE]
        return data

    def render_end(self, now_ns: int) -> bytes:
        """Return what follows the last token."""
        assert self.renderer is not None
        outcome = self.outcome.result()
        if isinstance(outcome, Finished):
            return self.renderer.closing(outcome, now_ns - self.arrived_ns)
        return self.renderer.error(outcome.message, outcome.code)

    @property
    def failed(self) -> bool:
        """Whether a fault ended it."""
        return self.outcome.done() and isinstance(self.outcome.result(), Failed)

    @property
    def ended(self) -> bool:
        """Whether the engine is done with it and all its tokens are rendered."""
        return self.outcome.done() and not self.steps


class Pacer:
    """Drives an engine on the wall clock and writes its streams. Belongs to one running event loop."""

    def __init__(self, engine: Engine, clock: Callable[[], int], *, tick_ns: int = TICK_NS) -> None:
        self.histogram = PacingHistogram()
        self._engine = engine
        self._clock = clock
        self._tick_ns = tick_ns
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, PacedAnswer] = {}
        self._due: dict[int, PacedAnswer] = {}
        self._blocked: dict[int, PacedAnswer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._last_wake_ns = 0
        self._gap_ns = 0
        self._now = 0
        self._advanced_ns = 0

    @property
    def running(self) -> int:
        """Requests that the engine has not finished."""
        return len(self._running)

    def submit(self, request: EngineRequest, arrived_ns: int, renderer: StreamRenderer | None) -> PacedAnswer:
        """Give a request to the engine; a rejection on the spot is in `outcome` when this returns.

        With a `renderer` the answer is streamed, as soon as `attach` tells where to.
        """
        answer = PacedAnswer(request, arrived_ns, renderer)
        now_ns = self._now_ns()
        self._run_engine(now_ns)
        self._running[request.request_id] = answer
        self._engine.submit(request, now_ns)
        self._run_engine(now_ns)
        self._arm()
        return answer

    def attach(
        self, answer: PacedAnswer, transport: asyncio.WriteTransport, end_body: Callable[[], None]
    ) -> None:
        """Stream `answer` to `transport`; `end_body` writes the end of the HTTP body."""
        answer.transport = transport
        answer.end_body = end_body
        if answer.request.request_id in self._due:
            self._arm()

    def cancel(self, answer: PacedAnswer) -> None:
        """Forget an answer: the client has gone."""
        if answer.request.request_id in self._running:
            # What is over by now comes first: after the cancel no engine may be told an earlier time.
            self._run_engine(self._now_ns())
        self._forget(answer)

    def close(self) -> None:
        """Forget all answers and stop. The engine is not to be used any more."""
        for answers in (self._running, self._due, self._blocked):
            for answer in list(answers.values()):
                self._forget(answer)
        if self._timer is not None:
            self._timer.cancel()

    def _forget(self, answer: PacedAnswer) -> None:
        request_id = answer.request.request_id
        self._due.pop(request_id, None)
        self._blocked.pop(request_id, None)
        if self._running.pop(request_id, None) is not None:
            self._engine.cancel(request_id, self._now_ns())
        answer.outcome.cancel()
        if not answer.written.done():
            answer.written.set_exception(ConnectionResetError("the client went away"))
            answer.written.exception()

    def _now_ns(self) -> int:
        """The time for the engine, which must not go back."""
        self._now = max(self._now, self._clock())
        return self._now

    def _wake(self) -> None:
        try:
            self._write_due()
        except Exception:
            self.close()
            raise
        self._arm()

    def _write_due(self) -> None:
        self._timer = None
        self._last_wake_ns = now_ns = self._now_ns()
        self._run_engine(now_ns)
        self._due.update(self._blocked)
        self._blocked.clear()
        next_ns = self._next_ns()
        for request_id, answer in list(self._due.items()):
            if next_ns is not None and next_ns <= now_ns:
                self._run_engine(now_ns)
                next_ns = self._next_ns()
            if answer.transport is not None and request_id in self._due:
                del self._due[request_id]
                self._write(request_id, answer, answer.transport)
                now_ns = self._now_ns()
        cost_ns = now_ns - self._last_wake_ns
        self._gap_ns = min(self._tick_ns, (self._gap_ns + _GAP_COSTS * cost_ns) // 2)

    def _run_engine(self, now_ns: int) -> None:
        """Advance the engine to `now_ns`, with a stop at each step's end so that none are merged."""
        engine, running, due = self._engine, self._running, self._due
        while (next_ns := self._next_ns()) is not None and next_ns <= now_ns:
            self._advanced_ns = at_ns = max(self._advanced_ns, next_ns)
            self._take(engine.advance(at_ns))
            for step in engine.progress(at_ns):
                answer = running[step[0]]
                if step[1] > answer.tokens and answer.renderer is not None:
                    answer.tokens = step[1]
                    answer.steps.append(step)
                    due[step[0]] = answer
        self._advanced_ns = now_ns
        self._take(engine.advance(now_ns))

    def _take(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            if isinstance(emission, FirstToken):
                continue
            answer = self._running.pop(emission.request_id, None)
            if answer is None:
                continue
            if not isinstance(emission, Rejected) and emission.output_tokens > answer.tokens:
                answer.steps.append((emission.request_id, emission.output_tokens, emission.at_ns))
            answer.outcome.set_result(emission)
            rejected_at_once = isinstance(emission, Rejected) and answer.transport is None
            if answer.renderer is not None and not rejected_at_once:
                self._due[emission.request_id] = answer

    def _next_ns(self) -> int | None:
        event_ns, step_ns = self._engine.next_event_ns(), self._engine.next_step_ns()
        if event_ns is None or step_ns is None:
            return step_ns if event_ns is None else event_ns
        return min(event_ns, step_ns)

    def _write(self, request_id: int, answer: PacedAnswer, transport: asyncio.WriteTransport) -> None:
        if transport.is_closing():
            self.cancel(answer)
            return
        if transport.get_write_buffer_size() > _BLOCKED_BYTES and not answer.failed:
            answer.merge_steps()
            self._blocked[request_id] = answer
            return
        steps = answer.steps
        scheduled_ns = steps[0][2] if steps else None
        data = answer.render() if steps else b""
        if answer.failed:
            # What is due by now was sent; then the connection breaks, whatever the client has read.
            transport.write(data)
            answer.written.set_exception(ConnectionResetError("a fault ended the answer"))
        elif answer.ended:
            transport.write(b"".join((data, answer.render_end(self._clock()))))
            answer.end_body()
            answer.written.set_result(None)
        else:
            transport.write(data)
            if steps:
                self._blocked[request_id] = answer
        if scheduled_ns is not None:
            self.histogram.add(scheduled_ns, self._clock())

    def _arm(self) -> None:
        """Set the timer for the next wake-up."""
        at_ns = self._next_ns()
        if at_ns is not None:
            at_ns = max(at_ns, self._last_wake_ns + self._gap_ns)
        if self._blocked or self._due:
            retry_ns = self._last_wake_ns + (_BLOCKED_RETRY_NS if self._blocked else self._tick_ns)
            at_ns = retry_ns if at_ns is None else min(at_ns, retry_ns)
        if self._timer is not None:
            if at_ns is not None and at_ns >= self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if at_ns is not None:
            self._timer_ns = at_ns
            self._timer = self._loop.call_later(max(0, at_ns - self._clock()) / 1e9, self._wake)


def _nothing() -> None:
    """What an answer that is not streamed does at its end."""
