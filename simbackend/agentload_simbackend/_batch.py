"""Continuous batching in one decode replica, with one step clock for all its streams.

Streams join and leave at step boundaries. Nothing is done per step or per token: a change costs
O(log streams), and the times between two changes are an `Epoch`. Where something else begins to limit the
step time (see `StepModel`), an epoch ends and the next begins with the same streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import ceil

from agentload_simbackend._epochs import Epoch
from agentload_simbackend._flight import Flight, Stage
from agentload_simbackend._step_time import StepModel

_ONE = 1 << 20
_UNIT = 1.0 / _ONE
"""Contexts and their growth per step are kept in units of 2^-20 token, so that they add up exactly."""


class Batch:
    """The streams that decode in one replica.

    wake_ns: when `wake` must be called next; `None` if nothing decodes.
    started: streams whose first step has just begun; the owner takes them and reports their first token
        at `first_token_ns`. A stream may stand here twice, if somebody else joins at the same boundary.
    """

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._active: dict[Flight, None] = {}
        self._finish: list[tuple[int, int, Flight]] = []
        self.started: list[Flight] = []
        self._joining: list[Flight] = []
        self._leaving: list[Flight] = []
        self._order = 0
        self._context = 0
        self._growth = 0
        self._epoch: Epoch | None = None
        self._wake_step = 0
        self.wake_ns: int | None = None
        self.event_seq = -1
        self.armed_ns: int | None = None

    def join(self, flight: Flight, now_ns: int) -> None:
        """Let a stream decode from the first step boundary at or after `now_ns` on."""
        flight.rate = flight.request.output_tokens * _ONE // flight.draw[0]
        self._joining.append(flight)
        self._change(now_ns)

    def leave(self, flight: Flight, now_ns: int) -> bool:
        """Cancel a stream whose stage is `GONE`; true if it is gone at once, false if with this step."""
        if flight not in self._active:
            self._joining.remove(flight)
            return True
        self._leaving.append(flight)
        self._change(now_ns)
        return False

    def wake(self) -> tuple[list[Flight], list[Flight]]:
        """Do what is due at `wake_ns`: (finished streams, cancelled ones that left)."""
        epoch, now_ns, step = self._epoch, self.wake_ns, self._wake_step
        assert epoch is not None
        assert now_ns is not None
        self._context += self._growth * (step - epoch.first_step)
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
        return finished, gone

    def next_step_ns(self, now_ns: int) -> int | None:
        """End of the first step that ends after `now_ns`."""
        if self._epoch is None:
            return None
        return self._epoch.end_ns(max(self._epoch.steps_until(now_ns + 1), 1))

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
        """Somebody joins or leaves: at once if nothing decodes, else at the end of the step under way."""
        if self._epoch is None:
            self._begin(0, now_ns)
            return
        steps = self._epoch.steps_until(now_ns)
        self._wake_step = self._epoch.first_step + steps
        self.wake_ns = self._epoch.end_ns(steps)

    def _remove(self, flight: Flight, step: int) -> None:
        del self._active[flight]
        grown = flight.rate * (step - flight.join_step)
        self._context -= flight.request.input_tokens * _ONE + grown
        self._growth -= flight.rate

    def _begin(self, step: int, now_ns: int) -> None:
        """Start an epoch with those who stay and those who join."""
        before, joining = self._epoch, self._joining
        if joining:
            self._joining = []
            for flight in joining:
                self._active[flight] = None
                self._context += flight.request.input_tokens * _ONE
                self._growth += flight.rate
                flight.join_step = step
                flight.finish_step = step + flight.draw[0]
                self._order += 1
                heappush(self._finish, (flight.finish_step, self._order, flight))
        if not self._active:
            self._finish.clear()
            self._epoch = None
            self.wake_ns = None
            return
        context, growth = self._context * _UNIT, self._growth * _UNIT
        step_ns, growth_ns, until_tokens = self._model.step(len(self._active), context)
        epoch = Epoch(step, now_ns, step_ns, growth_ns * growth)
        self._epoch = epoch
        if before is not None:
            before.next = epoch
            if before.first_step == step:  # its streams have not made a step yet either
                joining = [flight for flight in self._active if flight.join_step == step]
        if joining:
            first_token_ns = epoch.end_ns(1)
            for flight in joining:
                flight.epoch = epoch
                flight.first_token_ns = first_token_ns
            self.started += joining
        finish = self._finish
        while finish[0][2].stage != Stage.DECODE:
            heappop(finish)
        steps = finish[0][0] - step
        if until_tokens < context + growth * steps:
            steps = max(ceil((until_tokens - context) / growth), 1)
        self._wake_step = step + steps
        self.wake_ns = epoch.end_ns(steps)
