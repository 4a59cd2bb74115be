"""Which requests are refused as they come, and what they are told."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._error_codes import (
    CONTEXT_LENGTH_EXCEEDED,
    INSUFFICIENT_MEMORY,
    RATE_LIMIT_EXCEEDED,
    REFUSED,
    SERVICE_UNAVAILABLE,
)
from agentload_simbackend._faulting import Faulting
from agentload_simbackend._flight import Flight
from agentload_simbackend._plan import MemoryPool
from agentload_simbackend._serving import Serving
from agentload_simbackend._setup import Setup


class Refusal(NamedTuple):
    """What `Rejected` says."""

    code: str
    message: str
    status: int
    retry_after_s: float | None


class Refusals:
    """Admission: a request that can never be served is told why, one too many is told when to come back."""

    def __init__(self, setup: Setup, serving: Serving, faulting: Faulting) -> None:
        self._plan = setup.plan
        self._max_context = setup.max_context_tokens
        self._most_waiting = setup.rules.most_waiting
        self._retry_after_s = setup.rules.retry_after_s
        self._serving = serving
        self._faulting = faulting
        self._planned_tokens = max(replica.max_stream_tokens for replica in setup.plan.replicas)

    def of(self, flight: Flight) -> Refusal | None:
        """Why a request is refused; `None` if it is taken."""
        fault = self._faulting.refusal(flight.request) if self._faulting.refuses else None
        if fault is not None:
            message = "refused by a fault of the simulation"
            return Refusal(REFUSED[fault.status], message, fault.status, fault.retry_after_s)
        if flight.tokens > self._max_context:
            message = f"{_asked(flight)}; the model's context is {self._max_context}"
            return Refusal(CONTEXT_LENGTH_EXCEEDED, message, 400, None)
        if flight.tokens > self._planned_tokens:
            return Refusal(INSUFFICIENT_MEMORY, self._arithmetic(flight), 400, None)
        if flight.tokens > self._serving.router.ever_tokens:
            message = f"no replica that can hold its {flight.tokens} tokens is up or comes back"
            return Refusal(SERVICE_UNAVAILABLE, message, 503, None)
        most = self._most_waiting
        if most is not None and self._serving.waiting >= most:
            message = f"{most} requests wait already, and no more may"
            return Refusal(RATE_LIMIT_EXCEEDED, message, 429, self._retry_after_s)
        return None

    def _arithmetic(self, flight: Flight) -> str:
        """Which memory of the largest replica is too small for it."""
        replica = max(self._plan.replicas, key=lambda replica: replica.max_stream_tokens)
        pool = min(replica.pools, key=lambda pool: pool.max_stream_tokens)
        return (
            f"{_asked(flight)} x {pool.bytes_per_token} B + {pool.bytes_per_stream / 1e9:.3f} GB a stream = "
            f"{_need_bytes(flight, pool) / 1e9:.3f} GB of KV; a decode replica has "
            f"{pool.capacity_bytes / 1e9:.3f} GB of {pool.name} for it"
        )


def _asked(flight: Flight) -> str:
    request = flight.request
    return f"{request.input_tokens} prompt + {request.output_tokens} output = {flight.tokens} tokens"


def _need_bytes(flight: Flight, pool: MemoryPool) -> int:
    return flight.tokens * pool.bytes_per_token + pool.bytes_per_stream
