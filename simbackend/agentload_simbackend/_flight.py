"""One request on its way through the engine."""

from __future__ import annotations

from itertools import accumulate

from agentload_simbackend._acceptance import Draw, yields
from agentload_simbackend._api import Arrival, EngineRequest, Phases, PromptRun
from agentload_simbackend._epochs import Epoch, step_times
from agentload_simbackend._prefix_nodes import Node


class Stage:
    """Where a request is; it only ever moves forward. Plain integers: an enum's members are slow to read.

    With a prefill pool: its queue, prefill, the queue for memory in a replica, the link into it, decode.
    Else: the queue for memory, the queue for the replica's prefill, its chunks, decode.
    """

    PREFILL_QUEUE = 0
    PREFILL = 1
    SLOT_QUEUE = 2
    CHUNK_QUEUE = 3
    CHUNKS = 4
    LINK = 5
    DECODE = 6
    GONE = 7


_PHASE = (0, 1, 0, 0, 1, 2, 3)
"""Which of `Phases` the time in a stage belongs to."""


class Flight:
    """State of one request.

    tokens: prompt and answer, which it reserves memory for.
    deadline_ns, order: its place in every queue.
    spent_ns: time in each phase until `since_ns`, when its stage began.
    event_seq: number of its pending event, so that a cancelled request's event is known to be void.
    may_spill: it has waited long enough for a replica that takes what others have no room for.
    busy_until_ns: when it frees the prefill instance that it occupies.
    resident_tokens, past_tokens: what of its prompt is in the replica, see `Resident`.
    handoff_tokens: what crosses the link, see `KvShape.transfer_bytes`.
    held_node, held_bytes: of the prefix cache and beside it, its KV in the prefill pool until it has crossed.
    host_bytes: what came back from host memory for it.
    chunks: of its prefill in the replica: how many, time of the first, growth from each to the next (in ns).
    join_step, finish_step: decode steps of its replica between which it decodes.
    epoch: the first epoch of its decode.
    totals: see `token_totals`.
    """

    __slots__ = (
        "busy_until_ns",
        "cached_tokens",
        "chunks",
        "deadline_ns",
        "draw",
        "epoch",
        "event_seq",
        "finish_step",
        "first_token_ns",
        "handoff_tokens",
        "held_bytes",
        "held_node",
        "host_bytes",
        "join_step",
        "may_spill",
        "order",
        "past_tokens",
        "rate",
        "replica",
        "request",
        "resident_tokens",
        "runs",
        "since_ns",
        "spent_ns",
        "stage",
        "tokens",
        "totals",
    )

    def __init__(self, request: EngineRequest, runs: list[PromptRun], allowance_ns: int, now_ns: int) -> None:
        self.request = request
        self.runs = runs
        self.tokens = request.input_tokens + request.output_tokens
        self.deadline_ns = now_ns + allowance_ns
        self.since_ns = now_ns
        self.spent_ns = [0, 0, 0, 0]
        self.stage: int = Stage.PREFILL_QUEUE
        self.event_seq = -1
        self.may_spill = False
        self.cached_tokens = 0
        self.handoff_tokens = 0
        self.held_node: Node | None = None
        self.host_bytes = 0
        self.replica = -1
        self.past_tokens: int | None = None
        self.epoch: Epoch | None = None
        self.totals: list[int] | None = None
        # The rest is set as the flight gets there.
        self.order: int
        self.busy_until_ns: int
        self.held_bytes: int
        self.resident_tokens: int
        self.chunks: tuple[int, float, float]
        self.draw: Draw
        self.rate: int
        self.join_step: int
        self.finish_step: int
        self.first_token_ns: int

    def move(self, stage: int, now_ns: int) -> None:
        """Enter a stage; the time until now belongs to the one before."""
        self.spent_ns[_PHASE[self.stage]] += now_ns - self.since_ns
        self.since_ns = now_ns
        self.stage = stage

    def phases(self) -> Phases:
        """Where its time went until its stage began."""
        return Phases(*self.spent_ns)

    def token_totals(self) -> list[int]:
        """Tokens out after each step; worked out once."""
        if self.totals is None:
            self.totals = list(accumulate(yields(self.draw, self.request.output_tokens)))
        return self.totals


class Timeline:
    """The token timeline of an answer, or of its first `steps` steps, worked out when called."""

    __slots__ = ("_draw", "_epoch", "_join_step", "_steps", "_tokens")

    def __init__(self, epoch: Epoch, join_step: int, draw: Draw, tokens: int, steps: int) -> None:
        self._epoch = epoch
        self._join_step = join_step
        self._draw = draw
        self._tokens = tokens
        self._steps = steps

    def __call__(self) -> list[Arrival]:
        """Return the arrivals in order of time."""
        times = step_times(self._epoch, self._join_step, self._steps)
        return list(map(Arrival, times, yields(self._draw, self._tokens)))
