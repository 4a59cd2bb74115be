"""The plots of latencies and speed, as Vega-Lite specs over data that is aggregated beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import log

import altair as alt
import polars as pl

from agentload_analysis._chart import Chart
from agentload_analysis._itl import itl_gaps
from agentload_analysis._metrics import K_TOKENS, with_metrics
from agentload_analysis._tables import per_turn_range

_LINE = "#3d7ab8"
_DOT = "#3a9d5d"
_MAX_BAND_POINTS = 400
_MAX_POINTS = 1_500
_CONTEXT_BINS = 60
_LOG_RATIO = 50
"""A latency axis is logarithmic when its largest value is more than this many times its smallest."""
_LEAST_INDICES = 3
"""With fewer turn indices there is no course to draw, only a distribution."""
_STEPS = 40
_MAX_INDEX_TICKS = 12
_MAX_COUNT_TICKS = 6


def latency_charts(requests: pl.LazyFrame, *, subagents: bool) -> list[Chart]:
    """TTFT and TPOT by turn index, or their distribution where there are fewer than 3 turn indices."""
    no_gaps = itl_gaps(requests, ["turn_index"]).clear()  # the plots show no ITL
    table = per_turn_range(requests, no_gaps, max_ranges=_MAX_BAND_POINTS).collect()
    indexed = " Turns of sub-agents count by their own index." if subagents else ""
    made = []
    for metric, title in (("ttft", "TTFT"), ("tpot", "TPOT")):
        if table.filter(pl.col(f"{metric}_count") > 0).height < _LEAST_INDICES:
            made.append(_histogram(requests, metric, title))
        else:
            made.append(_band_chart(table, metric, title, indexed))
    return [chart for chart in made if chart is not None]


def _histogram(requests: pl.LazyFrame, metric: str, title: str) -> Chart | None:
    column = pl.col(f"{metric}_ms")
    values = with_metrics(requests).select(column).filter(column.is_not_null()).collect().to_series()
    low, high = values.min(), values.max()
    if low is None or high is None:
        return None
    assert isinstance(low, float)
    assert isinstance(high, float)
    logarithmic = _spread(low, high)
    steps = _STEPS if high - low > high / 100 else 1  # edges have 5 figures, steps must not be finer
    if steps == 1:
        low, high = low * 0.95, high * 1.05 or 1.0
    if logarithmic:
        place = (values / low).log() / log(high / low)
        edges = [low * (high / low) ** (step / steps) for step in range(steps + 1)]
    else:
        place = (values - low) / (high - low)
        edges = [low + (high - low) * step / steps for step in range(steps + 1)]
    numbers = (place * steps).floor().clip(0, steps - 1).cast(pl.Int64).value_counts(sort=False, name="count")
    bars = [
        {"from": float(f"{edges[step]:.5g}"), "to": float(f"{edges[step + 1]:.5g}"), "count": count}
        for step, count in sorted(numbers.iter_rows())
    ]
    most = max(bar["count"] for bar in bars)
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=steps == 1, nice=True)
    chart = (
        alt.Chart(pl.DataFrame(bars))
        .mark_bar(color=_LINE)
        .encode(
            x=alt.X("from:Q", title=f"{title} (ms)", scale=scale).axis(tickCount=10),
            x2="to:Q",
            y=alt.Y("count:Q", title="answered turns").axis(
                format=",d", values=_whole_ticks(most, _MAX_COUNT_TICKS)
            ),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("from:Q", title="from (ms)", format=",.4~g"),
                alt.Tooltip("to:Q", title="to (ms)", format=",.4~g"),
                alt.Tooltip("count:Q", title="answered turns", format=","),
            ],
        )
        .properties(height=220)
    )
    caption = (
        f"Bars: answered turns, {values.len():,} in all. Not drawn by turn index, for there are fewer than"
        f" {_LEAST_INDICES} of them."
    )
    if logarithmic:
        caption += " Logarithmic axis."
    return Chart(metric, f"Distribution of {title}", caption, chart)


def _spread(low: float, high: float) -> bool:
    return low > 0 and high > _LOG_RATIO * low


def _whole_ticks(highest: int, most: int) -> list[int]:
    """Places for at most `most` ticks, at whole numbers only; Vega's own would be at halves, too."""
    step = next(step for step in _tick_steps() if highest // step < most)
    return list(range(0, highest + 1, step))


def _tick_steps() -> Iterator[int]:
    for power in count():
        yield from (factor * 10**power for factor in (1, 2, 5))


def _band_chart(bands: pl.DataFrame, metric: str, title: str, indexed: str) -> Chart:
    """p50, p90 and p99 by turn index; the line breaks at indices without a value."""
    columns = {name: f"{metric}_{name}_ms" for name in ("p50", "p90", "p99")}
    rows = bands.select(
        pl.col("turn_index").alias("turn"),
        pl.col("last_turn_index").alias("last"),
        pl.col(f"{metric}_count").alias("count"),
        **{name: pl.col(column).round(4) for name, column in columns.items()},
    )
    known = rows.filter(pl.col("count") > 0)
    low, high = known["p50"].min(), known["p99"].max()
    assert isinstance(low, float)
    assert isinstance(high, float)
    logarithmic = _spread(low, high)
    scale = alt.Scale(type="log", nice=True) if logarithmic else alt.Scale(zero=True)
    ticks = _whole_ticks(int(rows["turn"][-1]), _MAX_INDEX_TICKS)
    base = alt.Chart(rows).encode(
        x=alt.X("turn:Q", title="turn index (0 = first turn of an agent)").axis(format="d", values=ticks)
    )
    tooltip = [
        alt.Tooltip("turn:Q", title="from turn"),
        alt.Tooltip("last:Q", title="to turn"),
        alt.Tooltip("count:Q", title="answered", format=","),
        *(alt.Tooltip(f"{name}:Q", title=f"{title} {name} (ms)", format=",.4~g") for name in columns),
    ]
    y = alt.Y("p50:Q", title=f"{title} (ms)", scale=scale)
    outer = base.mark_area(color=_LINE, opacity=0.2).encode(y=alt.Y("p90:Q", scale=scale), y2="p99:Q")
    inner = base.mark_area(color=_LINE, opacity=0.45).encode(y=y, y2="p90:Q")
    middle = base.mark_line(color=_LINE, strokeWidth=2).encode(y=y)
    targets = base.mark_rule(opacity=0, strokeWidth=6).encode(
        y=alt.Y("p50:Q", scale=scale), y2="p99:Q", tooltip=tooltip
    )
    caption = "Line: p50; dark band: up to p90; light band: up to p99."
    if known["count"].max() == 1:
        caption = "One turn at each index."
    elif logarithmic:
        caption += " Logarithmic axis."
    layers = alt.layer(outer, inner, middle, targets).properties(height=220)
    return Chart(metric, f"{title} by turn index", caption + indexed, layers)


def speed_chart(requests: pl.LazyFrame) -> Chart | None:
    """Speed against context, as bands and, if they are few, as dots; `None` without any speed."""
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
    x = alt.X("context:Q", title="context (K input tokens, K = 1,000)").scale(zero=True)
    y_title = "output tokens/s per user"
    layers: list[alt.Chart] = []
    caption = f"Line: p50, band: p10 to p90 of the answered turns in each {width_k}K of context that has any."
    if turns <= _MAX_POINTS:
        points = speeds.select(
            context=(pl.col("input_tokens") / K_TOKENS).round(2), speed=speed.round(2), turn="turn_index"
        )
        dots = alt.Chart(points.collect()).mark_circle(color=_DOT, size=22, opacity=0.55)
        tooltip = [
            alt.Tooltip("turn:Q", title="turn index"),
            alt.Tooltip("context:Q", title="context (K tokens)", format=",.1f"),
            alt.Tooltip("speed:Q", title="tokens/s", format=",.0f"),
        ]
        layers.append(dots.encode(x=x, y=alt.Y("speed:Q", title=y_title), tooltip=tooltip))
        caption += " A dot is an answered turn."
    base = alt.Chart(_broken_where_empty(bins, width_k)).encode(x=x)
    band_tooltip = [
        alt.Tooltip("context:Q", title="context (K tokens)", format=",.1f"),
        alt.Tooltip("count:Q", title="answered", format=","),
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


def _broken_where_empty(bins: pl.DataFrame, width_k: int) -> pl.DataFrame:
    """The bins with an empty one where some are missing: a line is not drawn across it."""
    before_gap = bins.filter(pl.col("context").shift(-1) - pl.col("context") > 1.5 * width_k)
    empty = before_gap.select(
        *(pl.lit(None, dtype=bins.schema[name]).alias(name) for name in ("count", "p10", "p50", "p90")),
        context=pl.col("context") + width_k,
    )
    return pl.concat([bins, empty]).sort("context")
