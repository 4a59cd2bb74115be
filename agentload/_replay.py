"""Replay a trace into a run directory: choose the target and the driver, write as it goes, end in order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentload._endpoint import Endpoint, probe_endpoint, simulator_process
from agentload._feed import ClosedLoop, OpenLoop, SessionFeed
from agentload._player import Pace
from agentload_simbackend import Deployment, build_engine, load_deployment
from agentload_traces import (
    AgentloadError,
    ImportReport,
    Manifest,
    RequestRow,
    RunWriter,
    Session,
    ToolCallRow,
    TraceReader,
    open_trace,
)


class ReplayOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How to replay a trace.

    trace: path of the trace; trace_format: its format, `None` to recognise it.
    target: name or file of a deployment, or the URL of an OpenAI-compatible endpoint.
    clock: "virtual" simulates in process; "wall" goes over HTTP, to a server of its own for a deployment.
    concurrency: closed loop with this many sessions active; `None` is open loop at recorded start times.
    speed: how much faster than recorded arrivals, tools and think time pass.
    max_turns: turns of each session to play, from its first.
    arrivals: record each answer's token timeline.
    resume: `out` is an interrupted run to be finished.
    """

    trace: Path
    out: Path
    target: str = "gemma4-31b/pd"
    clock: Literal["virtual", "wall"] = "virtual"
    concurrency: int | None = None
    speed: float = 1.0
    max_turns: int | None = None
    seed: int = 0
    model: str | None = None
    trace_format: str | None = None
    strict: bool = False
    arrivals: bool = True
    resume: bool = False


class ReplayResult(msgspec.Struct):
    """What became of a replay. interrupted: it was stopped by Ctrl-C and can be resumed."""

    path: Path
    trace: ImportReport
    turns: int = 0
    failed: int = 0
    skipped: int = 0
    first_error: str | None = None
    interrupted: bool = False


def is_url(target: str) -> bool:
    """Whether a target is an endpoint's URL rather than a deployment."""
    return target.startswith(("http://", "https://"))


class _CountingSink:
    """Hands rows on to the run directory and counts what became of them."""

    def __init__(self, writer: RunWriter, result: ReplayResult) -> None:
        self._writer = writer
        self._result = result
        self.add_tool_call: Callable[[ToolCallRow], None] = writer.add_tool_call
        self.tick: Callable[[int], None] = writer.tick

    def add_request(self, row: RequestRow) -> None:
        self._writer.add_request(row)
        self._result.turns += 1
        if row.status == "failed":
            self._result.failed += 1
            self._result.first_error = self._result.first_error or row.error
        elif row.status == "skipped":
            self._result.skipped += 1


def replay(options: ReplayOptions, progress: Callable[[], None] = lambda: None) -> ReplayResult:
    """Replay `options.trace` and write `options.out`.

    Failed requests are rows of the run, not errors. Raises `AgentloadError` for what keeps a run from
    starting: an unreadable trace, a wrong spec, an unreachable endpoint, a directory that holds a run.
    """
    reader = open_trace(options.trace, format=options.trace_format, strict=options.strict)
    if is_url(options.target):
        if options.clock == "virtual":
            raise AgentloadError(f"{options.target} is an endpoint: replay against it needs --clock wall")
        return _replay_wall(options, reader, nullcontext(options.target), None, progress)
    deployment = load_deployment(options.target)
    if options.clock == "wall":
        server = simulator_process(options.target, options.seed)
        return _replay_wall(options, reader, server, deployment, progress)
    return _replay_virtual(options, reader, deployment, progress)


def _replay_virtual(
    options: ReplayOptions, reader: TraceReader, deployment: Deployment, progress: Callable[[], None]
) -> ReplayResult:
    from agentload._virtual import VirtualRun

    writer = _open_writer(options, _manifest(options, deployment, None))
    if options.resume:
        # The queues and caches of a simulation cannot be entered halfway, and starting over is cheap.
        writer.drop_sessions(writer.completed_sessions(lambda *_: True))
    result = ReplayResult(path=options.out, trace=reader.report)
    with writer:
        run = VirtualRun(
            build_engine(deployment, options.seed),
            _feed(options, _counted(reader.sessions(), options, writer.manifest)),
            _CountingSink(writer, result),
            pace=_pace(options),
            max_turns=options.max_turns,
            arrivals=options.arrivals,
            progress=progress,
        )
        _run_to_end(run.run, writer, result)
    result.trace = reader.report
    return result


def _replay_wall(
    options: ReplayOptions,
    reader: TraceReader,
    server: AbstractContextManager[str],
    deployment: Deployment | None,
    progress: Callable[[], None],
) -> ReplayResult:
    from agentload._wall import WallRun

    with server as url:
        endpoint = probe_endpoint(url, options.model)
        writer = _open_writer(options, _manifest(options, deployment, endpoint))
        result = ReplayResult(path=options.out, trace=reader.report)
        sessions: Iterable[Session] = _counted(reader.sessions(), options, writer.manifest)
        clock_start_ns = 0
        if options.resume:
            done = _keep_whole_sessions(options, writer)
            sessions = (session for session in sessions if session.session_id not in done)
            clock_start_ns = _last_end_ns(options.out)
        with writer:
            run = WallRun(
                endpoint.base_url,
                _feed(options, sessions),
                _CountingSink(writer, result),
                seed=options.seed,
                model=endpoint.model,
                headers=endpoint.headers,
                pace=_pace(options),
                max_turns=options.max_turns,
                clock_start_ns=clock_start_ns,
                progress=progress,
            )
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                _run_to_end(lambda: runner.run(run.run()), writer, result)
    result.trace = reader.report
    return result


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _run_to_end(run: Callable[[], Any], writer: RunWriter, result: ReplayResult) -> None:
    """Run; on Ctrl-C keep what was recorded and say so."""
    try:
        run()
    except KeyboardInterrupt:
        result.interrupted = True
    writer.manifest.ended_at = _utc_now()
    writer.finish("interrupted" if result.interrupted else "complete")


def _pace(options: ReplayOptions) -> Pace:
    return Pace(tool_speed=options.speed, think_speed=options.speed)


def _feed(options: ReplayOptions, sessions: Iterable[Session]) -> SessionFeed:
    if options.concurrency is not None:
        return ClosedLoop(sessions, options.concurrency)
    return OpenLoop(sessions, options.speed)


def _counted(sessions: Iterable[Session], options: ReplayOptions, manifest: Manifest) -> Iterator[Session]:
    """The sessions; once all have been read, the manifest says how many they are."""
    session_count = turn_count = 0
    for session in sessions:
        session_count += 1
        turn_count += len(session.turns[: options.max_turns])
        yield session
    manifest.sessions_planned, manifest.turns_planned = session_count, turn_count


def _open_writer(options: ReplayOptions, manifest: Manifest) -> RunWriter:
    if not options.resume:
        return RunWriter(options.out, manifest)
    writer = RunWriter.resume(options.out)
    before = writer.manifest
    for name in ("target", "seed", "clock", "trace_sha256", "options"):
        was, now = getattr(before, name), getattr(manifest, name)
        if was != now:
            writer.finish("interrupted")
            raise AgentloadError(f"{options.out}: cannot resume with another {name}: it was {was}, not {now}")
    return writer


def _keep_whole_sessions(options: ReplayOptions, writer: RunWriter) -> set[str]:
    """Drop the rows of sessions that were cut short; return the ids of the others."""
    planned = {
        session.session_id: len(session.turns[: options.max_turns])
        for session in open_trace(options.trace, format=options.trace_format).sessions()
    }
    done = writer.completed_sessions(lambda session_id, turns: len(turns) == planned.get(session_id))
    writer.drop_sessions(writer.completed_sessions(lambda session_id, _: session_id not in done))
    return done


def _last_end_ns(path: Path) -> int:
    import polars as pl

    from agentload_traces import RunReader

    last = RunReader(path).requests().select(pl.col("end_ns").max()).collect().item()
    return int(last or 0)


def _manifest(options: ReplayOptions, deployment: Deployment | None, endpoint: Endpoint | None) -> Manifest:
    return Manifest(
        status="running",
        clock=options.clock,
        seed=options.seed,
        target=options.target,
        mode=deployment.mode if deployment else "endpoint",
        trace=str(options.trace),
        trace_sha256=_sha256(options.trace),
        spec_sha256=deployment.spec_sha256 if deployment else None,
        conditions=tuple(deployment.conditions()) if deployment else (),
        options={
            "concurrency": options.concurrency,
            "speed": options.speed,
            "max_turns": options.max_turns,
            "model": endpoint.model if endpoint else None,
        },
        versions={name: version(name) for name in ("agentload", "aiohttp", "polars")}
        | {"python": platform.python_version()},
        host={"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count() or 0},
        started_at=_utc_now(),
    )


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
