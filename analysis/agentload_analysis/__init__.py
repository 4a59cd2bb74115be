"""The analysis of run directories: tables, session times, report. Definitions: analysis/README.md.

Names are imported when they are first used, for they bring Polars and the plots with them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentload_analysis._csv import write_csv
    from agentload_analysis._html import write_html
    from agentload_analysis._itl import counted_gaps, itl_gaps, itl_source, itl_table
    from agentload_analysis._metrics import with_metrics
    from agentload_analysis._percentiles import VALUES_NEEDED
    from agentload_analysis._sessions import critical_path, sessions
    from agentload_analysis._snapshot import Snapshot, take_snapshot
    from agentload_analysis._summary import Summary, summarise
    from agentload_analysis._sweep_plot_frontier import pareto_frontier
    from agentload_analysis._sweep_plot_page import render_sweep, write_sweep_html, write_sweep_plot
    from agentload_analysis._tables import latency_table, overall, per_context, per_turn, per_turn_range
    from agentload_analysis._text import render_text

_HOMES = {
    "VALUES_NEEDED": "_percentiles",
    "Snapshot": "_snapshot",
    "Summary": "_summary",
    "counted_gaps": "_itl",
    "critical_path": "_sessions",
    "itl_gaps": "_itl",
    "itl_source": "_itl",
    "itl_table": "_itl",
    "latency_table": "_tables",
    "overall": "_tables",
    "pareto_frontier": "_sweep_plot_frontier",
    "per_context": "_tables",
    "per_turn": "_tables",
    "per_turn_range": "_tables",
    "render_sweep": "_sweep_plot_page",
    "render_text": "_text",
    "sessions": "_sessions",
    "summarise": "_summary",
    "take_snapshot": "_snapshot",
    "with_metrics": "_metrics",
    "write_csv": "_csv",
    "write_html": "_html",
    "write_sweep_html": "_sweep_plot_page",
    "write_sweep_plot": "_sweep_plot_page",
}

__all__ = [
    "VALUES_NEEDED",
    "Snapshot",
    "Summary",
    "counted_gaps",
    "critical_path",
    "itl_gaps",
    "itl_source",
    "itl_table",
    "latency_table",
    "overall",
    "pareto_frontier",
    "per_context",
    "per_turn",
    "per_turn_range",
    "render_sweep",
    "render_text",
    "sessions",
    "summarise",
    "take_snapshot",
    "with_metrics",
    "write_csv",
    "write_html",
    "write_sweep_html",
    "write_sweep_plot",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"agentload_analysis.{_HOMES[name]}"), name)
