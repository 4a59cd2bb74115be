"""What the tests of the load share: the options of a run of which only the load matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from agentload._options import LoadOptions, ReplayOptions


def load_options(
    workers: int = 1, clock: Literal["virtual", "wall"] = "virtual", **load: Any
) -> ReplayOptions:
    return ReplayOptions(
        trace=Path("t"), out=Path("o"), clock=clock, workers=workers, load=LoadOptions(**load)
    )
