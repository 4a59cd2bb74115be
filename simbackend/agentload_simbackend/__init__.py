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
    Finished,
    FirstToken,
    Phases,
    PromptRun,
    Rejected,
)
from agentload_simbackend._deployment import Deployment
from agentload_simbackend._engine import build_engine
from agentload_simbackend._figures import Figure, derived_figures
from agentload_simbackend._load import list_deployments, load_deployment
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
    "Deployment",
    "Emission",
    "Engine",
    "EngineRequest",
    "Figure",
    "Finished",
    "FirstToken",
    "Phases",
    "PromptRun",
    "Quantity",
    "Rejected",
    "ServerTimes",
    "SimServer",
    "SimulatedModel",
    "build_engine",
    "decode_id",
    "derived_figures",
    "encode_id",
    "list_deployments",
    "load_deployment",
    "shown_number",
]


def __getattr__(name: str) -> object:
    if name == "SimServer":
        from agentload_simbackend._server import SimServer

        return SimServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
