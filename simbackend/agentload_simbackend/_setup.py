"""All that an engine rests on, taken from a deployment."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._acceptance import ContentAcceptance
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._memory import KvShape
from agentload_simbackend._plan import ServingPlan, build_plan, replica_plan
from agentload_simbackend._replica import Replan
from agentload_simbackend._router import Rules


class Setup(NamedTuple):
    """replan: the plan of a replica with fewer chips. max_context_tokens: of the model."""

    plan: ServingPlan
    replan: Replan
    kv: KvShape
    rules: Rules
    acceptance: ContentAcceptance
    max_context_tokens: int
    seed: int


class PoolUse(NamedTuple):
    """Bytes taken of one memory."""

    name: str
    used_bytes: int
    capacity_bytes: int


def setup_of(deployment: Deployment, seed: int) -> Setup:
    """The plan, rules and draws of a deployment."""
    spec = deployment.spec
    return Setup(
        build_plan(deployment),
        lambda index, chips: replica_plan(deployment, index, chips),
        deployment.kv,
        Rules.of(spec.router),
        ContentAcceptance(seed, spec.speculation),
        deployment.max_context_tokens,
        seed,
    )
