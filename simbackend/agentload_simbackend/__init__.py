"""The simulator: specs, step-time models, the engine, the HTTP server.

`SimServer` is imported when it is first used, since aiohttp comes with it.
"""

from __future__ import annotations

from importlib import import_module
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
from agentload_simbackend._fault_files import faults_sentence, load_faults
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
from agentload_simbackend._specs import MODES, Mode
from agentload_simbackend._wire import (
    AGENT_HEADER,
    CLASS_HEADER,
    CONTENT_HEADER,
    SESSION_HEADER,
    TURN_HEADER,
    ServerTimes,
    SimulatedModel,
    decode_id,
    encode_id,
)

if TYPE_CHECKING:
    from agentload_simbackend._fidelity import Fidelity, fidelity
    from agentload_simbackend._fidelity_gpu import GpuErrors
    from agentload_simbackend._fidelity_row import FidelityRow
    from agentload_simbackend._server import SimServer

__all__ = [
    "AGENT_HEADER",
    "CLASS_HEADER",
    "CONTENT_HEADER",
    "MODES",
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
    "Fidelity",
    "FidelityRow",
    "Figure",
    "Finished",
    "FirstToken",
    "GpuErrors",
    "KvLoss",
    "LatencyClass",
    "LinkDown",
    "Mode",
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
    "faults_sentence",
    "fidelity",
    "list_deployments",
    "list_models",
    "load_deployment",
    "load_faults",
    "load_model",
    "shown_number",
]


_FIDELITY = {
    "Fidelity": "_fidelity",
    "FidelityRow": "_fidelity_row",
    "GpuErrors": "_fidelity_gpu",
    "fidelity": "_fidelity",
}
"""Only `agentload fidelity` needs it."""


def __getattr__(name: str) -> object:
    if name == "SimServer":
        from agentload_simbackend._server import SimServer

        return SimServer
    if name in _FIDELITY:
        return getattr(import_module(f"agentload_simbackend.{_FIDELITY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
