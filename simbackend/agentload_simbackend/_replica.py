"""One decode replica: its chips, memory, link and batch, and the faults that it is under."""

from __future__ import annotations

from collections.abc import Callable

from agentload_simbackend._batch import Batch
from agentload_simbackend._faults import ChipsDown, Drain, Fault, LinkDown, PowerCap
from agentload_simbackend._flight import Flight
from agentload_simbackend._plan import ReplicaPlan
from agentload_simbackend._residency import Memory
from agentload_simbackend._shared_link import SharedLink
from agentload_simbackend._step_time import StepModel

Replan = Callable[[int, int], ReplicaPlan | None]
"""The plan of a replica (by index) with so many chips left; `None` if the weights do not fit them."""


class ActiveFault:
    """A fault that lasts, from when it begins to `ends_ns` (`None`: for ever). number: see `Refuse`."""

    __slots__ = ("ends_ns", "event_seq", "fault", "number", "replicas")

    def __init__(self, fault: Fault, replicas: list[Replica], ends_ns: int | None) -> None:
        self.fault = fault
        self.replicas = replicas
        self.ends_ns = ends_ns
        self.number = 0
        self.event_seq = -1


class Replica:
    """State of one replica.

    up: it has a plan in force, and serves whom it has. ready_ns: when the plan in the making is in force
    (`None`: none is). replan_ns: it takes nobody until all have left, and is then planned anew in that time.
    faults: those that it is under.
    """

    def __init__(self, index: int, plan: ReplicaPlan, memory: Memory, replan: Replan) -> None:
        self.index = index
        self.spill = plan.spill
        self.memory = memory
        self.batch = Batch(plan.steps)
        self.link: SharedLink[Flight] | None = None
        if plan.links is not None:
            self.link = SharedLink(plan.links.bytes_per_ns, plan.links.latency_ns)
        self.up = True
        self.ready_ns: int | None = None
        self.replan_ns: int | None = None
        self.faults: list[ActiveFault] = []
        self.event_seq = -1
        self.plan = plan
        self.chips = plan.chips
        self._replan = replan
        self._plans: dict[int, ReplicaPlan | None] = {plan.chips: plan}
        memory.reset(plan.pools)

    @property
    def open(self) -> bool:
        """Whether it takes requests."""
        closed = any(isinstance(each.fault, (Drain, LinkDown)) for each in self.faults)
        return self.up and self.replan_ns is None and not closed

    @property
    def ever_tokens(self) -> int:
        """The most tokens that a stream may have to be served here now or later, as far as is known."""
        closing = (each for each in self.faults if isinstance(each.fault, (Drain, LinkDown)))
        if any(each.ends_ns is None for each in closing):
            return 0
        left = self.chips_left
        chips = [left]
        downs = [(each.ends_ns, each.fault) for each in self.faults if each.ends_ns is not None]
        for _, fault in sorted(downs, key=lambda down: down[0]):
            if isinstance(fault, ChipsDown):
                left += fault.chips
                chips.append(left)
        plans = (self.plan_for(count) for count in chips)
        return max(0 if plan is None else plan.max_stream_tokens for plan in plans)

    @property
    def chips_left(self) -> int:
        """Chips that no fault has taken; below zero if more faults than chips there are."""
        return self.chips - sum(each.fault.chips for each in self.faults if isinstance(each.fault, ChipsDown))

    def plan_for(self, chips: int) -> ReplicaPlan | None:
        """Its plan on so many chips."""
        if chips <= 0:
            return None
        if chips not in self._plans:
            self._plans[chips] = self._replan(self.index, chips)
        return self._plans[chips]

    def take_down(self, now_ns: int) -> None:
        """Stop, and forget all that is in it but the memory's contexts, which are the residency's."""
        self.up = False
        self.replan_ns = None
        self.batch.clear()
        if self.link is not None:
            self.link.clear(now_ns)

    def bring_up(self, plan: ReplicaPlan) -> None:
        """Serve, to a new plan, from empty."""
        self.plan = plan
        self.up = True
        self.memory.reset(plan.pools)
        self.batch.set_pace(*self._pace())
        if self.link is not None and plan.links is not None:
            self.link.retune(plan.links.bytes_per_ns, plan.links.latency_ns)

    def change_pace(self, now_ns: int) -> None:
        """Let the batch follow the power caps that are in force, from its next step on."""
        self.batch.change_pace(*self._pace(), now_ns)

    def _pace(self) -> tuple[StepModel, float]:
        """Of several power caps the lowest clock holds."""
        clocks = [each.fault.clock_fraction for each in self.faults if isinstance(each.fault, PowerCap)]
        if not clocks:
            return self.plan.steps, 1.0
        slowness = 1.0 / min(clocks)
        return self.plan.steps.slowed(slowness), slowness
