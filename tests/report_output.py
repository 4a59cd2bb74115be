"""What `agentload report` prints, and what a page of it holds, for the report tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import vl_convert

from agentload._cli import main


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def without_scripts(html: str) -> str:
    """The page without its JavaScript; the data of the plots stay."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.S)


def specs(page: Path) -> dict[str, dict[str, object]]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page.read_text(), re.S)
    assert found
    loaded: dict[str, dict[str, object]] = json.loads(found[1])
    return loaded


def data_of(spec: dict[str, object]) -> list[dict[str, object]]:
    datasets = spec["datasets"]
    assert isinstance(datasets, dict)
    return [row for rows in datasets.values() for row in rows]


def _svg(spec: dict[str, object]) -> str:
    """A plot as it is drawn, 1,000 pixels wide."""
    wide = {**spec, "width": 1_000}
    svg: str = vl_convert.vegalite_to_svg(wide)
    return svg


def _paths(spec: dict[str, object], mark: str) -> list[str]:
    svg = _svg(spec)
    groups = re.findall(rf'<g class="{mark} [^"]*marks"[^>]*>(.*?)</g>', svg, re.S)
    return [path for group in groups for path in re.findall(r' d="([^"]*)"', group)]


def drawn(spec: dict[str, object], mark: str) -> int:
    """How many pieces of a kind ("mark-line", "mark-symbol") a plot has; a line that breaks has several."""
    return sum(path.count("M") for path in _paths(spec, mark))


def bar_heights(spec: dict[str, object]) -> list[float]:
    """The heights of the bars of a plot, in pixels."""
    found = (re.fullmatch(r"M[^hv]*h[^hv]*v([^hv]*)h[^hv]*Z", path) for path in _paths(spec, "mark-rect"))
    return [float(path[1]) for path in found if path]


def axis_labels(spec: dict[str, object], axis: str = "X") -> list[int]:
    """The labels of an axis of a plot, in order."""
    found = re.search(rf'aria-label="{axis}-axis.*?role-axis-label(.*?)</g>', _svg(spec), re.S)
    assert found
    return [int(label) for label in re.findall(r">([^<]+)</text>", found[1])]
