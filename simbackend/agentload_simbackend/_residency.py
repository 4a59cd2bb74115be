"""Which contexts hold which room of the decode replicas' memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from agentload_simbackend._api import PromptRun
from agentload_simbackend._plan import MemoryPool
from agentload_simbackend._runs import shared_tokens
from agentload_simbackend._specs import KvPolicy


class Place(NamedTuple):
    """Where a stream was admitted, and what of its prompt is there already.

    The first `resident_tokens` tokens need not be handed over. `past_tokens` tokens have passed through the
    sliding windows there since the last of them; `None` if the windows are not those of their end.
    """

    replica: int
    resident_tokens: int
    past_tokens: int | None


class Resident:
    """A context that stays between its turns.

    tokens: what it keeps room for. until_ns: before that nobody else may have its room.
    runs, prompt_tokens: the prompt of its last turn; its first `resident_tokens` tokens are there.
    past_tokens: the sliding layers have seen so many tokens after the prompt, at most; `None` if it is not
        the end of the prompt that their windows hold.
    """

    __slots__ = ("past_tokens", "prompt_tokens", "resident_tokens", "runs", "tokens", "until_ns")

    def __init__(
        self,
        tokens: int,
        runs: list[PromptRun],
        prompt_tokens: int,
        resident_tokens: int,
        past_tokens: int | None,
    ) -> None:
        self.tokens = tokens
        self.runs = runs
        self.prompt_tokens = prompt_tokens
        self.resident_tokens = resident_tokens
        self.past_tokens = past_tokens
        self.until_ns = 0


class Memory:
    """KV memory of one replica: what streams reserve, and contexts that wait for their next turn.

    N streams of T tokens in all take `bytes_per_token` x T + `bytes_per_stream` x N of each pool.
    most_tokens: of a stream that is alone. queued_tokens: that wait to be prefilled here.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.reset(())

    def reset(self, pools: Sequence[MemoryPool]) -> None:
        """Empty it, and give it other pools; without any it has room for nothing."""
        self.pools = tuple(pools)
        self.most_tokens = most_tokens(pools)
        self.tokens = 0
        self.streams = 0
        self.queued_tokens = 0
        self.idle_tokens = 0
        self.kept_tokens = 0
        self.idle: OrderedDict[str, Resident] = OrderedDict()
        self.kept: OrderedDict[str, Resident] = OrderedDict()

    def fits(self, tokens: int, streams: int) -> bool:
        """Whether so much fits into each pool."""
        for _, capacity_bytes, bytes_per_token, bytes_per_stream in self.pools:
            if bytes_per_token * tokens + bytes_per_stream * streams > capacity_bytes:
                return False
        return True

    def fullness(self, tokens: int, streams: int) -> float:
        """The part of the fullest pool that so much takes."""
        return max(
            (each.bytes_per_token * tokens + each.bytes_per_stream * streams) / (each.capacity_bytes or 1)
            for each in self.pools
        )

    def used_bytes(self) -> list[int]:
        """Bytes taken of each pool, by streams and contexts."""
        tokens = self.tokens + self.idle_tokens + self.kept_tokens
        streams = self.streams + len(self.idle) + len(self.kept)
        return [each.bytes_per_token * tokens + each.bytes_per_stream * streams for each in self.pools]

    def expire(self, now_ns: int) -> None:
        """Let those contexts be evicted whose time is over."""
        kept = self.kept
        while kept:
            context_id, resident = next(iter(kept.items()))
            if resident.until_ns > now_ns:
                return
            del kept[context_id]
            self.kept_tokens -= resident.tokens
            self.idle[context_id] = resident
            self.idle_tokens += resident.tokens

    def next_expiry_ns(self) -> int | None:
        """When the next context may be evicted that may not be yet."""
        return next(iter(self.kept.values())).until_ns if self.kept else None


def most_tokens(pools: Sequence[MemoryPool]) -> int:
    """How many tokens a stream may have that is alone in such pools."""
    return min((pool.max_stream_tokens for pool in pools), default=0)


class Residency:
    """Places streams in replicas. Idle contexts are evicted, least recently used first.

    policy, keep_ns: see `KvPolicy`. by_work: place by what a replica has to prefill, see `_by_work`.
    """

    def __init__(self, replicas: int, policy: KvPolicy, keep_ns: int, *, by_work: bool) -> None:
        self.memories = [Memory(index) for index in range(replicas)]
        self._policy = policy
        self._keep_ns = keep_ns if policy == "keep" else 0
        self._by_work_first = by_work
        self._homes: dict[str, Memory] = {}

    def admit(
        self,
        context_id: str,
        tokens: int,
        runs: list[PromptRun],
        prompt_tokens: int,
        memories: Sequence[Memory],
        now_ns: int,
    ) -> Place | None:
        """Reserve room for a stream in one of `memories`; `None` if it has to wait."""
        if self._keep_ns:
            for memory in memories:
                memory.expire(now_ns)
        home = self._homes.get(context_id)
        if self._by_work_first:
            chosen = self._by_work(context_id, home, tokens, runs, prompt_tokens, memories)
        elif home is not None and home in memories and self._fits(home, context_id, tokens):
            chosen = home
        else:
            chosen = _least_loaded(memories, tokens)
        if chosen is None:
            return None
        resident_tokens, past_tokens = 0, None
        if home is not None:
            resident = self._forget(context_id, home)
            if home is chosen:
                resident_tokens, past_tokens = _shared(resident, runs)
        chosen.tokens += tokens
        chosen.streams += 1
        self._make_room(chosen)
        return Place(chosen.index, resident_tokens, past_tokens)

    def kept_home(self, context_id: str) -> Memory | None:
        """The replica that keeps a context's room for it."""
        home = self._homes.get(context_id)
        return home if home is not None and context_id in home.kept else None

    def end(self, replica: int, context_id: str, tokens: int, resident: Resident, now_ns: int) -> None:
        """A stream ended or was cancelled: its room is free but for what stays as an idle context.

        A part of a prompt does not take the place of what another stream of the context has left.
        """
        memory = self.memories[replica]
        memory.tokens -= tokens
        memory.streams -= 1
        home = self._homes.get(context_id)
        whole = resident.resident_tokens == resident.prompt_tokens
        if not resident.resident_tokens or self._policy == "drop" or (home is not None and not whole):
            return
        if home is not None:
            self._forget(context_id, home)
        if self._keep_ns:
            resident.until_ns = now_ns + self._keep_ns
            memory.kept[context_id] = resident
            memory.kept_tokens += resident.tokens
        else:
            memory.idle[context_id] = resident
            memory.idle_tokens += resident.tokens
        self._homes[context_id] = memory

    def lose(self, memory: Memory) -> None:
        """Forget all contexts of a replica that wait for their next turn."""
        for context_id in [*memory.idle, *memory.kept]:
            self._forget(context_id, memory)

    def next_expiry_ns(self, now_ns: int) -> int | None:
        """When the next context may be evicted that may not be now."""
        for memory in self.memories:
            memory.expire(now_ns)
        found = [at_ns for memory in self.memories if (at_ns := memory.next_expiry_ns()) is not None]
        return min(found, default=None)

    def _fits(self, memory: Memory, context_id: str, tokens: int) -> bool:
        """Whether a stream fits once idle contexts are gone, but for others' that must be kept."""
        kept_tokens, kept = memory.kept_tokens, len(memory.kept)
        own = memory.kept.get(context_id)
        if own is not None:
            kept_tokens, kept = kept_tokens - own.tokens, kept - 1
        return memory.fits(memory.tokens + kept_tokens + tokens, memory.streams + kept + 1)

    def _by_work(
        self,
        context_id: str,
        home: Memory | None,
        tokens: int,
        runs: list[PromptRun],
        prompt_tokens: int,
        memories: Sequence[Memory],
    ) -> Memory | None:
        """The replica that has the fewest tokens to prefill until this prompt is done, then the emptiest."""
        best, best_work = None, (0, 0.0)
        for memory in memories:
            if not self._fits(memory, context_id, tokens):
                continue
            new_tokens = prompt_tokens
            if memory is home:
                resident = memory.idle.get(context_id) or memory.kept[context_id]
                new_tokens -= _shared(resident, runs)[0]
            work = (memory.queued_tokens + new_tokens, memory.fullness(memory.tokens, memory.streams))
            if best is None or work < best_work:
                best, best_work = memory, work
        return best

    def _make_room(self, memory: Memory) -> None:
        """Evict idle contexts until all fits."""
        idle = memory.idle
        while idle:
            tokens = memory.tokens + memory.idle_tokens + memory.kept_tokens
            if memory.fits(tokens, memory.streams + len(idle) + len(memory.kept)):
                return
            self._forget(next(iter(idle)), memory)

    def _forget(self, context_id: str, memory: Memory) -> Resident:
        del self._homes[context_id]
        resident = memory.idle.pop(context_id, None)
        if resident is not None:
            memory.idle_tokens -= resident.tokens
        else:
            resident = memory.kept.pop(context_id)
            memory.kept_tokens -= resident.tokens
        return resident


def _shared(resident: Resident, runs: list[PromptRun]) -> tuple[int, int | None]:
    """Leading tokens of a prompt that are there, and how many have passed through the windows since."""
    shared = shared_tokens(resident.runs, resident.prompt_tokens, runs)
    past_tokens = resident.past_tokens if shared == resident.prompt_tokens else None
    return min(shared, resident.resident_tokens), past_tokens


def _least_loaded(memories: Sequence[Memory], tokens: int) -> Memory | None:
    """By all that is in use where nothing need be evicted, else by active streams."""
    best: Memory | None = None
    best_load = (2, 0.0)
    for memory in memories:
        active, streams = memory.tokens + memory.kept_tokens, memory.streams + len(memory.kept)
        if not memory.fits(active + tokens, streams + 1):
            continue
        all_tokens, all_streams = active + memory.idle_tokens, streams + len(memory.idle)
        if memory.fits(all_tokens + tokens, all_streams + 1):
            load = (0, memory.fullness(all_tokens, all_streams))
        else:
            load = (1, memory.fullness(active, streams))
        if load < best_load:
            best, best_load = memory, load
    return best
