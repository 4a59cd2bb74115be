"""The prefill pool: its instances, the queue before them, and the memory and prefix cache that they share.

The KV of a prompt takes room there from when its prefill begins until it has crossed the link; what is not in
use is the prefix cache, which gives way. Where that is not enough, the next prefill waits until KV has left;
a prompt larger than all the room goes ahead when it is alone.
"""

from __future__ import annotations

from collections.abc import Callable

from agentload_simbackend._events import Events
from agentload_simbackend._flight import Flight, Stage
from agentload_simbackend._plan import PrefillPlan
from agentload_simbackend._prefix_cache import PrefixCache
from agentload_simbackend._setup import PoolUse
from agentload_simbackend._station import Station


class PrefillPool:
    """Prefills whole prompts, one at a time in each instance; `done` is called with each, when it is.

    What comes back from host memory takes its time on the instance, before the prefill itself.
    """

    def __init__(self, plan: PrefillPlan, events: Events, done: Callable[[Flight, int], None]) -> None:
        self._model = plan.model
        self._block = plan.cache_block
        self._host_bytes_per_ns = plan.host_bytes_per_ns
        self._events = events
        self._done = done
        self.cache = PrefixCache(plan.cache_bytes, plan.host_cache_bytes, plan.kv)
        self.station = Station(plan.instances, self._start)
        self._kv = plan.kv
        self._inside = 0
        """How many requests' KV is there."""

    def _start(self, flight: Flight, now_ns: int) -> int | None:
        tokens, cache = flight.request.input_tokens, self.cache
        hit_tokens, host_bytes, node = cache.hit(flight.runs)
        # A try that has to wait may let go again what it brought back from the host: it counts once.
        flight.host_bytes = max(flight.host_bytes, host_bytes)
        hit_tokens = min(hit_tokens, tokens - 1)
        new_bytes = self._kv.transfer_bytes(tokens - hit_tokens, tokens)
        cache.reserve(new_bytes)
        if self._inside and cache.over:
            cache.reserved_bytes -= new_bytes
            cache.unpin(node)
            return None
        self._inside += 1
        flight.held_node, flight.held_bytes = node, new_bytes
        flight.cached_tokens = cached = hit_tokens - hit_tokens % self._block
        flight.move(Stage.PREFILL, now_ns)
        end_ns = now_ns + self._model.compute_ns(cached, tokens - cached)
        if flight.host_bytes:
            end_ns += int(flight.host_bytes / self._host_bytes_per_ns) + 1
        self._events.plan(end_ns + self._model.latency_ns, self._on_done, flight)
        return end_ns

    def _on_done(self, flight: Flight, now_ns: int) -> None:
        cache, node = self.cache, flight.held_node
        assert node is not None
        cache.reserved_bytes -= flight.held_bytes
        flight.held_bytes = 0
        cache.unpin(node)
        flight.held_node = cache.insert(flight.runs, flight.request.input_tokens)
        flight.event_seq = -1
        self._serve_held_back(now_ns)
        self._done(flight, now_ns)

    def release(self, flight: Flight, now_ns: int) -> None:
        """The KV of a request has left, or is of no use any more; what is gone already is ignored."""
        node = flight.held_node
        if node is None:
            return
        flight.held_node = None
        self._inside -= 1
        self.cache.reserved_bytes -= flight.held_bytes
        self.cache.unpin(node)
        self._serve_held_back(now_ns)

    def _serve_held_back(self, now_ns: int) -> None:
        """Memory has got free: try the prefill that waits for some."""
        if self.station.held_back:
            self._on_station(self.station, now_ns)

    def enter(self, flight: Flight, now_ns: int) -> None:
        """Prefill a request when its turn comes."""
        self.station.enter(flight, now_ns)
        self._events.arm(self.station, self._on_station)

    def occupancy(self) -> list[PoolUse]:
        """What KV in use and the prefix cache take of HBM, and the prefix cache of host memory."""
        cache = self.cache
        return [
            PoolUse("prefill HBM", cache.used_bytes + cache.reserved_bytes, cache.capacity_bytes),
            PoolUse("prefix cache host", cache.used_host_bytes, cache.host_capacity_bytes),
        ]

    def drop(self, flight: Flight, now_ns: int, *, waiting: bool) -> None:
        """Forget a request that waits or is prefilled."""
        self.station.drop(flight, now_ns, waiting=waiting)
        self._events.arm(self.station, self._on_station)

    def _on_station(self, station: Station, now_ns: int) -> None:
        station.armed_ns = None
        station.serve(now_ns)
        self._events.arm(station, self._on_station)
