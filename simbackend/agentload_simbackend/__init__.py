"""The simulator: specs, step-time models, the engine, the HTTP server.

`SimServer` is imported when it is first used, since aiohttp comes with it; so is what only one command needs.
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
    from agentload_simbackend._fidelity import Fidelity, FittedParameters, fidelity
    from agentload_simbackend._fidelity_gpu import GpuFidelity, GpuGroupErrors, GpuPin, GpuSystem
    from agentload_simbackend._fidelity_row import FidelityRow
    from agentload_simbackend._fit import MemoryNeed
    from agentload_simbackend._gantt import GanttDrawing, gantt_html, gantt_svg
    from agentload_simbackend._gpu_fit import GpuErrors
    from agentload_simbackend._schedule import Budget, LayerSchedule, StepSchedule
    from agentload_simbackend._schedule_fitted import OperationTime
    from agentload_simbackend._schedule_input import FIRST_BIT_S, ScheduleOptions
    from agentload_simbackend._schedule_view import (
        AblationRow,
        ElsewhereTime,
        ScheduledDeployment,
        deployment_to_schedule,
    )
    from agentload_simbackend._server import SimServer

__all__ = [
    "AGENT_HEADER",
    "CLASS_HEADER",
    "CONTENT_HEADER",
    "FIRST_BIT_S",
    "MODES",
    "SESSION_HEADER",
    "TURN_HEADER",
    "AblationRow",
    "Arrival",
    "ArrivalsFunction",
    "Budget",
    "ChipsDown",
    "Deployment",
    "Drain",
    "ElsewhereTime",
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
    "FittedParameters",
    "GanttDrawing",
    "GpuErrors",
    "GpuFidelity",
    "GpuGroupErrors",
    "GpuPin",
    "GpuSystem",
    "KvLoss",
    "LatencyClass",
    "LayerSchedule",
    "LinkDown",
    "MemoryNeed",
    "Mode",
    "OperationTime",
    "Phases",
    "PowerCap",
    "PromptRun",
    "Quantity",
    "Refuse",
    "Rejected",
    "Reset",
    "ScheduleOptions",
    "ScheduledDeployment",
    "ServerTimes",
    "SimServer",
    "SimulatedModel",
    "Stall",
    "StepSchedule",
    "build_engine",
    "decode_id",
    "deployment_to_schedule",
    "derived_figures",
    "encode_id",
    "faults_sentence",
    "fidelity",
    "gantt_html",
    "gantt_svg",
    "list_deployments",
    "list_models",
    "load_deployment",
    "load_faults",
    "load_model",
    "shown_number",
]


_LATER = {
    "Fidelity": "_fidelity",
    "FidelityRow": "_fidelity_row",
    "FittedParameters": "_fidelity",
    "GpuErrors": "_gpu_fit",
    "GpuFidelity": "_fidelity_gpu",
    "GpuGroupErrors": "_fidelity_gpu",
    "GpuPin": "_fidelity_gpu",
    "GpuSystem": "_fidelity_gpu",
    "fidelity": "_fidelity",
    "AblationRow": "_schedule_view",
    "Budget": "_schedule",
    "ElsewhereTime": "_schedule_view",
    "FIRST_BIT_S": "_schedule_input",
    "GanttDrawing": "_gantt",
    "LayerSchedule": "_schedule",
    "MemoryNeed": "_fit",
    "OperationTime": "_schedule_fitted",
    "ScheduleOptions": "_schedule_input",
    "ScheduledDeployment": "_schedule_view",
    "StepSchedule": "_schedule",
    "deployment_to_schedule": "_schedule_view",
    "gantt_html": "_gantt",
    "gantt_svg": "_gantt",
    "SimServer": "_server",
}
"""Modules of what only `agentload fidelity`, `schedule` or `serve` needs."""


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module(f"agentload_simbackend.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
