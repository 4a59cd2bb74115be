"""Which contexts hold which bytes of the decode replicas' memory."""

from __future__ import annotations

from collections import OrderedDict

from agentload_simbackend._api import PromptRun
from agentload_simbackend._runs import shared_tokens

Place = tuple[int, int, int | None]
"""Where a stream was admitted, and what of its prompt is there already: (replica, resident, past).

The first `resident` tokens need not be handed over. `past` tokens have passed through the sliding windows
there since the last of them; `None` if the windows are not those of the end of these tokens.
"""


class Resident:
    """A context that stays between its turns, and the bytes that it holds.

    runs, prompt_tokens: the prompt of its last turn; its first `resident_tokens` tokens are there.
    past_tokens: the sliding layers have seen so many tokens after the prompt, at most; `None` if it is not
        the end of the prompt that their windows hold.
    """

    __slots__ = ("bytes", "past_tokens", "prompt_tokens", "resident_tokens", "runs")

    def __init__(
        self,
        held_bytes: int,
        runs: list[PromptRun],
        prompt_tokens: int,
        resident_tokens: int,
        past_tokens: int | None,
    ) -> None:
        self.bytes = held_bytes
        self.runs = runs
        self.prompt_tokens = prompt_tokens
        self.resident_tokens = resident_tokens
        self.past_tokens = past_tokens


class Memory:
    """KV memory of one replica: bytes reserved by streams, and contexts that wait for their next turn."""

    def __init__(self, index: int, capacity_bytes: int) -> None:
        self.index = index
        self.capacity_bytes = capacity_bytes
        self.active_bytes = 0
        self.idle_bytes = 0
        self.idle: OrderedDict[str, Resident] = OrderedDict()


class Residency:
    """Places streams in replicas by bytes. Idle contexts are evicted, least recently used first."""

    def __init__(self, replicas: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.memories = [Memory(index, capacity_bytes) for index in range(replicas)]
        self._homes: dict[str, Memory] = {}

    def admit(self, context_id: str, need_bytes: int, runs: list[PromptRun]) -> Place | None:
        """Reserve bytes for a stream; `None` if it has to wait until another one ends."""
        memory = self._choose(context_id, need_bytes)
        if memory is None:
            return None
        home = self._forget(context_id)
        shared, past_tokens = 0, None
        if home is not None and home[0] is memory:
            resident = home[1]
            shared = shared_tokens(resident.runs, resident.prompt_tokens, runs)
            if shared == resident.prompt_tokens:
                past_tokens = resident.past_tokens
            shared = min(shared, resident.resident_tokens)
        memory.active_bytes += need_bytes
        while memory.active_bytes + memory.idle_bytes > memory.capacity_bytes:
            self._forget(next(iter(memory.idle)))
        return memory.index, shared, past_tokens

    def end(self, replica: int, context_id: str, need_bytes: int, resident: Resident) -> None:
        """A stream ended or was cancelled: its bytes are free but for those that stay as an idle context.

        A part of a prompt does not take the place of what another stream of the context has left.
        """
        memory = self.memories[replica]
        memory.active_bytes -= need_bytes
        whole = resident.resident_tokens == resident.prompt_tokens
        if not resident.resident_tokens or (context_id in self._homes and not whole):
            return
        self._forget(context_id)
        memory.idle_bytes += resident.bytes
        memory.idle[context_id] = resident
        self._homes[context_id] = memory

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

    def _forget(self, context_id: str) -> tuple[Memory, Resident] | None:
        memory = self._homes.pop(context_id, None)
        if memory is None:
            return None
        resident = memory.idle.pop(context_id)
        memory.idle_bytes -= resident.bytes
        return memory, resident
