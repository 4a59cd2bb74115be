"""The prefill pool: its instances, the queue before them, and the prefix cache that they share."""

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

    def _start(self, flight: Flight, now_ns: int) -> int:
        tokens = flight.request.input_tokens
        hit_tokens, host_bytes = self.cache.hit(flight.runs)
        hit_tokens = min(hit_tokens, tokens - 1)
        flight.cached_tokens = cached = hit_tokens - hit_tokens % self._block
        flight.move(Stage.PREFILL, now_ns)
        end_ns = now_ns + self._model.compute_ns(cached, tokens - cached)
        if host_bytes:
            end_ns += int(host_bytes / self._host_bytes_per_ns) + 1
        self._events.plan(end_ns + self._model.latency_ns, self._on_done, flight)
        return end_ns

    def _on_done(self, flight: Flight, now_ns: int) -> None:
        self.cache.insert(flight.runs, flight.request.input_tokens)
        flight.event_seq = -1
        self._done(flight, now_ns)

    def enter(self, flight: Flight, now_ns: int) -> None:
        """Prefill a request when its turn comes."""
        self.station.enter(flight, now_ns)
        self._events.arm(self.station, self._on_station)

    def occupancy(self) -> list[PoolUse]:
        """What the prefix cache takes of HBM and of host memory."""
        cache = self.cache
        return [
            PoolUse("prefix cache HBM", cache.used_bytes, cache.capacity_bytes),
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
