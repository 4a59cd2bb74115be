"""Which contexts hold which bytes of the decode replicas' memory."""

from __future__ import annotations

from collections import OrderedDict

from agentload_simbackend._api import PromptRun
from agentload_simbackend._runs import shared_tokens


class _Resident:
    """A context that stays between its turns: the prompt of its last turn, and the bytes it holds."""

    __slots__ = ("bytes", "prompt_tokens", "runs")

    def __init__(self, need_bytes: int, runs: list[PromptRun], prompt_tokens: int) -> None:
        self.bytes = need_bytes
        self.runs = runs
        self.prompt_tokens = prompt_tokens


class Memory:
    """KV memory of one replica: bytes reserved by streams, and contexts that wait for their next turn."""

    def __init__(self, index: int, capacity_bytes: int) -> None:
        self.index = index
        self.capacity_bytes = capacity_bytes
        self.active_bytes = 0
        self.idle_bytes = 0
        self.idle: OrderedDict[str, _Resident] = OrderedDict()


class Residency:
    """Places streams in replicas by bytes. Idle contexts are evicted, least recently used first."""

    def __init__(self, replicas: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.memories = [Memory(index, capacity_bytes) for index in range(replicas)]
        self._homes: dict[str, Memory] = {}

    def admit(self, context_id: str, need_bytes: int, runs: list[PromptRun]) -> tuple[int, int] | None:
        """Reserve bytes for a stream.

        Returns the replica and how many leading tokens of the prompt are resident there; `None` if the
        stream has to wait until another one ends.
        """
        memory = self._choose(context_id, need_bytes)
        if memory is None:
            return None
        resident = self._forget(context_id)
        resident_tokens = 0
        if resident is not None and resident[0] is memory:
            resident_tokens = shared_tokens(resident[1].runs, resident[1].prompt_tokens, runs)
        memory.active_bytes += need_bytes
        while memory.active_bytes + memory.idle_bytes > memory.capacity_bytes:
            self._forget(next(iter(memory.idle)))
        return memory.index, resident_tokens

    def keep(
        self, replica: int, context_id: str, need_bytes: int, runs: list[PromptRun], prompt_tokens: int
    ) -> None:
        """A stream ended: its bytes stay as an idle context."""
        self._forget(context_id)
        memory = self.memories[replica]
        memory.active_bytes -= need_bytes
        memory.idle_bytes += need_bytes
        memory.idle[context_id] = _Resident(need_bytes, runs, prompt_tokens)
        self._homes[context_id] = memory

    def free(self, replica: int, need_bytes: int) -> None:
        """A stream was cancelled: its bytes are free."""
        self.memories[replica].active_bytes -= need_bytes

    def _choose(self, context_id: str, need_bytes: int) -> Memory | None:
        """Where the context is resident if it fits there, else the least loaded.

        Least loaded: by all bytes in use where nothing need be evicted, else by those of active streams.
        """
        home = self._homes.get(context_id)
        if home is not None and home.active_bytes + need_bytes <= home.capacity_bytes:
            return home
        best: Memory | None = None
        best_load = (2, 0)
        for memory in self.memories:
            active = memory.active_bytes
            if active + need_bytes > memory.capacity_bytes:
                continue
            used = active + memory.idle_bytes
            load = (0, used) if used + need_bytes <= memory.capacity_bytes else (1, active)
            if load < best_load:
                best, best_load = memory, load
        return best

    def _forget(self, context_id: str) -> tuple[Memory, _Resident] | None:
        memory = self._homes.pop(context_id, None)
        if memory is None:
            return None
        resident = memory.idle.pop(context_id)
        memory.idle_bytes -= resident.bytes
        return memory, resident
