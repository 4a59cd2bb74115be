"""The simulator: specs, step-time models, the engine, the HTTP server.

`SimServer` is imported when it is first used, since aiohttp comes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentload_simbackend._api import (
    Arrival,
    ArrivalsFunction,
    Emission,
    Engine,
    EngineRequest,
    Failed,
    Finished,
    FirstToken,
    LatencyClass,
    Phases,
    PromptRun,
    Rejected,
)
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._engine import build_engine
from agentload_simbackend._faults import (
    ChipsDown,
    Drain,
    Fault,
    KvLoss,
    LinkDown,
    PowerCap,
    Refuse,
    Reset,
    Stall,
)
from agentload_simbackend._figures import Figure, derived_figures
from agentload_simbackend._load import list_deployments, list_models, load_deployment, load_model
from agentload_simbackend._quantity import Quantity, shown_number
from agentload_simbackend._wire import (
    AGENT_HEADER,
    SESSION_HEADER,
    TURN_HEADER,
    ServerTimes,
    SimulatedModel,
    decode_id,
    encode_id,
)

if TYPE_CHECKING:
    from agentload_simbackend._server import SimServer

__all__ = [
    "AGENT_HEADER",
    "SESSION_HEADER",
    "TURN_HEADER",
    "Arrival",
    "ArrivalsFunction",
    "ChipsDown",
    "Deployment",
    "Drain",
    "Emission",
    "Engine",
    "EngineRequest",
    "Failed",
    "Fault",
    "Figure",
    "Finished",
    "FirstToken",
    "KvLoss",
    "LatencyClass",
    "LinkDown",
    "Phases",
    "PowerCap",
    "PromptRun",
    "Quantity",
    "Refuse",
    "Rejected",
    "Reset",
    "ServerTimes",
    "SimServer",
    "SimulatedModel",
    "Stall",
    "build_engine",
    "decode_id",
    "derived_figures",
    "encode_id",
    "list_deployments",
    "list_models",
    "load_deployment",
    "load_model",
    "shown_number",
]


def __getattr__(name: str) -> object:
    if name == "SimServer":
        from agentload_simbackend._server import SimServer

        return SimServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
