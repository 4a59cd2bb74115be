"""Replay a trace into a run directory: choose the target and the driver, write as it goes, end in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import msgspec.structs

from agentload._endpoint import Endpoint, Served, probe_endpoint, simulator_process
from agentload._feed import ClosedLoop, OpenLoop, SessionFeed
from agentload._player import Pace
from agentload._replay_result import CountingSink, ReplayResult
from agentload._run_manifest import ReplayOptions, check_same_run, new_manifest, utc_now
from agentload._run_setup import (
    RunSetup,
    check_for_endpoint,
    class_headers,
    prepare_endpoint_run,
    prepare_run,
)
from agentload._tool_pool import ToolPool
from agentload._trace_sessions import first_and_rest
from agentload_simbackend import Deployment, build_engine, load_deployment
from agentload_traces import (
    AgentloadError,
    Manifest,
    RunReader,
    RunWriter,
    Session,
    TraceReader,
    open_trace,
)


def is_url(target: str) -> bool:
    """Whether a target is an endpoint's URL rather than a deployment.

    Raises `AgentloadError` for what looks like an endpoint without its scheme.
    """
    if "://" in target:
        return True
    host, colon, port = target.partition(":")
    if colon and port.split("/")[0].isdigit() and not Path(target).exists():
        raise AgentloadError(f"{target}: an endpoint needs its scheme, such as http://{host}:{port}")
    return False


def replay(
    options: ReplayOptions,
    progress: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda warning: None,
) -> ReplayResult:
    """Replay `options.trace` and write `options.out`.

    progress: called after each answered turn. tell: called with what a user must know before the run starts.
    Failed requests are rows of the run, not errors. Raises `AgentloadError` for what keeps a run from
    starting: a trace with no usable turn (or, when strict, with any bad line), or with turns that do not fit
    the deployment, a wrong spec, an unreachable endpoint, a directory that holds a run.
    """
    reader = open_trace(options.trace, format=options.trace_format, strict=options.strict)
    if is_url(options.target):
        check_for_endpoint(options)
        endpoint = probe_endpoint(options.target, options.model)
        setup = prepare_endpoint_run(options, reader, endpoint, tell)
        served = nullcontext(Served(options.target, lambda origin_ns: None))
        return _replay_wall(options, reader, setup, served, endpoint, progress)
    deployment = load_deployment(options.target)
    setup = prepare_run(options, reader, deployment, tell)
    if options.clock == "wall":
        server = simulator_process(options.target, options.seed, options.faults)
        return _replay_wall(options, reader, setup, server, deployment, progress)
    return _replay_virtual(options, reader, setup, deployment, progress)


def _replay_virtual(
    options: ReplayOptions,
    reader: TraceReader,
    setup: RunSetup,
    deployment: Deployment,
    progress: Callable[[], None],
) -> ReplayResult:
    from agentload._virtual import VirtualRun

    engine = build_engine(deployment, options.seed, faults=setup.faults)
    sessions = setup.sessions(first_and_rest(reader))
    result = ReplayResult(path=options.out, trace=reader.report)

    def play(writer: RunWriter) -> None:
        if options.resume:
            # The queues and caches of a simulation cannot be entered halfway, and starting over is cheap.
            writer.keep_sessions(set())
        VirtualRun(
            engine,
            _feed(options, _counted(sessions, options, writer.manifest)),
            CountingSink(writer, result),
            pace=_pace(options),
            max_turns=options.max_turns,
            tools=ToolPool(setup.tool_slots),
            unfit=setup.unfit,
            content=options.content,
            latency_class=options.latency_class or "standard",
            arrivals=options.arrivals,
            progress=progress,
        ).run()

    _record(play, options, new_manifest(options, deployment, setup.conditions), reader, result)
    return result


def _replay_wall(
    options: ReplayOptions,
    reader: TraceReader,
    setup: RunSetup,
    server: AbstractContextManager[Served],
    target: Deployment | Endpoint,
    progress: Callable[[], None],
) -> ReplayResult:
    from agentload._wall import WallRun

    sessions = setup.sessions(first_and_rest(reader))
    result = ReplayResult(path=options.out, trace=reader.report)
    with server as served:
        endpoint = target if isinstance(target, Endpoint) else probe_endpoint(served.url, options.model)
        options = msgspec.structs.replace(options, model=endpoint.model)
        about = endpoint.simulated if isinstance(target, Endpoint) else target
        manifest = new_manifest(options, about, setup.conditions)
        if setup.context is None:
            manifest.options["on_overflow"] = None  # nothing was looked for

        def play(writer: RunWriter) -> None:
            done: set[str] = set()
            clock_start_ns = 0
            if options.resume:
                done, clock_start_ns = _keep_whole_sessions(options, writer, result)
            counted = _counted(sessions, options, writer.manifest)
            left = (session for session in counted if session.session_id not in done)
            run = WallRun(
                endpoint.base_url,
                _feed(options, left, clock_start_ns),
                CountingSink(writer, result),
                seed=options.seed,
                model=endpoint.model,
                headers={**endpoint.headers, **class_headers(options)},
                idle_s=options.timeout_s,
                pace=_pace(options),
                max_turns=options.max_turns,
                tools=ToolPool(setup.tool_slots),
                unfit=setup.unfit,
                clock_start_ns=clock_start_ns,
                on_start=served.start,
                progress=progress,
            )
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(run.run())

        _record(play, options, manifest, reader, result)
    return result


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _record(
    play: Callable[[RunWriter], None],
    options: ReplayOptions,
    manifest: Manifest,
    reader: TraceReader,
    result: ReplayResult,
) -> None:
    """Play into the run directory; whatever ends it, what was recorded is kept.

    Ctrl-C ends it quietly from when there is a run that can be resumed.
    """
    try:
        with _open_writer(options, manifest) as writer:
            try:
                play(writer)
            except KeyboardInterrupt:
                result.interrupted = True
            except BaseException as failure:
                with suppress(AgentloadError):
                    _finish(writer, reader, "interrupted")
                raise _cause(failure) from None
            result.trace = reader.report
            _finish(writer, reader, "interrupted" if result.interrupted else "complete")
    except KeyboardInterrupt:
        if not (options.out / "manifest.json").is_file():
            raise
        result.interrupted = True


def _finish(writer: RunWriter, reader: TraceReader, status: Literal["complete", "interrupted"]) -> None:
    manifest, report = writer.manifest, reader.report
    manifest.ended_at = utc_now()
    manifest.trace_lines_read, manifest.trace_lines_skipped = report.lines_read, report.lines_skipped
    writer.finish(status)


def _cause(failure: BaseException) -> BaseException:
    """What a user can mend, out of the groups that concurrent tasks wrap it in."""
    if isinstance(failure, BaseExceptionGroup) and (group := failure.subgroup(AgentloadError)):
        return _cause(group.exceptions[0])
    return failure


def _pace(options: ReplayOptions) -> Pace:
    return Pace(tool_speed=options.speed, think_speed=options.speed)


def _feed(options: ReplayOptions, sessions: Iterable[Session], clock_start_ns: int = 0) -> SessionFeed:
    if options.concurrency is not None:
        return ClosedLoop(sessions, options.concurrency)
    return OpenLoop(sessions, options.speed, first_start_ns=clock_start_ns)


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
    check_same_run(options.out, RunReader(options.out).manifest, manifest)
    return RunWriter.resume(options.out)


def _keep_whole_sessions(
    options: ReplayOptions, writer: RunWriter, result: ReplayResult
) -> tuple[set[str], int]:
    """Drop the rows of sessions that were cut short and count the others'.

    Returns the ids of the kept sessions, and the end of the last of their rows on the run's clock.
    """
    rows = (
        RunReader(options.out).requests().select("session_id", "session_turns", "status", "error", "end_ns")
    )
    by_session: dict[str, list[dict[str, Any]]] = {}
    for row in rows.collect().iter_rows(named=True):
        by_session.setdefault(row["session_id"], []).append(row)
    kept = {name: held for name, held in by_session.items() if len(held) == held[0]["session_turns"]}
    writer.keep_sessions(kept.keys())
    last_ns = 0
    for held in kept.values():
        for row in held:
            result.count(row["status"], row["error"])
            last_ns = max(last_ns, row["end_ns"] or 0)
    return set(kept), last_ns
