"""A sweep: many points in virtual time, their results written as they come."""

from __future__ import annotations

import io
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentload._run_manifest import file_sha256, utc_now
from agentload._sweep_directory import MANIFEST_FILE, TABLE_FILE, claim_directory
from agentload._sweep_knees import Knee, knees_of
from agentload._sweep_points import SweepPoint, Workload, grid
from agentload._sweep_pool import WorkerDiedError, run_points
from agentload._sweep_results import COLUMNS, HOW_COUNTED, Row, point_row, table
from agentload._sweep_slo import Slo
from agentload._trace_sessions import no_turn
from agentload_simbackend import load_deployment
from agentload_traces import AgentloadError, ImportReport, decodable, open_trace, write_whole

_HEADLINE = {
    "name": "published at concurrency 1: 3,431 tokens/s",
    "concurrency": 1,
    "model": "gemma4-31b",
    "mode": "pd",
    "speed_tokens_per_s": 3431,
    "conditions": "Artificial Analysis on LPX with Vera Rubin, Gemma 4 31B, 100K input, concurrency 1,"
    " median of 50 requests one after the other",
    "source": "https://developer.nvidia.com/blog/how-nvidia-groq-3-lpx-unlocks-ultrafast-interactivity"
    "-at-long-context-on-nvidia-vera-rubin/",
}


class SweepOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to sweep over; see `grid`.

    out: the directory to write; `None` is a new one, sweeps/TIME. jobs: processes. slo: what
    `holds` is about.
    """

    targets: tuple[str, ...]
    concurrencies: tuple[int, ...]
    contexts_tokens: tuple[int, ...]
    workload: Workload
    out: Path | None = None
    seed: int = 0
    jobs: int = 1
    slo: Slo | None = None


class SweptDeployment(msgspec.Struct, kw_only=True):
    """A deployment of a sweep; of one that could not be loaded only `target` and `error` are known.

    headline: what any comparison of its speed must state.
    """

    target: str
    error: str | None = None
    mode: str | None = None
    summary: str | None = None
    spec_sha256: str | None = None
    racks: dict[str, int] = {}
    headline: str | None = None
    conditions: tuple[str, ...] = ()


class SweepManifest(msgspec.Struct, kw_only=True):
    """`sweep.json`: what the table beside it holds for.

    status: "incomplete" until the last point is in the table. workload: what was played, in words.
    knees: with an SLO, for each target and context.
    references: published figures that the plots show. columns: what each column of the table means.
    """

    format: int = 1
    status: Literal["incomplete", "complete"] = "incomplete"
    points_planned: int
    points_done: int = 0
    seed: int
    workload: str
    racks_counted: str = HOW_COUNTED
    slo: str | None
    options: dict[str, Any]
    deployments: list[SweptDeployment]
    knees: list[Knee] = []
    references: list[dict[str, Any]] = []
    versions: dict[str, str]
    started_at: str
    ended_at: str | None = None
    columns: dict[str, str]


class SweepResult(msgspec.Struct):
    """What a sweep gave. rows: those of the finished points, in the order of the grid.

    died: why there are no more, if a worker died.
    """

    out: Path
    manifest: SweepManifest
    rows: list[Row]
    trace: ImportReport | None
    interrupted: bool = False
    died: str | None = None


def sweep(options: SweepOptions, progress: Callable[[], None] = lambda: None) -> SweepResult:
    """Run all points and write `options.out`: the table and its manifest, by rename, after each point.

    Ctrl-C keeps the finished points, and so does the death of a worker. A point that cannot be run is a row
    with its reason. Raises `AgentloadError` for what keeps a sweep from starting: no deployment that can be
    loaded, no context that one of them can serve, a trace without turns, a directory that holds a sweep.
    """
    report = checked_trace(options.workload)
    deployments = [look_up(target) for target in options.targets]
    if all(deployment.error for deployment in deployments):
        raise AgentloadError(deployments[0].error or "")
    points = grid(
        options.targets, options.contexts_tokens, options.concurrencies, options.workload, options.seed
    )
    # By what was given: names that are not UTF-8 may look the same once they are decoded.
    by_target = dict(zip(options.targets, deployments, strict=True))
    reasons = _why_not(points, by_target)
    if None not in reasons:
        raise AgentloadError(f"no point can be run: {reasons[0]}")
    writer = _Writer(options, points, deployments)
    result = SweepResult(writer.out, writer.manifest, [], report)
    try:
        for place, (point, why) in enumerate(zip(points, reasons, strict=True)):
            if why is not None:
                writer.add(place, point_row(point, by_target[point.target].mode, why))
        waiting = [place for place, why in enumerate(reasons) if why is None]

        def done(index: int, row: Row) -> None:
            writer.add(waiting[index], row)
            progress()

        run_points([points[place] for place in waiting], options.jobs, done)
    except KeyboardInterrupt:
        result.interrupted = True
    except WorkerDiedError as error:
        result.died = str(error)
    finally:
        writer.finish()
    result.rows = writer.rows
    return result


def checked_trace(workload: Workload) -> ImportReport | None:
    """Read the trace once, so that what is wrong with it is known before anything runs.

    Raises `AgentloadError` if it has no turn.
    """
    if workload.trace is None:
        return None
    reader = open_trace(workload.trace, format=workload.trace_format)
    if sum(1 for _ in reader.turns()) == 0:
        raise no_turn(reader)
    return reader.report


def look_up(target: str) -> SweptDeployment:
    """What a deployment's numbers hold for; one that cannot be loaded has the reason in `error`."""
    try:
        deployment = load_deployment(target)
    except AgentloadError as error:
        return SweptDeployment(target=decodable(target), error=decodable(str(error)))
    return SweptDeployment(
        target=decodable(target),
        mode=deployment.mode,
        summary=deployment.summary,
        spec_sha256=deployment.spec_sha256,
        racks=dict(deployment.racks),
        headline=deployment.headline(),
        conditions=tuple(deployment.conditions()),
    )


def _why_not(points: list[SweepPoint], deployments: dict[str, SweptDeployment]) -> list[str | None]:
    """Of each point why it cannot be run, as far as that is known before anything runs."""
    from agentload._sweep_measure import why_not

    reasons: dict[tuple[str, int | None], str | None] = {}
    for point in points:
        key = (point.target, point.context_tokens)
        if key not in reasons:
            # Loading it once more would only tell the same.
            reasons[key] = deployments[point.target].error or why_not(point)
    return [reasons[point.target, point.context_tokens] for point in points]


class _Writer:
    """Keeps the rows in the order of the grid and writes them after each."""

    def __init__(
        self, options: SweepOptions, points: list[SweepPoint], deployments: list[SweptDeployment]
    ) -> None:
        # An interrupt within this import leaves half a module; later there are points that need a whole one.
        import polars  # noqa: F401

        workload = options.workload
        self.points, self._slo = points, options.slo
        self._by_place: dict[int, Row] = {}
        shows_headline = any(
            found.target.startswith(f"{_HEADLINE['model']}/") and not found.error for found in deployments
        )
        self.manifest = SweepManifest(
            points_planned=len(self.points),
            seed=options.seed,
            workload=workload.sentence(max(options.concurrencies)),
            slo=str(options.slo) if options.slo is not None else None,
            options={
                "concurrency": options.concurrencies,
                "context_tokens": options.contexts_tokens if workload.trace is None else None,
                "trace": decodable(workload.trace) if workload.trace is not None else None,
                "trace_sha256": file_sha256(workload.trace) if workload.trace is not None else None,
                "speed": workload.speed if workload.trace is not None else None,
                "turns": workload.turns,
                "output_tokens": workload.output_tokens if workload.trace is None else None,
                "tool_s": workload.tool_s if workload.trace is None else None,
            },
            deployments=deployments,
            references=[_HEADLINE] if shows_headline else [],
            versions={name: version(name) for name in ("agentload", "polars")}
            | {"python": platform.python_version()},
            started_at=utc_now(),
            columns={name: column.meaning for name, column in COLUMNS.items()},
        )
        self.out = claim_directory(options.out, self._manifest_content())

    @property
    def rows(self) -> list[Row]:
        """Finished rows, in the order of the grid."""
        return [row for _, row in sorted(self._by_place.items())]

    def add(self, place: int, row: Row) -> None:
        """Take a finished row and write all."""
        if self._slo is not None:
            self._slo.judge(row)
        self._by_place[place] = row
        self._write()

    def finish(self) -> None:
        """Write for the last time: complete, if every point is there."""
        manifest = self.manifest
        if len(self._by_place) == len(self.points):
            manifest.status = "complete"
        manifest.ended_at = utc_now()
        if self._slo is not None:
            rows = [self._by_place.get(place) for place in range(len(self.points))]
            manifest.knees = knees_of(self.points, rows, self._slo)
        self._write()

    def _write(self) -> None:
        self.manifest.points_done = len(self._by_place)
        buffer = io.BytesIO()
        table(self.rows).write_parquet(buffer)
        write_whole(self.out / TABLE_FILE, buffer.getvalue())
        write_whole(self.out / MANIFEST_FILE, self._manifest_content())

    def _manifest_content(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self.manifest), indent=2)
