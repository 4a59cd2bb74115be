"""A replay on the wall clock: find or start the endpoint, measure this machine's own error, play, judge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain, islice
from statistics import median
from typing import NamedTuple

import msgspec.structs

from agentload._baseline import measure_baseline
from agentload._cap import Cap
from agentload._earlier import Earlier, earlier_of
from agentload._endpoint import Endpoint, probe_endpoint, simulator_process
from agentload._endpoint_options import extra_body_of
from agentload._event_loop import run_to_its_end
from agentload._feed import SessionFeed
from agentload._launches import Planned, launches
from agentload._load import cap_of, check_slots, make_feed, most_sessions, slots_of, worker_conditions
from agentload._options import ReplayOptions
from agentload._replay_result import CountingSink, ReplayResult
from agentload._requests import asked_tokens
from agentload._rows import WallSink
from agentload._run_keeping import keep_run
from agentload._run_manifest import new_manifest
from agentload._run_setup import RunSetup, class_headers, prepare_endpoint_run, prepare_run
from agentload._run_stops import stopped_by_signals
from agentload._tool_pool import ToolPool
from agentload._tools import call_times, live_tools
from agentload._trace_sessions import first_and_rest
from agentload._validity import judge_run
from agentload._wall import WallRun
from agentload._worker import Worker
from agentload._workers import run_workers
from agentload_simbackend import Deployment, SimulatedModel, load_deployment
from agentload_traces import Baseline, RunWriter, Session, TraceReader, open_trace

_LOOKED_AT = 16
"""How many sessions of a trace are looked at for the shape of a baseline."""

_MOST_STREAMS = 256
"""No more streams are tried at a time: no machine that sends from one process keeps up with so many."""

_BYTES_PER_TOKEN = 6
"""Of a request's body: a word and what stands around it."""


def replay_wall(
    options: ReplayOptions,
    reader: TraceReader,
    progress: Callable[[], None],
    tell: Callable[[str], None],
    *,
    url: bool,
) -> ReplayResult:
    """Replay a trace against an endpoint, or a deployment that is served for the occasion; see `replay`."""
    if url:
        endpoint = probe_endpoint(options.endpoint, options.target)
        setup = prepare_endpoint_run(options, reader, endpoint, tell)
        about = endpoint.simulated
        listeners = _Listeners(lambda origin_ns: None, progress, tell)
        return _replay(options, reader, setup, endpoint, about, listeners)
    deployment = load_deployment(options.target)
    setup = prepare_run(options, reader, deployment, tell)
    with simulator_process(options.target, options.seed, options.faults) as served:
        endpoint = probe_endpoint(options.endpoint, served.url)
        listeners = _Listeners(served.start, progress, tell)
        return _replay(options, reader, setup, endpoint, deployment, listeners)


_DRAINING = "finishing what is on the way; once more stops it"


class _Listeners(NamedTuple):
    """Who is told of a run: that it starts, of each turn that ended, and what a user must know."""

    on_start: Callable[[int], None]
    progress: Callable[[], None]
    tell: Callable[[str], None]


class _Shared(NamedTuple):
    """What a run is made of, wherever it is played; can be pickled."""

    options: ReplayOptions
    endpoint: Endpoint
    setup: RunSetup
    earlier: Earlier


def _replay(
    options: ReplayOptions,
    reader: TraceReader,
    setup: RunSetup,
    endpoint: Endpoint,
    about: Deployment | SimulatedModel | None,
    listeners: _Listeners,
) -> ReplayResult:
    check_slots(options, setup.tool_slots)
    asked = msgspec.structs.replace(options.endpoint, model=endpoint.model)
    options = msgspec.structs.replace(options, endpoint=asked)
    headers = {**endpoint.connection.headers, **class_headers(options)}
    endpoint = replace(endpoint, connection=replace(endpoint.connection, headers=headers))
    if unoffered(options):
        listeners.tell(
            "no tools are offered to the model, so it will call none: add them in the API's own words with"
            " --extra-body '{\"tools\":[...]}'"
        )
    head, sessions = _looked_at(setup.sessions(first_and_rest(reader)))
    conditions = (*setup.conditions, *worker_conditions(options, setup.tool_slots))
    manifest = new_manifest(options, about, conditions)
    if setup.context is None:
        manifest.options["on_overflow"] = None  # nothing was looked for
    if options.baseline and not options.resume:
        manifest.baseline = _baseline(options, head)
    result = ReplayResult(path=options.out, trace=reader.report)
    planned = Planned()

    def play(writer: RunWriter) -> Callable[[], None]:
        live = options.endpoint.history == "live"
        earlier = earlier_of(options.out, writer, result, live=live) if options.resume else Earlier()
        shared = _Shared(options, endpoint, setup, earlier)
        sink = CountingSink(writer, result)
        if options.workers > 1:
            ended = _in_workers(shared, sessions, sink, planned, listeners)
        else:
            ended = run_to_its_end(_in_this_process(shared, sessions, sink, planned, listeners))
        result.capped, result.told_to_stop = ended.capped, ended.told_to_stop
        writer.manifest.conditions += tuple(planned.conditions(options.load))
        if ended.left_something:
            raise KeyboardInterrupt

        def judge() -> None:
            writer.flush()
            verdict = judge_run(options.out, writer.manifest)
            writer.manifest.valid, writer.manifest.invalid_reasons = verdict
            result.valid, result.invalid_reasons = verdict

        return judge

    keep_run(play, options, manifest, reader, result, planned)
    return result


def unoffered(options: ReplayOptions) -> bool:
    """Whether tools are to be executed as a model calls them, of which it is not told."""
    asks = options.endpoint.history == "live" and options.tooling.tools.startswith(("python:", "mcp:"))
    return asks and options.endpoint.api != "messages" and "tools" not in extra_body_of(options.endpoint)


class _Ended(NamedTuple):
    left_something: bool
    told_to_stop: bool
    capped: int


async def _in_this_process(
    shared: _Shared,
    sessions: Iterable[Session],
    sink: WallSink,
    planned: Planned,
    listeners: _Listeners,
) -> _Ended:
    options, earlier = shared.options, shared.earlier
    cap = cap_of(options.load, earlier.sent)
    feed = make_feed(
        sessions, options, clock_start_ns=earlier.clock_start_ns, done=earlier.done, planned=planned
    )
    wall_run = _wall_run(
        shared,
        feed,
        sink,
        cap,
        shared.setup.tool_slots,
        on_start=listeners.on_start,
        progress=listeners.progress,
    )
    async with wall_run as run:
        with stopped_by_signals(run, listeners.tell):
            await run.run()
    return _Ended(run.left_something, run.told_to_stop, cap.sessions_ended)


def _in_workers(
    shared: _Shared,
    sessions: Iterable[Session],
    sink: WallSink,
    planned: Planned,
    listeners: _Listeners,
) -> _Ended:
    options = shared.options
    for _ in launches(sessions, options.load, options.seed, planned):
        pass  # the workers read for themselves; this counts what they are to play
    ended = run_workers(
        "agentload._replay_wall:play_share",
        shared,
        options.workers,
        sink,
        clock_start_ns=shared.earlier.clock_start_ns,
        on_start=listeners.on_start,
        progress=listeners.progress,
        interrupted=lambda again: None if again else listeners.tell(_DRAINING),
    )
    results = [_Ended(*each) for each in ended.results]
    left = ended.interrupted and any(each.left_something for each in results)
    return _Ended(left, ended.interrupted, sum(each.capped for each in results))


def play_share(shared: _Shared, worker: Worker) -> _Ended:
    """Play the share of one worker; see `run_workers`."""
    return run_to_its_end(_play_share(shared, worker))


async def _play_share(shared: _Shared, worker: Worker) -> _Ended:
    options, earlier = shared.options, shared.earlier
    reader = open_trace(options.trace, format=options.trace_format, strict=options.strict)
    cap = cap_of(options.load)
    feed = make_feed(
        shared.setup.sessions(first_and_rest(reader)),
        options,
        clock_start_ns=earlier.clock_start_ns,
        share=worker.share,
        done=earlier.done,
    )
    slots = slots_of(shared.setup.tool_slots, worker.share)
    wall_run = _wall_run(shared, feed, worker, cap, slots, begin=worker.begin, worker=worker.share[0])
    async with wall_run as run:
        worker.listen(run.drain, run.stop)
        await run.run()
    return _Ended(run.left_something, run.told_to_stop, cap.sessions_ended)


@asynccontextmanager
async def _wall_run(
    shared: _Shared,
    feed: SessionFeed,
    sink: WallSink,
    cap: Cap,
    tool_slots: int | None,
    *,
    begin: Callable[[], Awaitable[int]] | None = None,
    worker: int | None = None,
    on_start: Callable[[int], None] = lambda origin_ns: None,
    progress: Callable[[], None] = lambda: None,
) -> AsyncIterator[WallRun]:
    """A run to be played, its tools ready; see `WallRun`."""
    options = shared.options
    async with live_tools(options.tooling, tool_slots, options.endpoint.key_env) as tools:
        yield WallRun(
            options,
            shared.endpoint,
            feed,
            sink,
            directory=options.out,
            cap=cap,
            tools=ToolPool(tool_slots),
            call_ns=call_times(options.tooling, options.seed),
            live_tools=tools,
            unfit=shared.setup.unfit,
            earlier=shared.earlier,
            begin=begin,
            worker=worker,
            on_start=on_start,
            progress=progress,
        )


def _looked_at(sessions: Iterable[Session]) -> tuple[list[Session], Iterator[Session]]:
    """The first sessions, and all of them."""
    every = iter(sessions)
    head = list(islice(every, _LOOKED_AT))
    return head, chain(head, every)


def _baseline(options: ReplayOptions, head: list[Session]) -> Baseline:
    """Measure this machine's own error at the shape of the run: streams, length of answers and prompts."""
    load = options.load
    turns = [turn for session in head for turn in session.turns[: load.max_turns]]
    streams = min(most_sessions(load) or len(head), _MOST_STREAMS)
    if len(head) < _LOOKED_AT:
        streams = min(streams, len(head) * load.repeat)  # there are no more
    prompt_tokens = median(turn.input_tokens for turn in turns)
    return measure_baseline(
        -(-streams // options.workers),  # of each process
        round(median(asked_tokens(turn) for turn in turns)),
        round(prompt_tokens * _BYTES_PER_TOKEN),
    )
