"""Continuous batching in one decode replica, with one step clock for all its streams.

Streams join and leave at step boundaries. Nothing is done per step or per token: a change costs
O(log streams), and the times between two changes are an `Epoch`. Where something else begins to limit the
step time (see `StepModel`), an epoch ends and the next begins with the same streams.

Where a replica prefills too, one prompt at a time adds its chunks to the steps, one chunk to each.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from agentload_simbackend._deadline_queue import DeadlineQueue
from agentload_simbackend._epochs import Epoch
from agentload_simbackend._flight import Flight, Stage
from agentload_simbackend._step_time import StepModel

_ONE = 1 << 20
_UNIT = 1.0 / _ONE
"""Contexts and their growth per step are kept in units of 2^-20 token, so that they add up exactly."""


class _Chunks(NamedTuple):
    """A prompt that is being prefilled: its chunk in step k lasts first + growth x (k - start)."""

    flight: Flight
    start_step: int
    end_step: int
    first_ns: float
    growth_ns: float


class Changes(NamedTuple):
    """What a batch did at a step boundary: who has its answer, who was cancelled, whose prefill is done."""

    finished: list[Flight]
    gone: list[Flight]
    prefilled: Flight | None


class Batch:
    """The streams that decode in one replica, and the prompts that it prefills.

    wake_ns: when `wake` must be called next; `None` if nothing is to be done.
    started: streams whose first step has just begun; the owner takes them and reports their first token
        at `first_token_ns`. A stream may stand here twice, if its first step changes.
    """

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._slowness = 1.0
        self._stalled_until_ns = 0
        self._order = 0
        self._prompts = DeadlineQueue()
        self._reset()
        self.event_seq = -1
        self.armed_ns: int | None = None

    def _reset(self) -> None:
        self._active: dict[Flight, None] = {}
        self._finish: list[tuple[int, int, Flight]] = []
        self.started: list[Flight] = []
        self._joining: list[Flight] = []
        self._leaving: list[Flight] = []
        self._joined: list[Flight] = []
        self._joined_step = -1
        self._context = 0
        self._growth = 0
        self._prompts.clear()
        self._chunks: _Chunks | None = None
        self._epoch: Epoch | None = None
        self._wake_step = 0
        self.wake_ns: int | None = None

    def join(self, flight: Flight, now_ns: int) -> None:
        """Let a stream decode from the first step boundary at or after `now_ns` on."""
        flight.rate = flight.request.output_tokens * _ONE // flight.draw[0]
        self._joining.append(flight)
        self._change(now_ns)

    def prefill(self, flight: Flight, now_ns: int) -> None:
        """Add a prompt's `chunks` to the steps, once those before it are done; its stage is then `CHUNKS`."""
        self._prompts.push(flight)
        if self._chunks is None:
            self._change(now_ns)

    def leave(self, flight: Flight, now_ns: int) -> bool:
        """Cancel a flight whose stage is `GONE`; true if it is gone at once, false if with this step."""
        if flight in self._active or (self._chunks is not None and self._chunks.flight is flight):
            self._leaving.append(flight)
            self._change(now_ns)
            return False
        if flight in self._joining:
            self._joining.remove(flight)
        else:
            self._prompts.remove(flight)
        return True

    def clear(self) -> None:
        """Forget all streams and prompts at once."""
        self._reset()

    def set_pace(self, model: StepModel, slowness: float) -> None:
        """Take another step model, and so many times the time for a chunk, from the next epoch on."""
        self._model = model
        self._slowness = slowness

    def change_pace(self, model: StepModel, slowness: float, now_ns: int) -> None:
        """The same, from the first step boundary at or after `now_ns` on."""
        self.set_pace(model, slowness)
        if self._epoch is not None:
            self._change(now_ns)

    def stall(self, now_ns: int, until_ns: int) -> None:
        """Make no headway from `now_ns` to `until_ns`: the step under way, or the next, takes longer."""
        late_ns = until_ns - max(now_ns, self._stalled_until_ns)
        if late_ns <= 0:
            return
        self._stalled_until_ns = until_ns
        epoch = self._epoch
        if epoch is None or self.wake_ns == now_ns:
            return  # `_begin` makes the next step longer
        done = epoch.steps_done(now_ns)
        start_ns, step = epoch.end_ns(done), epoch.first_step + done
        length_ns = epoch.end_ns(done + 1) - start_ns + late_ns
        self._context += self._growth * done
        self._epoch = epoch.next = Epoch(step, start_ns, float(length_ns), 0.0)
        self._wake_step = step + 1
        self.wake_ns = self._epoch.end_ns(1)
        if self._joined_step == step:
            self._start_first_steps()

    def wake(self) -> Changes:
        """Do what is due at `wake_ns`."""
        epoch, now_ns, step = self._epoch, self.wake_ns, self._wake_step
        assert epoch is not None
        assert now_ns is not None
        self._context += self._growth * (step - epoch.first_step)
        prefilled: Flight | None = None
        chunks = self._chunks
        if chunks is not None and (chunks.end_step == step or chunks.flight.stage == Stage.GONE):
            self._chunks = None
            if chunks.flight.stage != Stage.GONE:
                prefilled = chunks.flight
        gone, self._leaving = self._leaving, []
        for flight in gone:
            self._remove(flight, step)
        finished: list[Flight] = []
        finish = self._finish
        while finish and finish[0][0] == step:
            flight = heappop(finish)[2]
            if flight.stage == Stage.DECODE:
                self._remove(flight, step)
                finished.append(flight)
        self._begin(step, now_ns)
        return Changes(finished, gone, prefilled)

    def next_step_ns(self, now_ns: int) -> int | None:
        """End of the first step that ends after `now_ns`, if anything decodes."""
        if self._epoch is None or not self._active:
            return None
        return self._epoch.end_ns(max(self._epoch.steps_until(now_ns + 1), 1))

    def steps_of(self, flight: Flight, now_ns: int) -> int:
        """How many steps a stream has behind it."""
        if self._epoch is None or flight not in self._active:
            return 0
        done = self._epoch.first_step + self._epoch.steps_done(now_ns)
        return max(min(done, flight.finish_step) - flight.join_step, 0)

    def progress(self, now_ns: int) -> Iterator[tuple[int, int, int]]:
        """For each stream that has a step behind it: (request, tokens out, end of its latest step)."""
        if self._epoch is None:
            return
        done = self._epoch.steps_done(now_ns)
        at_ns = self._epoch.end_ns(done)
        done += self._epoch.first_step
        for flight in self._active:
            steps = min(done, flight.finish_step) - flight.join_step
            if steps > 0 and flight.stage == Stage.DECODE:
                yield flight.request.request_id, flight.token_totals()[steps - 1], at_ns

    def _change(self, now_ns: int) -> None:
        """Something changes: at once if nothing is done, else at the end of the step under way."""
        if self._epoch is None:
            self._begin(0, now_ns)
            return
        steps = self._epoch.steps_until(now_ns)
        self._wake_step = self._epoch.first_step + steps
        self.wake_ns = self._epoch.end_ns(steps)

    def _remove(self, flight: Flight, step: int) -> None:
        if flight in self._active:
            del self._active[flight]
            grown = flight.rate * (step - flight.join_step)
            self._context -= flight.request.input_tokens * _ONE + grown
            self._growth -= flight.rate

    def _begin(self, step: int, now_ns: int) -> None:
        """Start an epoch with those who stay and those who join."""
        if self._joining:
            self._take_joining(step)
        if self._chunks is None and self._prompts:
            flight = self._prompts.pop()
            flight.move(Stage.CHUNKS, now_ns)
            count, first_ns, growth_ns = flight.chunks
            self._chunks = _Chunks(flight, step, step + count, first_ns, growth_ns)
        before, chunks = self._epoch, self._chunks
        if not self._active and chunks is None:
            self._finish.clear()
            self._joined, self._joined_step = [], -1
            self._epoch = None
            self.wake_ns = None
            return
        last, step_ns, growth_ns = inf, 0.0, 0.0
        if self._active:
            context, growth = self._context * _UNIT, self._growth * _UNIT
            step_ns, growth_ns, until_tokens = self._model.step(len(self._active), context)
            growth_ns *= growth
            finish = self._finish
            while finish[0][2].stage != Stage.DECODE:
                heappop(finish)
            last = finish[0][0] - step
            if until_tokens < context + growth * last:
                last = max(ceil((until_tokens - context) / growth), 1)
        if chunks is not None:
            step_ns += self._slowness * (chunks.first_ns + chunks.growth_ns * (step - chunks.start_step))
            growth_ns += self._slowness * chunks.growth_ns
            last = min(last, chunks.end_step - step)
        if now_ns < self._stalled_until_ns:
            step_ns, growth_ns, last = step_ns + self._stalled_until_ns - now_ns, 0.0, 1
        self._epoch = epoch = Epoch(step, now_ns, step_ns, growth_ns)
        if before is not None:
            before.next = epoch
        if self._joined_step == step:
            self._start_first_steps()
        self._wake_step = step + int(last)
        self.wake_ns = epoch.end_ns(int(last))

    def _take_joining(self, step: int) -> None:
        joining, self._joining = self._joining, []
        for flight in joining:
            self._active[flight] = None
            self._context += flight.request.input_tokens * _ONE
            self._growth += flight.rate
            flight.join_step = step
            flight.finish_step = step + flight.draw[0]
            self._order += 1
            heappush(self._finish, (flight.finish_step, self._order, flight))
        if (
            self._joined_step == step
        ):  # others joined at the same boundary and have not made a step yet either
            joining = self._joined + joining
        self._joined, self._joined_step = joining, step

    def _start_first_steps(self) -> None:
        """The epoch that now begins has the first step of those who joined last, be it anew."""
        epoch = self._epoch
        assert epoch is not None
        first_token_ns = epoch.end_ns(1)
        for flight in self._joined:
            if flight.stage == Stage.DECODE:
                flight.epoch = epoch
                flight.first_token_ns = first_token_ns
                self.started.append(flight)
