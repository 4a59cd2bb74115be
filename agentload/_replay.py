"""Replay a trace into a run directory: choose the target and the driver, write as it goes, end in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentload._launches import Planned
from agentload._load import cap_of, make_feed, pace_of, resolved_load, warmup_ns
from agentload._option_checks import check_options
from agentload._options import ReplayOptions
from agentload._replay_result import CountingSink, ReplayResult
from agentload._run_keeping import keep_run
from agentload._run_manifest import new_manifest
from agentload._run_setup import RunSetup, prepare_run
from agentload._tool_pool import ToolPool
from agentload._tools import call_times
from agentload._trace_sessions import first_and_rest
from agentload_simbackend import Deployment, build_engine, load_deployment
from agentload_traces import AgentloadError, RunWriter, TraceReader, open_trace


def is_url(target: str) -> bool:
    """Whether a target is an endpoint's URL rather than a deployment.

    Raises `AgentloadError` for what looks like an endpoint without its scheme.
    """
    if "://" in target:
        return True
    host, colon, port = target.partition(":")
    if colon and port.split("/")[0].isdigit() and not Path(target).exists():
        port = port.split("/")[0]
        raise AgentloadError(f"{host}:{port}: an endpoint needs its scheme, such as http://{host}:{port}")
    return False


def replay(
    options: ReplayOptions,
    progress: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda warning: None,
) -> ReplayResult:
    """Replay `options.trace` and write `options.out`.

    progress: called after each turn that was sent and ended.
    tell: called with what a user must know before the run starts.
    Failed requests are rows of the run, not errors. Raises `AgentloadError` for what keeps a run from
    starting: options that contradict each other, a trace with no usable turn (or, when strict, with any bad
    line), or with turns that do not fit the deployment, a wrong spec, an unreachable endpoint, a directory
    that holds a run.
    """
    url = is_url(options.target)
    check_options(options, url=url)
    options = resolved_load(options)
    reader = open_trace(options.trace, format=options.trace_format, strict=options.strict)
    if url or options.clock == "wall":
        from agentload._replay_wall import replay_wall

        return replay_wall(options, reader, progress, tell, url=url)
    deployment = load_deployment(options.target)
    setup = prepare_run(options, reader, deployment, tell)
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
    planned = Planned()

    def play(writer: RunWriter) -> None:
        if options.resume:
            # The queues and caches of a simulation cannot be entered halfway, and starting over is cheap.
            writer.keep_sessions(set())
        cap = cap_of(options.load)
        VirtualRun(
            engine,
            make_feed(sessions, options, planned=planned),
            CountingSink(writer, result),
            pace=pace_of(options.load),
            max_turns=options.load.max_turns,
            tools=ToolPool(setup.tool_slots),
            unfit=setup.unfit,
            call_ns=call_times(options.tooling, options.seed),
            cap=cap,
            warmup_ns=warmup_ns(options.load),
            on_failure=options.failure.on_failure,
            content=options.content,
            latency_class=options.latency_class or "standard",
            arrivals=options.arrivals,
            progress=progress,
        ).run()
        result.capped = cap.sessions_ended
        writer.manifest.conditions += tuple(planned.conditions(options.load))

    keep_run(play, options, new_manifest(options, deployment, setup.conditions), reader, result, planned)
    return result
