"""The plots of a sweep, as Altair charts of a width that the caller sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from agentload_analysis._sweep_plot_frontier import pareto_frontier
from agentload_analysis._sweep_plot_labels import labelled
from agentload_analysis._sweep_plot_words import Manifest, Row, context_name, series_name

_COLOURS = ("#3d7ab8", "#d1495b", "#3a9d5d", "#8e6bbf", "#e07b39", "#d9b23d", "#4aa8a8", "#a3a9b3")
_SHAPES = ("circle", "square", "triangle-up", "cross", "triangle-right", "triangle-left", "arrow")
"""Of the points, where there are more deployments than colours."""
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [10, 4], [1, 4])
_GREY = "#8a93a3"
_HEIGHT = 320
_LOG_RATIO = 8
"""The axis of concurrency is logarithmic from this ratio of its ends on."""
_FAR_APART = 20
"""The axis of session times is logarithmic if they are so many times apart."""

_SPEED = "output tokens/s per user (median)"


class SweepPlot(NamedTuple):
    """One plot and its words."""

    name: str
    title: str
    caption: str
    chart: alt.LayerChart | alt.FacetChart


def sweep_plots(rows: Sequence[Row], manifest: Manifest) -> list[SweepPlot]:
    """Interactivity against throughput, then speed, session time and ITL against concurrency."""
    known = [row for row in rows if row["error"] is None and row["speed_count"]]
    if not known:
        return []
    knees = {(knee["target"], knee["context_tokens"], knee["concurrency"]) for knee in manifest["knees"]}
    points = pl.DataFrame(
        [
            {
                "series": series_name(row),
                "deployment": row["target"],
                "context": "the trace's"
                if row["context_tokens"] is None
                else context_name(row["context_tokens"]),
                "knee": (row["target"], row["context_tokens"], row["concurrency"]) in knees,
                **{
                    name: row[name]
                    for name in (
                        *("concurrency", "speed_p50_tokens_per_s", "speed_p10_tokens_per_s"),
                        *("output_tokens_per_s", "output_tokens_per_s_per_rack", "ttft_p99_ms"),
                        *("itl_p99_ms", "turn_itl_p99_max_ms", "session_p50_s", "session_max_s"),
                    )
                },
            }
            for row in known
        ],
        infer_schema_length=None,
    )
    return [
        _throughput(points, manifest),
        _speed(points, manifest),
        _sessions(points),
        _itl(points),
    ]


class _Series(NamedTuple):
    colour: alt.Color
    shape: alt.Shape
    dash: alt.StrokeDash


def _series(points: pl.DataFrame) -> _Series:
    """How the lines are told apart: deployments by colour and shape, contexts by dashes."""
    deployments = points["deployment"].unique(maintain_order=True).to_list()
    contexts = points["context"].unique(maintain_order=True).to_list()
    colours = [_COLOURS[place % len(_COLOURS)] for place in range(len(deployments))]
    shapes = [_SHAPES[place // len(_COLOURS) % len(_SHAPES)] for place in range(len(deployments))]
    dashes = [_DASHES[place % len(_DASHES)] for place in range(len(contexts))]
    dash = alt.StrokeDash("context:N", title="context").scale(domain=contexts, range=dashes)
    return _Series(
        alt.Color("deployment:N", title="deployment").scale(domain=deployments, range=colours),
        alt.Shape("deployment:N", title="deployment").scale(domain=deployments, range=shapes),
        dash.legend(symbolType="stroke") if len(contexts) > 1 else dash.legend(None),
    )


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title="deployment"),
        alt.Tooltip("concurrency:Q"),
        alt.Tooltip("speed_p50_tokens_per_s:Q", title="tokens/s per user, p50", format=",.0f"),
        alt.Tooltip("speed_p10_tokens_per_s:Q", title="tokens/s per user, p10", format=",.0f"),
        alt.Tooltip("output_tokens_per_s:Q", title="tokens/s together", format=",.0f"),
        alt.Tooltip("output_tokens_per_s_per_rack:Q", title="tokens/s per rack", format=",.0f"),
        alt.Tooltip("ttft_p99_ms:Q", title="TTFT p99 (ms)", format=",.4~g"),
        alt.Tooltip("itl_p99_ms:Q", title="ITL p99 (ms)", format=",.4~g"),
        alt.Tooltip("session_p50_s:Q", title="session p50 (s)", format=",.4~g"),
        alt.Tooltip("session_max_s:Q", title="session max (s)", format=",.4~g"),
    ]


def _curves(points: pl.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """A line a series in order of concurrency, its points, and a ring at the last that holds the SLO."""
    series = _series(points)
    base = alt.Chart(points).encode(x=x, y=y, color=series.colour)
    layers = [
        base.mark_line(strokeWidth=2).encode(
            strokeDash=series.dash, detail="series:N", order="concurrency:Q"
        ),
        base.mark_point(size=50, filled=True, opacity=1).encode(shape=series.shape, tooltip=_tooltip()),
    ]
    if points["knee"].any():
        rings = alt.Chart(points.filter(pl.col("knee"))).encode(x=x, y=y, color=series.colour)
        layers.append(rings.mark_point(size=260, strokeWidth=2))
    return layers


def _with_worst(points: pl.DataFrame, x: alt.X, y: alt.Y, worst: str) -> alt.LayerChart | alt.FacetChart:
    """The curves, and a triangle at the value of the column `worst` of each point."""
    triangles = (
        alt.Chart(points)
        .mark_point(shape="triangle-down", size=40, filled=True, opacity=0.7)
        .encode(x=x, y=alt.Y(f"{worst}:Q"), color=_series(points).colour, tooltip=_tooltip())
    )
    return alt.layer(*_curves(points, x, y), triangles).properties(height=_HEIGHT)


def _throughput(points: pl.DataFrame, manifest: Manifest) -> SweepPlot:
    x = alt.X("speed_p50_tokens_per_s:Q", title=_SPEED).scale(zero=True).axis(format=",d", tickCount=10)
    y = alt.Y("output_tokens_per_s_per_rack:Q", title="output tokens/s per rack").axis(format=",d")
    # Contexts are no choice of whoever builds the machine, so each has a frontier of its own.
    best = pl.concat(
        group[pareto_frontier(group.select("speed_p50_tokens_per_s", "output_tokens_per_s_per_rack").rows())]
        for group in points.partition_by("context", maintain_order=True)
    )
    frontier = (
        alt.Chart(best)
        .mark_line(color=_GREY, strokeWidth=9, opacity=0.3, interpolate="step-before")
        .encode(x=x, y=y, order="speed_p50_tokens_per_s:Q", detail="context:N")
    )
    labels = (
        alt.Chart(
            points[labelled(points.select("speed_p50_tokens_per_s", "output_tokens_per_s_per_rack").rows())]
        )
        .mark_text(dx=7, dy=-7, align="left", fontSize=11)
        .encode(x=x, y=y, text="concurrency:Q", color=_series(points).colour)
    )
    caption = (
        "A point is a concurrency, which stands beside it where there is room. Up and to the right is better;"
        " a wide grey line is the Pareto frontier of a context: nothing that was tried is above it."
    )
    if points["knee"].any():
        caption += f" A ring: the most that holds {manifest['slo']}."
    return SweepPlot(
        "throughput",
        "Interactivity against throughput",
        caption,
        alt.layer(frontier, *_curves(points, x, y), labels).properties(height=_HEIGHT + 60),
    )


def _concurrency(points: pl.DataFrame) -> alt.X:
    values = sorted(points["concurrency"].unique())
    logarithmic = values[-1] >= _LOG_RATIO * values[0]
    scale = alt.Scale(type="log", base=2) if logarithmic else alt.Scale(zero=False)
    return alt.X("concurrency:Q", title="concurrency (sessions at a time)", scale=scale).axis(
        values=values, format="d"
    )


def _speed(points: pl.DataFrame, manifest: Manifest) -> SweepPlot:
    x = _concurrency(points)
    y = alt.Y("speed_p50_tokens_per_s:Q", title=_SPEED).scale(zero=True).axis(format=",d")
    layers = _curves(points, x, y)
    caption = "Line: the median turn."
    references = [ref for ref in manifest["references"] if ref["concurrency"] in set(points["concurrency"])]
    if references:
        marks = pl.DataFrame(
            [
                {name: ref[name] for name in ("name", "concurrency", "speed_tokens_per_s")}
                for ref in references
            ]
        )
        base = alt.Chart(marks).encode(x=x, y=alt.Y("speed_tokens_per_s:Q"))
        layers.append(base.mark_point(shape="diamond", size=260, strokeWidth=2.5, color=_GREY))
        layers.append(
            base.mark_text(color=_GREY, align="left", dx=14, dy=-12, fontSize=11).encode(text="name:N")
        )
    for ref in references:
        caption += f" Diamond: {ref['name']}, {ref['conditions']}."
        modes = {found["target"]: found["mode"] for found in manifest["deployments"]}
        comparable = sorted(
            {
                name
                for name in points["deployment"]
                if modes[name] == ref["mode"] and name.startswith(f"{ref['model']}/")
            }
        )
        if comparable:
            caption += f" What it was measured on is the left end of {', '.join(comparable)}, most likely."
        else:
            caption += f" It was measured in mode {ref['mode']}, most likely, which is not shown here."
    return SweepPlot(
        "speed", "Speed of one user by concurrency", caption, alt.layer(*layers).properties(height=_HEIGHT)
    )


def _sessions(points: pl.DataFrame) -> SweepPlot:
    longest = points["session_max_s"].max()
    assert longest is None or isinstance(longest, float)
    unit, unit_s = ("min", 60) if longest is not None and longest > 300 else ("s", 1)
    shown = points.with_columns(
        session=pl.col("session_p50_s") / unit_s, longest=pl.col("session_max_s") / unit_s
    )
    x = _concurrency(points)
    shortest = shown["session"].min()
    far_apart = isinstance(shortest, float) and (longest or 0.0) / unit_s > _FAR_APART * shortest > 0
    scale = alt.Scale(type="log") if far_apart else alt.Scale(zero=True)
    y = alt.Y("session:Q", title=f"session time ({unit})", scale=scale)
    return SweepPlot(
        "sessions",
        "Session time by concurrency",
        "Line: the median session; triangle: the longest. Of sessions answered whole, tools and think time"
        f" included.{' Logarithmic axis.' if far_apart else ''}",
        _with_worst(shown, x, y, "longest"),
    )


def _itl(points: pl.DataFrame) -> SweepPlot:
    x = _concurrency(points)
    y = alt.Y("itl_p99_ms:Q", title="ITL p99 (ms)").scale(zero=True)
    return SweepPlot(
        "itl",
        "Inter-token latency by concurrency",
        "Line: p99 of all gaps between tokens; triangle: p99 of the gaps of the worst single turn.",
        _with_worst(points, x, y, "turn_itl_p99_max_ms"),
    )
