"""The plots of the HTML report, as Vega-Lite specs over data that is aggregated beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import altair as alt
import polars as pl

from agentload_analysis._itl import itl_gaps
from agentload_analysis._metrics import K_TOKENS, with_metrics
from agentload_analysis._printable import printable
from agentload_analysis._printed import parts_shown, slowest_sessions
from agentload_analysis._summary import Summary
from agentload_analysis._tables import per_turn_range
from agentload_analysis._timeline import Lane, Timeline, timeline
from agentload_analysis._words import PART_NAMES, counted

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

_LINE = "#3d7ab8"
_MAX_BAND_POINTS = 400
_MAX_POINTS = 1_500
_CONTEXT_BINS = 60
_LOG_RATIO = 50
"""A latency axis is logarithmic when its largest value is more than this many times its smallest."""

_HIDDEN_OVERLAPS = 2_000
"""A bar reaches this part of the axis under its neighbour, or the ground would shine through the seam."""
_LANE_HEIGHT = 26
_ZOOM = "wheel![event.ctrlKey]"

Spec = dict[str, Any]


class Chart:
    """One plot: its heading, what it shows in words, its spec, and the parts of session time it shows."""

    def __init__(
        self,
        name: str,
        title: str,
        caption: str,
        chart: alt.Chart | alt.LayerChart | alt.FacetChart,
        parts: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.title = title
        self.caption = caption
        self.parts = parts
        self.spec = _spec(
            chart.properties(
                width="container",
                autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
                description=f"{title}. {caption}",
            )
        )


def charts(summary: Summary, requests: pl.LazyFrame) -> list[Chart]:
    """Session timelines, latency by turn index (TTFT, TPOT), speed by context; none without its data."""
    made = [_timeline_chart(summary, requests)]
    no_gaps = itl_gaps(requests, ["turn_index"]).clear()  # the bands show no ITL
    bands = per_turn_range(requests, no_gaps, max_ranges=_MAX_BAND_POINTS).collect()
    indexed = " Turns of sub-agents count by their own index." if summary["subagent_turns"] else ""
    made.append(_band_chart(bands, "ttft", "TTFT", indexed))
    made.append(_band_chart(bands, "tpot", "TPOT", indexed))
    made.append(_speed_chart(requests))
    return [chart for chart in made if chart is not None]


def _spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> Spec:
    with alt.data_transformers.enable("default", max_rows=None):
        spec: Spec = chart.to_dict()
    spec.pop("$schema", None)  # an address, though nothing loads it
    spec.pop("config", None)  # colours come from the page, which knows light from dark
    return spec


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
    chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X("from:Q", title=f"time since the start of the session ({unit})")
            .scale(domain=[0, longest_s / unit_s], nice=False)
            .axis(tickCount=10),
            x2="drawn_to:Q",
            y=alt.Y("lane:N", sort=names, title=None).axis(labelLimit=180),
            color=part.legend(None),
            tooltip=[
                alt.Tooltip("lane:N", title="session"),
                alt.Tooltip("part:N"),
                alt.Tooltip("turns:N", title="turn index"),
                alt.Tooltip("from:Q", title=f"from ({unit})", format=".3f"),
                alt.Tooltip("to:Q", title=f"to ({unit})", format=".3f"),
            ],
        )
        .properties(height=_LANE_HEIGHT * len(names))
        .add_params(alt.selection_interval(bind="scales", encodings=["x"], zoom=_ZOOM))
    )
    return Chart("timeline", "Session timelines", _timeline_caption(summary, lanes), chart, shown)


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


def _band_chart(bands: pl.DataFrame, metric: str, title: str, indexed: str) -> Chart | None:
    columns = {name: f"{metric}_{name}_ms" for name in ("p50", "p90", "p99")}
    known = bands.filter(pl.col(columns["p50"]).is_not_null()).select(
        pl.col("turn_index").alias("turn"),
        pl.col("last_turn_index").alias("last"),
        pl.col(f"{metric}_count").alias("count"),
        **{name: pl.col(column).round(4) for name, column in columns.items()},
    )
    if known.is_empty():
        return None
    low, high = known["p50"].min(), known["p99"].max()
    assert isinstance(low, float)
    assert isinstance(high, float)
    scale = alt.Scale(type="log", nice=True) if low > 0 and high > _LOG_RATIO * low else alt.Scale(zero=True)
    base = alt.Chart(known).encode(
        x=alt.X("turn:Q", title="turn index (0 = first turn of an agent)").axis(format="d", tickMinStep=1)
    )
    tooltip = [
        alt.Tooltip("turn:Q", title="from turn"),
        alt.Tooltip("last:Q", title="to turn"),
        alt.Tooltip("count:Q", title="turns", format=","),
        *(alt.Tooltip(f"{name}:Q", title=f"{title} {name} (ms)", format=",.4~g") for name in columns),
    ]
    y = alt.Y("p50:Q", title=f"{title} (ms)", scale=scale)
    outer = base.mark_area(color=_LINE, opacity=0.2).encode(y=alt.Y("p90:Q", scale=scale), y2="p99:Q")
    inner = base.mark_area(color=_LINE, opacity=0.45).encode(y=y, y2="p90:Q")
    middle = base.mark_line(color=_LINE, strokeWidth=2, point=known.height == 1).encode(y=y)
    targets = base.mark_rule(opacity=0, strokeWidth=6).encode(
        y=alt.Y("p50:Q", scale=scale), y2="p99:Q", tooltip=tooltip
    )
    caption = "Line: p50; dark band: up to p90; light band: up to p99."
    if known["count"].max() == 1:
        caption = "One turn at each index."
    elif scale.to_dict().get("type") == "log":
        caption += " Logarithmic axis."
    layers = alt.layer(outer, inner, middle, targets).properties(height=220)
    return Chart(metric, f"{title} by turn index", caption + indexed, layers)


def _speed_chart(requests: pl.LazyFrame) -> Chart | None:
    speeds = with_metrics(requests).filter(pl.col("output_tokens_per_s").is_not_null())
    longest, turns = speeds.select(pl.col("input_tokens").max(), turns=pl.len()).collect().row(0)
    if not turns:
        return None
    width_k = max(1, -(-longest // K_TOKENS // _CONTEXT_BINS))
    speed = pl.col("output_tokens_per_s")
    bins = (
        speeds.group_by(pl.col("input_tokens") // (K_TOKENS * width_k))
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            *(speed.quantile(q / 100, interpolation="linear").round(2).alias(f"p{q}") for q in (10, 50, 90)),
        )
        .select(
            "count", "p10", "p50", "p90", (pl.col("input_tokens") * width_k + width_k / 2).alias("context")
        )
        .sort("context")
        .collect()
    )
    x = alt.X("context:Q", title="context (K input tokens, K = 1,024)").scale(zero=True)
    y_title = "output tokens/s per user"
    layers: list[alt.Chart] = []
    caption = f"Line: p50, band: p10 to p90 of the turns in each {width_k}K of context."
    if turns <= _MAX_POINTS:
        points = speeds.select(
            context=(pl.col("input_tokens") / K_TOKENS).round(2), speed=speed.round(2), turn="turn_index"
        )
        dots = alt.Chart(points.collect()).mark_circle(color=PART_COLOURS["decode"], size=22, opacity=0.55)
        tooltip = [
            alt.Tooltip("turn:Q", title="turn index"),
            alt.Tooltip("context:Q", title="context (K tokens)", format=",.1f"),
            alt.Tooltip("speed:Q", title="tokens/s", format=",.0f"),
        ]
        layers.append(dots.encode(x=x, y=alt.Y("speed:Q", title=y_title), tooltip=tooltip))
        caption += " A dot is a turn."
    base = alt.Chart(bins).encode(x=x)
    band_tooltip = [
        alt.Tooltip("context:Q", title="context (K tokens)", format=",.1f"),
        alt.Tooltip("count:Q", title="turns", format=","),
        *(
            alt.Tooltip(f"{name}:Q", title=f"{name} (tokens/s)", format=",.0f")
            for name in ("p10", "p50", "p90")
        ),
    ]
    layers += [
        base.mark_area(color=_LINE, opacity=0.3).encode(y=alt.Y("p10:Q", title=y_title), y2="p90:Q"),
        base.mark_line(color=_LINE, strokeWidth=2, point={"color": _LINE, "size": 25}).encode(
            y=alt.Y("p50:Q", title=y_title), tooltip=band_tooltip
        ),
    ]
    return Chart(
        "speed", "Output speed by context length", caption, alt.layer(*layers).properties(height=260)
    )
