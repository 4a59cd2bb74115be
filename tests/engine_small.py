"""Deployments of every mode with memory for a few streams, so that requests queue, evict and spill."""

from __future__ import annotations

from functools import cache

from agentload_simbackend import load_deployment
from agentload_simbackend._plan import ReplicaPlan, replica_plan
from agentload_simbackend._setup import Setup, setup_of

LARGEST = 30_000
"""Tokens of the largest streams that a replica holds two of, and room for some thousand tokens more."""

NAMES = (
    "gemma4-31b/pd",
    "gemma4-31b/pd-spill",
    "gemma4-31b/rubin-aggregated",
    "gemma-4-31b/afd",
    "gemma-4-26b-a4b/drafter",
    "llama-3.1-8b/lpx",
    "gpt-oss-120b/pd",
    "gpt-oss-120b/drafter",
    "deepseek-r1/pd",
    "deepseek-r1/afd",
    "deepseek-r1/rubin",
    "nemotron-3-super-120b-a12b/lpx",
    "nemotron-3-super-120b-a12b/afd",
)


@cache
def base(name: str, seed: int) -> Setup:
    """A deployment with two replicas, and one to spill to if it has any, each with room for two streams."""
    deployment = load_deployment(name)
    setup = setup_of(deployment, seed)
    first = [index for index, replica in enumerate(setup.plan.replicas) if not replica.spill][:2]
    spill = [index for index, replica in enumerate(setup.plan.replicas) if replica.spill][:1]
    kept = first * (3 - len(first)) + spill
    plans = tuple(small(setup.plan.replicas[index], 1.0) for index in kept)
    prefill = setup.plan.prefill
    if prefill is not None:
        room = prefill.kv.stream_bytes(LARGEST)
        prefill = prefill._replace(
            instances=2,
            cache_bytes=2 * room,
            host_cache_bytes=3 * room,
            host_bytes_per_ns=prefill.host_bytes_per_ns or 100.0,
        )

    @cache
    def replan(index: int, chips: int) -> ReplicaPlan | None:
        whole = plans[index].chips
        plan = replica_plan(deployment, kept[index], chips)
        return None if plan is None else small(plan, chips / whole)

    return setup._replace(plan=setup.plan._replace(prefill=prefill, replicas=plans), replan=replan)


def small(plan: ReplicaPlan, share: float) -> ReplicaPlan:
    """The same replica with little memory; `share` of it."""
    pools = []
    for pool in plan.pools:
        room = pool.bytes_per_token * (2 * LARGEST + 5_000) + 3 * pool.bytes_per_stream
        pools.append(pool._replace(capacity_bytes=int(share * room)))
    return plan._replace(pools=tuple(pools))


@cache
def contents(name: str) -> tuple[str | None, ...]:
    """The content classes of a deployment."""
    speculation = load_deployment(name).spec.speculation
    return (None,) if speculation is None else (None, *sorted(speculation.acceptance_length))
