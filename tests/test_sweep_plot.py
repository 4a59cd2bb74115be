"""The plots of a sweep: what is in them, and that they need nothing from outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import vl_convert

from agentload._sweep import SweepOptions, sweep
from agentload._sweep_points import Workload
from agentload._sweep_slo import parse_slo
from agentload_analysis import write_sweep_html, write_sweep_plot
from agentload_traces import AgentloadError

PD, RUBIN = "gemma4-31b/pd", "gemma4-31b/rubin"

Results = tuple[pl.DataFrame, dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("sweep") / "s"
    sweep(
        SweepOptions(
            targets=(PD, RUBIN, "gemma4-31b/<none>"),
            concurrencies=(1, 2, 8),
            contexts_tokens=(2_000, 9_000),
            workload=Workload(turns=2, output_tokens=20),
            out=out,
            slo=parse_slo("ttft=1s"),
        )
    )
    return pl.read_parquet(out / "sweep.parquet"), json.loads((out / "sweep.json").read_bytes())


def specs_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    specs: dict[str, Any] = json.loads(found[1])
    return specs


def test_the_page_opens_offline_and_each_plot_draws(results: Results, tmp_path: Path) -> None:
    page = write_sweep_html(*results, tmp_path / "s.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    outside = re.findall(
        r"<(?:script|img|iframe|object|embed)[^>]*\ssrc|<link|@import|<a\s", page.split("<script")[0]
    )
    assert outside == []
    assert re.findall(r"<script[^>]*\ssrc=", page) == []
    specs = specs_of(page)
    assert list(specs) == ["throughput", "speed", "sessions", "itl"]
    for spec in specs.values():
        assert "url" not in json.dumps(spec)
        svg = vl_convert.vegalite_to_svg({**spec, "width": 400})
        assert svg.startswith("<svg")


def values_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for values in spec["datasets"].values() for value in values]


def test_plots_show_every_point_and_mark_the_published_figure(results: Results, tmp_path: Path) -> None:
    page = write_sweep_html(*results, tmp_path / "s.html").read_text(encoding="utf-8")
    specs = specs_of(page)
    shown = {
        (value["deployment"], value["context"], value["concurrency"])
        for value in values_of(specs["throughput"])
        if "deployment" in value
    }
    assert shown == {
        (target, context, concurrency)
        for target in (PD, RUBIN)
        for context in ("2K", "9K")
        for concurrency in (1, 2, 8)
    }
    assert {"name": "published at concurrency 1: 3,431 tokens/s", "speed": 3431} in values_of(specs["speed"])
    assert "median of 50 requests one after the other" in page
    for words in ("Simulated on gemma4-31b/pd", "Workload: generated sessions of 2 turns", "&lt;none&gt;"):
        assert words in page
    assert "<none>" not in page


@pytest.mark.parametrize("name", ["s.svg", "s.png"])
def test_a_picture_holds_title_and_conditions(name: str, results: Results, tmp_path: Path) -> None:
    picture = write_sweep_plot(*results, tmp_path / name).read_bytes()
    if name.endswith("png"):
        assert picture.startswith(b"\x89PNG")
        return
    text = " ".join(re.findall(r">([^<]+)<", picture.decode()))
    for words in ("Interactivity and throughput", "Workload: generated", "Simulated on gemma4-31b/rubin"):
        assert words in text


def test_an_incomplete_sweep_says_so(results: Results, tmp_path: Path) -> None:
    table, manifest = results
    manifest = {**manifest, "status": "incomplete", "points_done": 2}
    page = write_sweep_html(table.head(2), manifest, tmp_path / "s.html").read_text(encoding="utf-8")
    assert "(incomplete: 2 of 18 points)" in page


def test_nothing_to_plot_is_a_page_without_plots(results: Results, tmp_path: Path) -> None:
    table, manifest = results
    none = table.filter(pl.col("error").is_not_null())
    assert none.height == 6
    assert specs_of(write_sweep_html(none, manifest, tmp_path / "s.html").read_text(encoding="utf-8")) == {}
    with pytest.raises(AgentloadError, match="nothing to plot"):
        write_sweep_plot(none, manifest, tmp_path / "s.svg")
    with pytest.raises(AgentloadError, match=r"\.svg or \.png"):
        write_sweep_plot(table, manifest, tmp_path / "s.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["s.html"]
