"""What a deployment comes to: memory, step times and links of each of its parts.

A replica may be planned again for fewer chips than its deployment gives it, as after a fault. They are as far
apart as before, so its steps are never faster.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from agentload_simbackend._deployment import Deployment
from agentload_simbackend._fit import MemoryNeed, memory_needs
from agentload_simbackend._gpu_terms import GpuGroup
from agentload_simbackend._memory import KvShape
from agentload_simbackend._prefill_time import ChunkedPrefill, LpuPrefill, PrefillModel
from agentload_simbackend._specs import LpuChip, LpuSide
from agentload_simbackend._step_time import StepModel, gpu_group, link_bytes_per_s, lpu_work, step_model
from agentload_traces import SpecError


class MemoryPool(NamedTuple):
    """Memory that streams share: N of them with T tokens take bytes_per_token x T + bytes_per_stream x N.

    name: "SRAM" or "HBM".
    """

    name: str
    capacity_bytes: int
    bytes_per_token: int
    bytes_per_stream: int

    @property
    def max_stream_tokens(self) -> int:
        """Tokens of a stream that has the pool to itself."""
        left = self.capacity_bytes - self.bytes_per_stream
        if left < 0:
            return 0
        return left // self.bytes_per_token if self.bytes_per_token else sys.maxsize


class LinkPlan(NamedTuple):
    """The way of the KV into a replica."""

    bytes_per_ns: float
    latency_ns: int


class ReplicaPlan(NamedTuple):
    """One decode replica.

    pools: a stream needs room in each of them. links: of the hand-off; `None` if the replica prefills itself,
    and then `chunked` says how. spill: it serves what the others have no room for.
    """

    chips: int
    pools: tuple[MemoryPool, ...]
    steps: StepModel
    links: LinkPlan | None
    chunked: ChunkedPrefill | None
    spill: bool

    @property
    def max_stream_tokens(self) -> int:
        """Prompt and answer of a stream that has the replica to itself."""
        return min(pool.max_stream_tokens for pool in self.pools)


class PrefillPlan(NamedTuple):
    """The prefill pool.

    kv: as an instance holds it, with copies of heads that it cannot split; the host cache has them too.
    host_bytes_per_ns: of one instance, from the host cache back into HBM.
    """

    model: PrefillModel
    instances: int
    kv: KvShape
    cache_bytes: int
    host_cache_bytes: int
    host_bytes_per_ns: float
    cache_block: int


class ServingPlan(NamedTuple):
    """All parts of a deployment; replicas to spill to come last."""

    prefill: PrefillPlan | None
    replicas: tuple[ReplicaPlan, ...]


def build_plan(deployment: Deployment) -> ServingPlan:
    """The plan of a deployment. Raises `SpecError` if the weights do not fit."""
    spec = deployment.spec
    count = spec.decode.replicas.whole
    parts = [(0, count, spec.decode.chips_per_replica.whole)]
    if spec.spill is not None:
        parts.append((count, spec.spill.replicas.whole, spec.spill.chips_per_replica.whole))
    replicas: list[ReplicaPlan] = []
    for index, copies, chips in parts:
        replica = replica_plan(deployment, index, chips)
        if replica is None:
            raise SpecError(f"{deployment.name}: the weights do not fit {chips} chips")
        replicas += [replica] * copies
    return ServingPlan(_prefill(deployment), tuple(replicas))


def replica_plan(deployment: Deployment, index: int, chips: int) -> ReplicaPlan | None:
    """A replica on `chips` chips (afd: LPUs; drafter: GPUs); `None` if the weights do not fit on them.

    index: of the replica, as in `ServingPlan.replicas`.
    """
    if chips < 1:
        return None
    spill = index >= deployment.spec.decode.replicas.whole
    needs = _replica_needs(deployment, chips, spill=spill)
    if not all(need.holds_weights for need in needs):
        return None
    pools = tuple(_pool(need) for need in needs)
    chunked = _chunked(deployment, chips) if deployment.spec.prefill is None else None
    links = _links(deployment, deployment.spec.decode.chips_per_replica.whole if spill else chips)
    return ReplicaPlan(chips, pools, step_model(deployment, chips, spill=spill), links, chunked, spill)


def _replica_needs(deployment: Deployment, chips: int, *, spill: bool) -> list[MemoryNeed]:
    """Where a replica of so many chips keeps weights and KV."""
    needs = {need.side: need for need in memory_needs(deployment)}
    if spill:
        return [needs["spill"]._replace(chips=chips)]
    others = [needs[side] for side in ("attention", "draft.lpus") if side in needs]
    return [needs["decode"]._replace(chips=chips), *others]


def _pool(need: MemoryNeed) -> MemoryPool:
    name = "SRAM" if isinstance(need.chip, LpuChip) else "HBM"
    return MemoryPool(name, need.room_bytes, need.bytes_per_token, need.bytes_per_stream)


def _links(deployment: Deployment, chips: int) -> LinkPlan | None:
    """The hand-off: `link`, with as much bandwidth as the replica's chips give it.

    In mode afd the growing KV goes to the attention side over `link`, windows and states to the LPX over
    `split_link`: all of it is taken to go at the rate of the slower, with the longer latency. To a replica to
    spill to, in the rack that prefills, the deployment names no link: it gets what a replica on LPX has.
    """
    spec, link, split = deployment.spec, deployment.link, deployment.split_link
    if link is None:
        return None
    rate, latency_s = link_bytes_per_s(link, chips), link.latency.value
    if spec.attention is not None and split is not None:
        gpus = spec.attention.gpus_per_replica.whole
        rate = min(link_bytes_per_s(link, gpus), link_bytes_per_s(split, chips))
        latency_s = max(latency_s, split.latency.value)
    return LinkPlan(rate / 1e9, round(latency_s * 1e9))


def _chunked(deployment: Deployment, chips: int) -> ChunkedPrefill:
    decode = deployment.spec.decode
    if isinstance(decode, LpuSide):
        if decode.prefill_chunk is None:
            raise SpecError(f"{deployment.name}: decode.prefill_chunk: is missing; nothing else prefills")
        lpus = LpuPrefill(lpu_work(deployment, chips), decode.prefill_chunk.whole)
        return ChunkedPrefill(lpus.compute_s, lpus.chunk_tokens, lpus.latency_ns)
    gpus = PrefillModel(deployment.shape, gpu_group(deployment, chips))
    return ChunkedPrefill(gpus.compute_s, gpus.chunk_tokens, gpus.latency_ns)


def _prefill(deployment: Deployment) -> PrefillPlan | None:
    spec, chip = deployment.spec.prefill, deployment.prefill_chip
    if spec is None or chip is None:
        return None
    gpus, instances = spec.gpus_per_instance.whole, spec.instances.whole
    kv_bytes = deployment.spec.kv_bytes.whole
    room_bytes = next(need.room_bytes for need in memory_needs(deployment) if need.side == "prefill")
    host_bytes = chip.host_memory.value if chip.host_memory else 0.0
    host_rate = chip.host_bandwidth.value if chip.host_bandwidth else 0.0
    return PrefillPlan(
        model=PrefillModel(deployment.shape, GpuGroup(chip, gpus, deployment.stored_bytes(chip), kv_bytes)),
        instances=instances,
        kv=KvShape.on_gpus(deployment.shape, kv_bytes, gpus),
        cache_bytes=room_bytes * instances,
        host_cache_bytes=int(host_bytes * gpus * instances * spec.host_cache.value) if host_rate else 0,
        host_bytes_per_ns=host_rate * gpus / 1e9,
        cache_block=spec.cache_block.whole,
    )
