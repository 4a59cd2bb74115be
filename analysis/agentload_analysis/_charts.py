"""The plots of the HTML report: session timelines here, latencies and speed in `_latency_charts`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import altair as alt
import polars as pl

from agentload_analysis._chart import Chart
from agentload_analysis._latency_charts import latency_charts, speed_chart
from agentload_analysis._printed import parts_shown, slowest_sessions
from agentload_analysis._summary import Summary
from agentload_analysis._timeline import Lane, Timeline, timeline
from agentload_analysis._words import PART_NAMES
from agentload_traces import counted, printable

PART_COLOURS = {
    "queue": "#d1495b",
    "prefill": "#3d7ab8",
    "handoff": "#8e6bbf",
    "first_token_wait": "#3d7ab8",
    "decode": "#3a9d5d",
    "tool": "#a3a9b3",
    "think": "#d9b23d",
    "client": "#e07b39",
}
"""Legible on light and on dark ground."""

_HIDDEN_OVERLAPS = 2_000
"""A bar reaches this part of the axis under its neighbour, or the ground would shine through the seam."""
_LANE_HEIGHT = 26
_FAILED_COLOUR = "#b00020"
_ZOOM = "wheel![event.ctrlKey]"


def charts(summary: Summary, requests: pl.LazyFrame) -> list[Chart]:
    """Session timelines, latencies (TTFT, TPOT), speed by context; none without its data."""
    made = [_timeline_chart(summary, requests)]
    made += latency_charts(requests, subagents=summary["subagent_turns"] > 0)
    made.append(speed_chart(requests))
    return [chart for chart in made if chart is not None]


def _timeline_chart(summary: Summary, requests: pl.LazyFrame) -> Chart | None:
    slowest = [row for row in slowest_sessions(summary) if row["start_s"] is not None]
    if not slowest:
        return None
    lanes = timeline(requests, {row["session_id"]: round(row["start_s"] * 1e9) for row in slowest})
    longest_s = lanes.longest_ns / 1e9
    unit, unit_s = ("h", 3600) if longest_s > 7200 else ("min", 60) if longest_s > 300 else ("s", 1)
    names = _lane_names(lanes)
    rows = [
        row
        for name, lane in zip(names, lanes.lanes, strict=True)
        for row in _bar_rows(name, lane, unit_s, lanes.longest_ns // _HIDDEN_OVERLAPS)
    ]
    if not rows:
        return None
    shown = parts_shown(summary)
    part = alt.Color("part:N", title=None).scale(
        domain=[PART_NAMES[part] for part in shown], range=[PART_COLOURS[part] for part in shown]
    )
    time = alt.Scale(domain=[0, longest_s / unit_s], nice=False)
    y = alt.Y("lane:N", title=None).scale(domain=names).axis(labelLimit=180)
    bars = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X("from:Q", title=f"time since the start of the session ({unit})", scale=time).axis(
                tickCount=10
            ),
            x2="drawn_to:Q",
            y=y,
            color=part.legend(None),
            tooltip=[
                alt.Tooltip("lane:N", title="session"),
                alt.Tooltip("part:N"),
                alt.Tooltip("turns:N", title="turn index"),
                alt.Tooltip("from:Q", title=f"from ({unit})", format=".3f"),
                alt.Tooltip("to:Q", title=f"to ({unit})", format=".3f"),
            ],
        )
        .add_params(alt.selection_interval(bind="scales", encodings=["x"], zoom=_ZOOM))
    )
    failures = [
        row for name, lane in zip(names, lanes.lanes, strict=True) for row in _failures(name, lane, unit_s)
    ]
    chart: alt.Chart | alt.LayerChart | alt.FacetChart = bars
    if failures:
        chart = alt.layer(bars, _failure_marks(failures, unit, time, y))
    return Chart(
        "timeline",
        "Session timelines",
        _timeline_caption(summary, lanes),
        chart.properties(height=_LANE_HEIGHT * len(names)),
        shown,
    )


def _failure_marks(failures: list[dict[str, str | float]], unit: str, time: alt.Scale, y: alt.Y) -> alt.Chart:
    marks: alt.Chart = (
        alt.Chart(pl.DataFrame(failures))
        .mark_point(shape="cross", angle=45, size=150, fill=_FAILED_COLOUR, stroke="#ffffff", opacity=1)
        .encode(
            x=alt.X("due:Q", scale=time),
            y=y,
            tooltip=[
                alt.Tooltip("lane:N", title="session"),
                alt.Tooltip("turn:Q", title="failed turn, index"),
                alt.Tooltip("due:Q", title=f"due ({unit})", format=".3f"),
                alt.Tooltip("error:N"),
            ],
        )
    )
    return marks


def _failures(name: str, lane: Lane, unit_s: int) -> Iterator[dict[str, str | float]]:
    for failure in lane.failures:
        yield {
            "lane": name,
            "due": round(failure.at_ns / 1e9 / unit_s, 5),
            "turn": failure.turn_index,
            "error": printable(failure.error or "unknown error"),
        }


def _bar_rows(name: str, lane: Lane, unit_s: int, overlap_ns: int) -> Iterator[dict[str, str | float]]:
    for bar, after in zip_longest(lane.bars, lane.bars[1:]):
        touches = after is not None and after.start_ns == bar.end_ns
        first, last = bar.first_turn_index, bar.last_turn_index
        yield {
            "lane": name,
            "part": PART_NAMES[bar.part],
            "from": round(bar.start_ns / 1e9 / unit_s, 5),
            "to": round(bar.end_ns / 1e9 / unit_s, 5),
            "drawn_to": round((bar.end_ns + overlap_ns * touches) / 1e9 / unit_s, 5),
            "turns": f"{first}" if first == last else f"{first}-{last}",
        }


def _timeline_caption(summary: Summary, lanes: Timeline) -> str:
    sessions = len({lane.session_id for lane in lanes.lanes})
    caption = "What each session was doing, from its start."
    if sessions < summary["sessions"]:
        caption += f" The slowest {sessions} of {summary['sessions']:,} sessions."
    if any(lane.sliced for lane in lanes.lanes):
        caption += (
            " Long ones are drawn in slices: a slice shows how much of each part it holds, not the order."
        )
    if any(lane.failures for lane in lanes.lanes):
        caption += " A cross: a turn that failed, where it was due."
    if lanes.lanes_left_out:
        caption += f" Not drawn: {counted(lanes.lanes_left_out, 'sub-agent')}, the shortest."
    return f"{caption} Drag to move, Ctrl + wheel to zoom, double-click to go back."


def _lane_names(lanes: Timeline) -> list[str]:
    names: list[str] = []
    for lane in lanes.lanes:
        name = lane.session_id if lane.agent_id is None else f"{lane.session_id} › {lane.agent_id}"
        name = printable(name)
        name = name if len(name) <= 30 else f"{name[:12]}…{name[-17:]}"
        names.append(name if name not in names else f"{name} ({len(names)})")
    return names
