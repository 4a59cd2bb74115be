"""Up to which concurrency the deployments of a sweep hold its SLO."""

from __future__ import annotations

import msgspec

from agentload._sweep_points import SweepPoint
from agentload._sweep_results import Row
from agentload._sweep_slo import Slo
from agentload_traces import decodable


class Knee(msgspec.Struct, kw_only=True):
    """Up to which concurrency a deployment holds the SLO, with all smaller ones that were planned.

    concurrency: 0 if the smallest does not hold; `None` if a point is missing before one breaks. missing:
    points of these. next_concurrency: the next that was planned. at, above: the values that are judged, with
    their standard errors, at both. close: a limit is within two standard errors of one of them.
    """

    target: str
    context_tokens: int | None
    concurrency: int | None
    missing: int
    next_concurrency: int | None = None
    at: list[str] = []
    above: list[str] = []
    close: bool = False


def knees_of(points: list[SweepPoint], rows: list[Row | None], slo: Slo) -> list[Knee]:
    """The knee of each target and context. rows: of each point, `None` if it is missing."""
    series: dict[tuple[str, int | None], dict[int, Row | None]] = {}
    for point, row in zip(points, rows, strict=True):
        series.setdefault((point.target, point.context_tokens), {})[point.concurrency] = row
    return [
        _knee(target, context, by_concurrency, slo) for (target, context), by_concurrency in series.items()
    ]


def _knee(target: str, context: int | None, rows: dict[int, Row | None], slo: Slo) -> Knee:
    missing = sum(row is None for row in rows.values())
    most = knee([(each, None if row is None else row["holds"]) for each, row in rows.items()])
    found = Knee(target=decodable(target), context_tokens=context, concurrency=most, missing=missing)
    if most is None:
        return found
    found.next_concurrency = min((concurrency for concurrency in rows if concurrency > most), default=None)
    for concurrency, values in ((most, found.at), (found.next_concurrency, found.above)):
        row = rows.get(concurrency or 0)
        if row is not None and row["error"] is None:
            values += slo.values_in(row)
            found.close |= slo.is_close(row)
    return found


def knee(rows: list[tuple[int, bool | None]]) -> int | None:
    """The largest concurrency that holds, with all smaller ones; 0 if the smallest does not.

    rows: (concurrency, whether it holds; `None`: not known), in any order. `None` if it is not known: a point
    is missing before one breaks.
    """
    largest = 0
    for concurrency, holds in sorted(rows):
        if holds is None:
            return None
        if not holds:
            break
        largest = concurrency
    return largest
