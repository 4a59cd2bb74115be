"""One plot of the HTML report: a Vega-Lite spec and its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

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


def _spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> Spec:
    with alt.data_transformers.enable("default", max_rows=None):
        spec: Spec = chart.to_dict()
    spec.pop("$schema", None)  # an address, though nothing loads it
    spec.pop("config", None)  # colours come from the page, which knows light from dark
    return spec
