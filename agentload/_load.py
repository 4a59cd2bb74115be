"""What the options of the load mean: checked, and turned into what both drivers work with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import isfinite
from secrets import token_hex

import msgspec.structs

from agentload._arrivals import drawn_positions
from agentload._cap import Cap
from agentload._feed import ClosedLoop, SessionFeed, TimedLoop, at_drawn_times, at_recorded_times
from agentload._launches import Planned, launches, mine
from agentload._options import LoadOptions, ReplayOptions
from agentload._player import Pace
from agentload._stages import ConstantLimit, ConstantRate, StagedLimit, StagedRate, parse_stages
from agentload_traces import AgentloadError, Session, counted

_NS_PER_S = 1_000_000_000


def check_load(options: ReplayOptions) -> None:
    """Raise `AgentloadError` for options of the load, or of workers, that contradict each other."""
    load = options.load
    for reason in (*_numbers(load), *_shapes(load), *_parts(load), *_workers(options)):
        raise AgentloadError(reason)


def _closed(load: LoadOptions) -> bool:
    return load.concurrency is not None or (load.stages is not None and load.arrival == "recorded")


def _numbers(load: LoadOptions) -> Iterator[str]:
    """What the command line does not let through, for whoever calls from Python."""
    speeds = ("speed", "arrival_speed", "tool_speed", "think_speed")
    for name in ("rate_per_s", "burstiness", "max_duration_s", *speeds):
        if (value := getattr(load, name)) is not None and not (isfinite(value) and value > 0):
            yield f"{name} {value:g}: must be more than 0"
    for name in ("warmup_s", "max_gap_s"):
        if (value := getattr(load, name)) is not None and not (isfinite(value) and value >= 0):
            yield f"{name} {value:g}: must be 0 or more"
    for name in ("concurrency", "max_requests", "max_sessions", "max_turns", "repeat"):
        if (value := getattr(load, name)) is not None and value < 1:
            yield f"{name} {value}: must be at least 1"


def _shapes(load: LoadOptions) -> Iterator[str]:
    """Closed loop or open loop, and what belongs to the other."""
    drawn = load.arrival != "recorded"
    if load.concurrency is not None and drawn:
        yield f"--concurrency is a closed loop, --arrival {load.arrival} an open one: leave one of them out"
    if load.concurrency is not None and load.stages is not None:
        yield "--stages say how many sessions there are at a time: leave --concurrency out"
    if load.rate_per_s is not None and not drawn:
        yield "--rate is for drawn arrivals: add --arrival constant, poisson or gamma"
    if load.rate_per_s is not None and load.stages is not None:
        yield "--stages say how many sessions start a second: leave --rate out"
    if drawn and load.rate_per_s is None and load.stages is None:
        yield f"--arrival {load.arrival} needs --rate, the sessions that start a second, or --stages"
    if load.burstiness != 1 and load.arrival != "gamma":
        yield "--burstiness is the shape of --arrival gamma"
    if load.arrival_speed is not None and (drawn or _closed(load)):
        what = "the rate says" if drawn else "a closed loop says by itself"
        yield f"--arrival-speed is for arrivals at recorded times; {what} when sessions start"
    if load.stages is not None:
        stages = parse_stages(load.stages)
        if not drawn and any(stage.start % 1 or stage.end % 1 for stage in stages):
            yield (
                f"--stages {load.stages}: sessions at a time are whole numbers; sessions a second need"
                " --arrival constant, poisson or gamma"
            )


def _parts(load: LoadOptions) -> Iterator[str]:
    """How much is played, and of what."""
    if load.max_duration_s is not None and load.warmup_s >= load.max_duration_s:
        yield (
            f"--warmup {load.warmup_s:g} is no shorter than --duration {load.max_duration_s:g}: nothing would"
            " be left to report"
        )
    start = load.start_turn
    if start != "random" and not (start.isascii() and start.isdigit() and len(start) <= 9):
        yield f"--start-turn {start!r}: must be a number of turns, 0 or more, or random"
    if load.salt is not None and not load.salt.isprintable():
        yield f"--salt {load.salt!r}: holds characters that are no text"


def _workers(options: ReplayOptions) -> Iterator[str]:
    count, load = options.workers, options.load
    if count < 1:
        yield f"--workers {count}: must be at least 1"
    if count <= 1:
        return
    if options.clock == "virtual":
        yield "--workers is for the wall clock; in virtual time nothing waits for a core"
    most = most_sessions(load)
    if most is not None and most < count:
        yield f"--workers {count}: {most} sessions at a time leave some of them without any"
    if load.max_requests is not None:
        yield (
            "--max-requests counts the turns of all workers, which none of them can: leave --workers out, or"
            " cap by --duration or --max-sessions"
        )


def most_sessions(load: LoadOptions) -> int | None:
    """The most sessions at a time of a closed loop; `None` for an open one."""
    if load.concurrency is not None or load.stages is None or load.arrival != "recorded":
        return load.concurrency
    return int(max(max(stage.start, stage.end) for stage in parse_stages(load.stages)))


def check_slots(options: ReplayOptions, tool_slots: int | None) -> None:
    """Raise `AgentloadError` if there are fewer slots for tools than workers, among whom they are divided.

    tool_slots: by the options or else by the deployment; `None` is without limit.
    """
    if tool_slots is not None and tool_slots < options.workers:
        raise AgentloadError(
            f"--workers {options.workers}: tools run in {counted(tool_slots, 'slot')}, too few to be divided"
            " among the workers; give fewer --workers, or --tool-slots 0 for any number"
        )


def slots_of(tool_slots: int | None, share: tuple[int, int]) -> int | None:
    """The part of the slots for tools that a worker has; see `part_of`."""
    return None if tool_slots is None else part_of(tool_slots, share)


def part_of(total: int, share: tuple[int, int]) -> int:
    """The part of worker k of n, for a share (k, n); the parts add up to the whole."""
    number, count = share
    return total // count + (number < total % count)


def worker_conditions(options: ReplayOptions, tool_slots: int | None) -> tuple[str, ...]:
    """What the numbers of a run of several workers hold for, a sentence each."""
    if options.workers <= 1 or tool_slots is None:
        return ()
    return (
        f"The slots for tools are divided among {options.workers} workers: a call may wait while another"
        " worker has a slot free.",
    )


def resolved_load(options: ReplayOptions) -> ReplayOptions:
    """The options with what is drawn once for a run: a random salt. To be called before they are recorded."""
    if options.load.salt != "random":
        return options
    return msgspec.structs.replace(options, load=msgspec.structs.replace(options.load, salt=token_hex(8)))


def pace_of(load: LoadOptions) -> Pace:
    """How fast tools and think time pass."""
    return Pace(
        tool_speed=load.speed if load.tool_speed is None else load.tool_speed,
        think_speed=load.speed if load.think_speed is None else load.think_speed,
        max_gap_ns=_gap_ns(load),
    )


def _gap_ns(load: LoadOptions) -> int | None:
    return None if load.max_gap_s is None else round(load.max_gap_s * _NS_PER_S)


def warmup_ns(load: LoadOptions) -> int:
    """Turns that are due before this time of the run are warm-up; see `planned_row`."""
    return round(load.warmup_s * _NS_PER_S)


def cap_of(load: LoadOptions, sent: int = 0) -> Cap:
    """The cap of a run. sent: turns that it had sent before it was resumed."""
    duration_s = load.max_duration_s
    return Cap(
        max_duration_ns=None if duration_s is None else round(duration_s * _NS_PER_S),
        max_requests=load.max_requests,
        sent=sent,
    )


def make_feed(
    sessions: Iterable[Session],
    options: ReplayOptions,
    *,
    clock_start_ns: int = 0,
    share: tuple[int, int] = (0, 1),
    done: Collection[str] = (),
    planned: Planned | None = None,
) -> SessionFeed:
    """When the sessions of a trace start, for options that `check_load` has let pass.

    sessions: the whole trace, also in a run that is resumed, for when a session starts depends on its place.
    clock_start_ns: where the clock of a resumed run goes on; what should have started by then starts then.
    share: (k, n) are the launches k, k + n, ... with their part of the concurrency.
    done: ids of sessions, repetitions included, that have been played.
    planned: counts what the run is to play.
    """
    load, seed = options.load, options.seed
    played = launches(sessions, load, seed, planned if planned is not None else Planned())
    stages = parse_stages(load.stages) if load.stages is not None else None
    if load.arrival != "recorded":
        rate: ConstantRate | StagedRate
        if stages is not None:
            rate = StagedRate(stages)
        else:
            assert load.rate_per_s is not None
            rate = ConstantRate(load.rate_per_s)
        positions = drawn_positions(load.arrival, load.burstiness, seed)
        drawn = at_drawn_times(played, positions, rate)
        return TimedLoop(mine(drawn, share, done), not_before_ns=clock_start_ns)
    if stages is not None:
        return ClosedLoop(mine(played, share, done), StagedLimit(stages, share))
    if load.concurrency is not None:
        places = part_of(load.concurrency, share)
        return ClosedLoop(mine(played, share, done), ConstantLimit(places))
    speed = load.speed if load.arrival_speed is None else load.arrival_speed
    recorded = at_recorded_times(played, speed, _gap_ns(load))
    return TimedLoop(mine(recorded, share, done), not_before_ns=clock_start_ns)
