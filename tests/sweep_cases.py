"""Points and traces that the tests of sweeps play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentload._sweep_points import SweepPoint, Workload
from agentload_traces import (
    PrefixBlocks,
    ToolCall,
    Turn,
    write_trace,
)

PD, RUBIN = "gemma4-31b/pd", "gemma4-31b/rubin"
SMALL = Workload(turns=3, output_tokens=20)


def a_point(target: str = PD, concurrency: int = 2, context: int = 2_000, **values: Any) -> SweepPoint:
    workload = values.pop("workload", SMALL)
    return SweepPoint(
        target=target,
        concurrency=concurrency,
        places=values.pop("places", 4),
        context_tokens=context,
        workload=workload,
        seed=0,
        **values,
    )


def a_trace(path: Path, sessions: int = 2) -> Path:
    turns = [
        Turn(
            session_id=f"s{number}",
            turn_id=f"t{index}",
            wait_for=(f"t{index - 1}",) if index else (),
            input_tokens=1_000 * (index + 1),
            output_tokens=50 + index,
            blocks=PrefixBlocks(ids=tuple(range(1, 2 * index + 3)), block_tokens=500, scope="trace"),
            tool_calls=(ToolCall(name="tool", duration_ms=100.0),),
        )
        for number in range(sessions)
        for index in range(4)
    ]
    write_trace(path, turns)
    return path


def a_named_deployment(folder: Path) -> Path:
    """A deployment's file with a name that is not UTF-8."""
    path = folder / "\udcff.toml"
    path.write_text(f'name = "named"\nbase = "{PD}"\n')
    return path
