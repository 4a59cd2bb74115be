"""What faults do to a deployment under way, and how it comes out of them.

Overlapping faults of one kind on one replica: chips that are down add up; of power caps the lowest clock
holds; a replica is drained, or its link down, until the last of them is over; of stalls the latest end holds;
of refusals the first that draws a request answers it.

A fault begins after all else that is due in its nanosecond, be it of a timeline or injected; so one that ends
as another begins has ended by then.
"""

from __future__ import annotations

from hashlib import blake2b

from agentload_simbackend._api import EngineRequest
from agentload_simbackend._error_codes import CONNECTION_RESET, LINK_FAILED, REPLICA_FAILED
from agentload_simbackend._fault_files import fault_problem, fault_type
from agentload_simbackend._faults import (
    ChipsDown,
    Fault,
    KvLoss,
    LinkDown,
    PowerCap,
    Refuse,
    Reset,
    Stall,
)
from agentload_simbackend._flight import Stage
from agentload_simbackend._replica import ActiveFault, Replica
from agentload_simbackend._serving import Serving
from agentload_traces import SpecError

_GONE = -1


class _Planned:
    """A fault that has yet to begin."""

    __slots__ = ("event_seq", "fault")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.event_seq = _GONE


class Faulting:
    """Applies faults to what `serving` holds."""

    def __init__(self, serving: Serving, seed: int) -> None:
        self._serving = serving
        self._seed = seed
        self.refuses: list[ActiveFault] = []
        """Faults by which new requests are refused."""
        self._draws: dict[str, int] = {}
        self._refused: dict[tuple[str, str], int] = {}
        """How often each turn was refused that may come again."""
        serving.on_empty = self._on_empty

    def check(self, fault: Fault) -> None:
        """Raise `SpecError` if a fault cannot apply to this deployment."""
        name = fault_type(fault)
        if problem := fault_problem(fault):
            raise SpecError(f"fault {name}: {problem}")
        count = len(self._serving.replicas)
        if fault.replica is not None and fault.replica >= count:
            raise SpecError(f"fault {name}: replica: is {fault.replica}, must be 0 to {count - 1}")
        if isinstance(fault, LinkDown) and all(each.link is None for each in self._targets(fault)):
            raise SpecError(f"fault {name}: there is no link: the replicas prefill their prompts themselves")

    def plan(self, fault: Fault) -> None:
        """Let a fault begin at its `at_s`."""
        self._serving.events.plan_last(round(fault.at_s * 1e9), self._on_planned, _Planned(fault))

    def begin(self, fault: Fault, now_ns: int) -> None:
        """Let a fault begin now."""
        targets = self._targets(fault)
        if isinstance(fault, KvLoss):
            self._lose_kv(fault, targets, now_ns)
        elif isinstance(fault, Reset):
            self._reset(fault, targets, now_ns)
        elif isinstance(fault, Stall):
            self._stall(fault, targets, now_ns)
        else:
            self._begin_lasting(fault, targets, now_ns)

    def refusal(self, request: EngineRequest) -> Refuse | None:
        """The fault by which a new request is refused."""
        turn = (request.session_id, request.turn_id)
        attempt = self._refused.get(turn, 0)
        for active in self.refuses:
            fault = active.fault
            if isinstance(fault, Refuse) and self._drawn(
                "refuse", active.number, attempt, request, fault.share
            ):
                self._refused[turn] = attempt + 1
                return fault
        self._refused.pop(turn, None)
        return None

    def _targets(self, fault: Fault) -> list[Replica]:
        replicas = self._serving.replicas
        return list(replicas) if fault.replica is None else [replicas[fault.replica]]

    def _on_planned(self, planned: _Planned, now_ns: int) -> None:
        planned.event_seq = _GONE
        self.begin(planned.fault, now_ns)

    def _begin_lasting(self, fault: Fault, targets: list[Replica], now_ns: int) -> None:
        ends_ns = None if fault.for_s is None else now_ns + round(fault.for_s * 1e9)
        if isinstance(fault, LinkDown):
            targets = [each for each in targets if each.link is not None]
        active = ActiveFault(fault, targets, ends_ns)
        if isinstance(fault, Refuse):
            active.number = self._number("refuse")
        if ends_ns is not None:
            self._serving.events.plan(ends_ns, self._on_end, active)
        if isinstance(fault, Refuse):
            self.refuses.append(active)
            return
        for replica in targets:
            replica.faults.append(active)
            replica.up = replica.up and not isinstance(fault, ChipsDown)
        self._serving.router.look()  # so that none of them is given what another one's end makes room for
        for replica in targets:
            if isinstance(fault, ChipsDown):
                self._break(replica, fault, now_ns)
            elif isinstance(fault, LinkDown):
                self._stop_link(replica, ends_ns, now_ns)
            elif isinstance(fault, PowerCap):
                replica.change_pace(now_ns)
            self._serving.arm(replica)
        self._changed(now_ns)

    def _on_end(self, active: ActiveFault, now_ns: int) -> None:
        active.event_seq = _GONE
        fault = active.fault
        if isinstance(fault, Refuse):
            self.refuses.remove(active)
            if not self.refuses:
                self._refused.clear()
            return
        for replica in active.replicas:
            replica.faults.remove(active)
            if isinstance(fault, ChipsDown):
                self._come_back(replica, round(fault.replan_s * 1e9), now_ns)
            elif isinstance(fault, LinkDown) and replica.link is not None:
                if not any(isinstance(each.fault, LinkDown) for each in replica.faults):
                    replica.link.go_on(now_ns)
            elif isinstance(fault, PowerCap):
                replica.change_pace(now_ns)
            self._serving.arm(replica)
        self._changed(now_ns)

    def _break(self, replica: Replica, fault: ChipsDown, now_ns: int) -> None:
        """Chips fail: all that the group was doing ends, and it is planned for those that are left."""
        left = f"{max(replica.chips_left, 0)} of {replica.chips} chips are left"
        message = f"replica {replica.index} lost {fault.chips} chips; {left}"
        self._serving.fail_all(replica, REPLICA_FAILED, message, now_ns)
        self._replan(replica, round(fault.replan_s * 1e9), now_ns)

    def _come_back(self, replica: Replica, replan_ns: int, now_ns: int) -> None:
        """Chips are there again: who is served is served to the end, and then the group is planned anew."""
        if replica.up and replica.memory.streams:
            replica.replan_ns = replan_ns
        else:
            self._replan(replica, replan_ns, now_ns)

    def _on_empty(self, replica: Replica, now_ns: int) -> None:
        assert replica.replan_ns is not None
        self._replan(replica, replica.replan_ns, now_ns)
        self._changed(now_ns)

    def _replan(self, replica: Replica, replan_ns: int, now_ns: int) -> None:
        """Take a replica down, for as long as its new schedule takes; one in the making starts anew."""
        serving = self._serving
        serving.residency.lose(replica.memory)
        replica.take_down(now_ns)
        replica.memory.reset(())
        replica.ready_ns = max(now_ns + replan_ns, replica.ready_ns or 0)
        serving.arm(replica)
        serving.events.plan(replica.ready_ns, self._on_replanned, replica)

    def _on_replanned(self, replica: Replica, now_ns: int) -> None:
        replica.event_seq = _GONE
        replica.ready_ns = None
        plan = replica.plan_for(replica.chips_left)
        if plan is not None:
            replica.bring_up(plan)
        self._changed(now_ns)

    def _stop_link(self, replica: Replica, ends_ns: int | None, now_ns: int) -> None:
        serving, link = self._serving, replica.link
        assert link is not None
        link.stop(now_ns)
        if ends_ns is None:
            for flight in link.flows:
                message = f"the link into replica {replica.index} is down for good"
                serving.fail(flight, LINK_FAILED, message, now_ns)
                serving.withdraw(flight, now_ns)

    def _lose_kv(self, fault: KvLoss, targets: list[Replica], now_ns: int) -> None:
        """Without a prefill pool the contexts in the replicas are the prefix cache."""
        serving = self._serving
        if fault.store == "prefix_cache" and serving.pool is not None:
            serving.pool.cache.clear()
            return
        for replica in targets:
            serving.residency.lose(replica.memory)
        serving.fill_slots(now_ns)

    def _reset(self, fault: Reset, targets: list[Replica], now_ns: int) -> None:
        serving, number = self._serving, self._number("reset")
        indices = {replica.index for replica in targets}
        for flight in list(serving.under_way.values()):
            decodes = flight.stage == Stage.DECODE and flight.replica in indices
            if decodes and self._drawn("reset", number, 0, flight.request, fault.share):
                serving.fail(flight, CONNECTION_RESET, "the connection broke in mid-stream", now_ns)
                serving.withdraw(flight, now_ns)

    def _stall(self, fault: Stall, targets: list[Replica], now_ns: int) -> None:
        assert fault.for_s is not None
        for replica in targets:
            replica.batch.stall(now_ns, now_ns + round(fault.for_s * 1e9))
            self._serving.arm(replica)

    def _changed(self, now_ns: int) -> None:
        """Replicas take other requests than before: end those that none will ever serve, place the rest."""
        serving = self._serving
        serving.router.look()
        serving.fail_lost(serving.router.take_lost(), now_ns)
        serving.fill_slots(now_ns)

    def _number(self, what: str) -> int:
        """Number the faults of a kind that draw, in the order in which they begin: each draws others."""
        self._draws[what] = number = self._draws.get(what, -1) + 1
        return number

    def _drawn(self, what: str, number: int, attempt: int, request: EngineRequest, share: float) -> bool:
        """Whether a request is among a share, by seed, fault, session, turn and attempt."""
        which = f"{self._seed}|{what}|{number}|{attempt}"
        name = f"{which}|{len(request.session_id)}|{request.session_id}|{request.turn_id}"
        draw = int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "big")
        return draw < share * (1 << 48)
