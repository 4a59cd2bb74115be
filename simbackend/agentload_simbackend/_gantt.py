"""Draws static schedules as Gantt charts: SVG by hand, that needs nothing else and follows light and dark.

One panel for each kind of layer, on one scale of time: a row for each unit of the LPU, one for each of a few
links, one for all other links, and one for what is on its way. A bar is solid while it holds its unit or
link; what follows in a lighter shade is the fixed operation time until the last result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from agentload_simbackend._schedule import LayerSchedule, Operation
from agentload_simbackend._schedule_bursts import Burst, Transfer
from agentload_simbackend._schedule_ops import FUNCTIONAL_UNITS

_LABELS, _WIDTH, _RIGHT = 90.0, 1130.0, 20.0
_ROW, _BAR, _HEAD, _AXIS = 24.0, 16.0, 34.0, 30.0
_SHOWN_LINKS = 4
_SHOWN_VECTORS = 200
"""On one link in one burst; more are drawn as one bar."""

_CHARACTER = 6.2
"""Width of a character of a label, at most."""

_CONDITION_CHARACTERS = 190

_LIGHT = {
    **{"ground": "#ffffff", "text": "#1d2330", "soft": "#5b6474", "line": "#d9dde5", "panel": "#f5f6f9"},
    **{"weights": "#2f6db5", "attention": "#c2571a", "on_chip": "#7a5195", "c2c": "#13806b"},
}
_DARK = {
    **{"ground": "#14171d", "text": "#e6e9ef", "soft": "#9aa3b2", "line": "#323844", "panel": "#1c2029"},
    **{"weights": "#6fa8e8", "attention": "#f0935a", "on_chip": "#b592d3", "c2c": "#45c2a8"},
}


def _colours(palette: dict[str, str]) -> str:
    """Rules with plain colours: not every program that shows SVG knows variables."""
    filled = ("ground", "panel", "soft", "weights", "attention", "on_chip", "c2c")
    rules = [f"text {{ fill: {palette['text']}; }}", f".line {{ stroke: {palette['line']}; }}"]
    rules += [f".{name} {{ fill: {palette[name]}; }}" for name in filled]
    rules.append(f".tile, .label {{ stroke: {palette['ground']}; }}")
    return "\n".join(rules)


_STYLE = f"""
svg {{
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; font-size: 11px;
  max-width: 100%; height: auto;
}}
text {{ pointer-events: none; }}
{_colours(_LIGHT)}
.name {{ font-weight: 600; font-size: 13px; }}
.wait {{ fill-opacity: .28; }}
.tile {{ stroke-width: .5; }}
.label {{ paint-order: stroke; stroke-width: 2.5px; stroke-linejoin: round; }}
@media (prefers-color-scheme: dark) {{
{_colours(_DARK)}
}}
"""

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1.5rem; max-width: 100rem; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } ul { font-size: .9rem; } svg { display: block; width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { body { background: #14171d; color: #e6e9ef; } }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy of the page: it loads nothing."""

_LEGEND = (
    ("weights", "matrix products"),
    ("attention", "attention and state"),
    ("on_chip", "vector operations, KV write"),
    ("c2c", "transfers"),
)


class GanttDrawing(NamedTuple):
    """Layers to draw with a title and what it holds for."""

    title: str
    conditions: Sequence[str]
    layers: Sequence[LayerSchedule]
    clock_hz: float


def gantt_svg(drawing: GanttDrawing) -> str:
    """The chart as an SVG file."""
    return "".join(_svg(drawing, heading=True))


def gantt_html(drawing: GanttDrawing) -> str:
    """The chart as an HTML page: title and conditions as text, the chart as wide as the window."""
    conditions = "".join(f"<li>{escape(each)}</li>" for each in drawing.conditions)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(drawing.title)}</title><style>{_PAGE_STYLE}</style></head><body>"
        f"<h1>{escape(drawing.title)}</h1><ul>{conditions}</ul>"
        f"{''.join(_svg(drawing, heading=False))}</body></html>\n"
    )


def _svg(drawing: GanttDrawing, *, heading: bool) -> Iterator[str]:
    heights = [_panel_height(layer) for layer in drawing.layers]
    lines = [drawing.title] if heading else []
    for condition in drawing.conditions if heading else ():
        lines += wrap(condition, _CONDITION_CHARACTERS)
    top = 18.0 * len(lines) + 28.0
    width, height = _LABELS + _WIDTH + _RIGHT, top + sum(heights) + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(drawing.title)}"><style>{_STYLE}</style>'
        f'<rect class="ground" width="{width:g}" height="{height:g}"/>'
    )
    for number, line in enumerate(lines):
        yield _text(8, 18.0 * number + 18, line, "name" if number == 0 else "soft")
    x = 8.0
    for share, word in _LEGEND:
        yield f'<rect class="{share}" x="{x:g}" y="{top - 18:g}" width="10" height="10"/>'
        yield _text(x + 14, top - 9, word)
        x += 34 + _CHARACTER * len(word)
    yield _text(x, top - 9, "lighter: until the last result, or the last arrival", "soft")
    scale = _WIDTH / max((layer.cycles for layer in drawing.layers), default=1)
    for layer, panel in zip(drawing.layers, heights, strict=True):
        yield from _Panel(layer, top, scale, drawing.clock_hz).parts()
        top += panel
    yield "</svg>\n"


def _panel_height(layer: LayerSchedule) -> float:
    return _HEAD + _ROW * len(_rows(layer)) + _AXIS


def _rows(layer: LayerSchedule) -> list[str]:
    links = max((min(burst.links, burst.vectors) for burst in layer.bursts), default=0)
    shown = [f"link {link}" for link in range(min(links, _SHOWN_LINKS))]
    if links > _SHOWN_LINKS:
        shown.append(f"{links - _SHOWN_LINKS} more links")
    return [*FUNCTIONAL_UNITS, *shown, *(["on the way"] if links else [])]


class _Panel:
    """One layer, from `top` on; `scale` is pixels per cycle."""

    def __init__(self, layer: LayerSchedule, top: float, scale: float, clock_hz: float) -> None:
        self._layer, self._top, self._scale, self._clock_hz = layer, top, scale, clock_hz
        self._rows = _rows(layer)

    def parts(self) -> Iterator[str]:
        layer = self._layer
        microseconds = layer.cycles / self._clock_hz * 1e6
        layers = "1 layer" if layer.count == 1 else f"{layer.count} layers"
        title = f"{layer.name}: {layers} of {microseconds:.3f} us ({layer.cycles:,} cycles)"
        yield _text(8, self._top + 20, title, "name")
        for number, name in enumerate(self._rows):
            y = self._y(number)
            if number % 2 == 0:
                width = _LABELS + _WIDTH
                yield f'<rect class="panel" x="0" y="{y - 4:g}" width="{width:g}" height="{_ROW:g}"/>'
            yield _text(8, y + 12, name, "soft")
        yield from self._operations()
        begins = [min(each.start for each in transfers) for transfers in layer.transfers]
        ends = [*begins[1:], layer.cycles]
        for burst, transfers, until in zip(layer.bursts, layer.transfers, ends, strict=False):
            yield from self._burst(burst, transfers, until)
        yield from self._axis()

    def _operations(self) -> Iterator[str]:
        tasks = [list(task) for _, task in groupby(self._layer.operations, lambda each: each.task)]
        for number, task in enumerate(tasks):
            unit, share = task[0].unit, task[0].share
            row = self._rows.index(unit)
            start, end = task[0].start, task[-1].end
            label = " ".join(operation.name for operation in task)
            hover = f"{label} ({unit})\ncycles {start:,} to {end:,}"
            yield self._bar(row, start, end, f"{share} wait", hover)
            for operation in task:
                yield from self._tiles(row, operation)
            after = [each[0].start for each in tasks[number + 1 :] if each[0].unit == unit]
            room = (min(after, default=self._layer.cycles) - start) * self._scale
            if 3 + len(label) * _CHARACTER <= room:
                yield _text(self._x(start) + 3, self._y(row) + 12, label, "label")

    def _tiles(self, row: int, operation: Operation) -> Iterator[str]:
        """The tiles, where they can be told apart."""
        cycles = operation.issued - operation.start
        tiles = max(1, min(operation.tiles, cycles))
        hover = (
            f"{operation.name} ({operation.unit}), {tiles} tile{'s' if tiles > 1 else ''}\n"
            f"cycles {operation.start:,} to {operation.issued:,}, last result at {operation.end:,}"
        )
        apart = cycles * self._scale / tiles >= 3
        for tile in operation.expand() if apart else [operation]:
            yield self._bar(row, tile.start, tile.issued, f"{operation.share} tile", hover)

    def _burst(self, burst: Burst, transfers: tuple[Transfer, ...], until: int) -> Iterator[str]:
        first_row = len(FUNCTIONAL_UNITS)
        for link in range(min(burst.links, burst.vectors, _SHOWN_LINKS)):
            own = transfers[link :: burst.links]
            if len(own) > _SHOWN_VECTORS:
                hover = f"{burst.name}, link {link}: {len(own):,} vectors"
                yield self._bar(first_row + link, own[0].start, own[-1].end, "c2c", hover)
                continue
            for each in own:
                hover = (
                    f"{burst.name}, link {link}: vector {each.vector} to LPU +{each.to}\n"
                    f"cycles {each.start:,} to {each.end:,}, arrives at {each.arrival:,}"
                )
                yield self._bar(first_row + link, each.start, each.end, "c2c tile", hover)
        row = first_row + _SHOWN_LINKS
        others = [each for each in transfers if each.link >= _SHOWN_LINKS]
        begin = min(each.start for each in transfers)
        if others:
            links = min(burst.links, burst.vectors) - _SHOWN_LINKS
            hover = f"{burst.name}: {len(others):,} vectors on {links} links"
            yield self._bar(row, begin, burst.sent, "c2c", hover)
        hover = (
            f"{burst.name}: {burst.vectors:,} vectors, first sent at {begin:,}, last sent by {burst.sent:,}, "
            f"last there at {burst.arrived:,}"
        )
        last = len(self._rows) - 1
        yield self._bar(last, begin, burst.arrived, "c2c wait", hover)
        if 3 + len(burst.name) * _CHARACTER <= (until - begin) * self._scale:
            yield _text(self._x(begin) + 3, self._y(last) + 12, burst.name, "label")

    def _axis(self) -> Iterator[str]:
        y = self._y(len(self._rows)) - 4
        yield f'<line class="line" x1="{_LABELS:g}" x2="{_LABELS + _WIDTH:g}" y1="{y:g}" y2="{y:g}"/>'
        per_us = self._clock_hz / 1e6
        steps = (0.1, 0.5, 1, 5, 10, 50, 100, 500)
        step = next((each for each in steps if each * per_us * self._scale >= 50), 1_000)
        for tick in range(int(self._layer.cycles / (per_us * step)) + 1):
            x = self._x(tick * step * per_us)
            yield f'<line class="line" x1="{x:.2f}" x2="{x:.2f}" y1="{y:g}" y2="{y + 4:g}"/>'
            yield _text(x - 3, y + 15, f"{tick * step:g}{' us' if tick == 0 else ''}", "soft")

    def _x(self, cycle: float) -> float:
        return _LABELS + cycle * self._scale

    def _y(self, row: int) -> float:
        return self._top + _HEAD + row * _ROW

    def _bar(self, row: int, start: int, end: int, classes: str, hover: str) -> str:
        width = max((end - start) * self._scale, 0.75)
        return (
            f'<rect class="{classes}" x="{self._x(start):.2f}" y="{self._y(row):g}" width="{width:.2f}" '
            f'height="{_BAR:g}"><title>{escape(hover)}</title></rect>'
        )


def _text(x: float, y: float, text: str, classes: str = "") -> str:
    return f'<text class="{classes}" x="{x:.2f}" y="{y:g}">{escape(text)}</text>'
