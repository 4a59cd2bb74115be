"""The plots of a sweep: what is in them, and that they need nothing from outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

from agentload._sweep import SweepOptions, sweep
from agentload._sweep_points import Workload
from agentload._sweep_slo import parse_slo
from agentload_analysis import write_sweep_html, write_sweep_plot
from agentload_analysis._sweep_plot_labels import labelled
from agentload_simbackend import load_deployment
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
    published = "published at concurrency 1: 3,431 tokens/s"
    mark = {"name": published, "concurrency": 1, "speed_tokens_per_s": 3431}
    assert mark in values_of(specs["speed"])
    assert "median of 50 requests one after the other" in page
    assert f"the left end of {PD}, most likely" in page
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
    told = [load_deployment(target).headline() for target in (PD, RUBIN)]
    for words in (
        "Interactivity and throughput",
        "Workload: generated",
        "Simulated on gemma4-31b/rubin",
        *told,
    ):
        assert words in text


def test_no_two_series_look_alike_and_dashes_are_for_contexts_only(results: Results, tmp_path: Path) -> None:
    table, manifest = results
    run = table.filter(pl.col("error").is_null() & (pl.col("target") == PD))
    names = [f"gemma4-31b/pd-{number}" for number in range(20)]
    many = pl.concat([run.with_columns(target=pl.lit(name)) for name in names])
    (known,) = (found for found in manifest["deployments"] if found["target"] == PD)
    manifest = {**manifest, "deployments": [{**known, "target": name} for name in names], "knees": []}
    specs = specs_of(write_sweep_html(many, manifest, tmp_path / "s.html").read_text(encoding="utf-8"))
    for spec in specs.values():
        encodings = [layer["encoding"] for layer in spec["layer"]]
        (looks,) = (
            set(zip(found["color"]["scale"]["range"], found["shape"]["scale"]["range"], strict=True))
            for found in encodings
            if "shape" in found
        )
        assert len(looks) == 20
        assert all("strokeDash" not in layer["mark"] for layer in spec["layer"])
        assert [found["strokeDash"]["field"] for found in encodings if "strokeDash" in found] == ["context"]


@pytest.mark.parametrize(
    ("target", "told"),
    [(PD, f"the left end of {PD}"), (RUBIN, "in mode pd, most likely, which is not shown")],
)
def test_the_published_figure_says_what_it_is_of(
    target: str, told: str, results: Results, tmp_path: Path
) -> None:
    table, manifest = results
    shown = table.filter(pl.col("target") == target)
    page = write_sweep_html(shown, manifest, tmp_path / "s.html").read_text(encoding="utf-8")
    assert told in page
    crowd = write_sweep_html(shown.filter(pl.col("concurrency") > 1), manifest, tmp_path / "c.html")
    assert told not in crowd.read_text(encoding="utf-8"), "there is no left end of one user"


@given(points=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_labels_have_room(points: list[tuple[int, int]]) -> None:
    found = labelled(points)
    assert found == sorted(set(found))
    assert (0 in found) == bool(points)
    places = [points[index] for index in found]
    assert len(set(places)) == len(places)
    assert set(places) == set(points), "on a coarse grid there is room for one at each place"


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
