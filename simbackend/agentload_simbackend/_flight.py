"""One request on its way through the engine."""

from __future__ import annotations

from itertools import accumulate

from agentload_simbackend._acceptance import Draw, yields
from agentload_simbackend._api import Arrival, EngineRequest, PromptRun
from agentload_simbackend._epochs import Epoch, step_times


class Stage:
    """Where a request is; it only ever moves forward. Plain integers: an enum's members are slow to read."""

    PREFILL_QUEUE = 0
    PREFILL = 1
    SLOT_QUEUE = 2
    LINK_QUEUE = 3
    LINK = 4
    DECODE = 5
    GONE = 6


class Flight:
    """State of one request.

    event_seq: number of its pending event, so that a cancelled request's event is known to be void.
    busy_until_ns: when it frees the station (prefill instance or link) that it occupies.
    need_bytes: KV reserved while it decodes, and kept after as its context.
    resident_tokens: so many leading tokens of its prompt were in the replica before the hand-off.
    handoff_tokens, window_tokens: what crosses the link, see `KvShape.transfer_bytes`.
    join_step, finish_step: decode steps of its replica between which it decodes.
    epoch: the first epoch of its decode.
    totals: see `token_totals`.
    """

    __slots__ = (
        "arrived_ns",
        "busy_until_ns",
        "cached_tokens",
        "draw",
        "epoch",
        "event_seq",
        "finish_step",
        "first_token_ns",
        "handoff_tokens",
        "join_step",
        "link_start_ns",
        "need_bytes",
        "prefill_done_ns",
        "prefill_start_ns",
        "rate",
        "replica",
        "request",
        "resident_tokens",
        "runs",
        "stage",
        "submitted_ns",
        "totals",
        "window_tokens",
    )

    def __init__(self, request: EngineRequest, runs: list[PromptRun], need_bytes: int, now_ns: int) -> None:
        self.request = request
        self.runs = runs
        self.need_bytes = need_bytes
        self.submitted_ns = now_ns
        self.stage: int = Stage.PREFILL_QUEUE
        self.event_seq = -1
        self.epoch: Epoch | None = None
        self.totals: list[int] | None = None
        # The rest is set as the flight gets there.
        self.busy_until_ns: int
        self.prefill_start_ns: int
        self.prefill_done_ns: int
        self.cached_tokens: int
        self.resident_tokens: int
        self.handoff_tokens: int
        self.window_tokens: int
        self.link_start_ns: int
        self.arrived_ns: int
        self.replica: int
        self.draw: Draw
        self.rate: int
        self.join_step: int
        self.finish_step: int
        self.first_token_ns: int

    def token_totals(self) -> list[int]:
        """Tokens out after each step; worked out once."""
        if self.totals is None:
            self.totals = list(accumulate(yields(self.draw, self.request.output_tokens)))
        return self.totals


class Timeline:
    """The token timeline of one answer, worked out when called."""

    __slots__ = ("_draw", "_epoch", "_join_step", "_tokens")

    def __init__(self, epoch: Epoch, join_step: int, draw: Draw, tokens: int) -> None:
        self._epoch = epoch
        self._join_step = join_step
        self._draw = draw
        self._tokens = tokens

    def __call__(self) -> list[Arrival]:
        """Return the arrivals in order of time."""
        times = step_times(self._epoch, self._join_step, self._draw[0])
        return list(map(Arrival, times, yields(self._draw, self._tokens)))
