"""Why turns failed or were not sent, alike reasons together."""

from __future__ import annotations

from typing import Any

import polars as pl

_SHOWN = 5
_NUMBER = r"\d[\d,.]*"
_HTTP_STATUS = r"^(HTTP \d+)"


def reasons(requests: pl.LazyFrame, of: pl.Expr) -> list[dict[str, Any]]:
    """The most frequent reasons (`error`) of the turns `of`, most turns first.

    error: the first text of its kind. turns: how many have it. texts: how many different texts that is: they
    differ in their numbers only (tokens, turns), but never in an HTTP status.
    """
    text = pl.col("error").fill_null("reason not recorded")
    kind = pl.concat_str(text.str.extract(_HTTP_STATUS).fill_null(""), text.str.replace_all(_NUMBER, "0"))
    return (
        requests.filter(of)
        .group_by(kind.alias("kind"), maintain_order=True)
        .agg(
            text.first().alias("error"),
            pl.len().cast(pl.Int64).alias("turns"),
            text.n_unique().cast(pl.Int64).alias("texts"),
        )
        .sort(["turns", "error"], descending=[True, False])
        .drop("kind")
        .head(_SHOWN)
        .collect()
        .to_dicts()
    )
