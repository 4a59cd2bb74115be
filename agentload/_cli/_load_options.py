"""Options of the load: when sessions start, how fast they pass, and how much of them is played."""

from __future__ import annotations

import click

from agentload._cli._option_groups import named, option_group
from agentload._cli._values import COUNT, NumberRange

_SPEED = NumberRange(min=0.01, max=1e6)
_SECONDS = NumberRange(min=0, max=86_400 * 365)

LOAD = option_group(
    "Load",
    named(
        "--concurrency",
        type=click.IntRange(min=1, max=1_000_000),
        help="Closed loop: this many sessions at a time. Without it, open loop: sessions start by --arrival.",
    ),
    named(
        "--arrival",
        type=click.Choice(["recorded", "constant", "poisson", "gamma"]),
        default="recorded",
        show_default=True,
        help="Open loop: sessions start at their recorded times, or as drawn at --rate. The turns of a"
        " session always wait for what they waited for.",
    ),
    named(
        "--rate",
        "rate_per_s",
        type=NumberRange(min=1e-6, max=1e6),
        metavar="PER_S",
        help="Sessions that start a second, with --arrival constant, poisson or gamma.",
    ),
    named(
        "--burstiness",
        type=NumberRange(min=0.01, max=100),
        default=1.0,
        show_default=True,
        help="Shape of the gamma law of --arrival gamma: 1 is Poisson, less is burstier, more is evener.",
    ),
    named(
        "--stages",
        metavar="STAGES",
        help="Load that changes: 4x60s,4-16x2m,16x5m is 4 sessions at a time for a minute, a ramp from 4 to"
        " 16, then 16. With --arrival constant, poisson or gamma they are sessions a second. After the last"
        " stage no session starts; those that are active are finished.",
    ),
    named(
        "--warmup",
        "warmup_s",
        type=_SECONDS,
        default=0.0,
        metavar="SECONDS",
        help="Turns due in the run's first seconds are played, but left out of latencies and speeds.",
    ),
    named(
        "--duration",
        "max_duration_s",
        type=NumberRange(min=0.001, max=86_400 * 365),
        metavar="SECONDS",
        help="Send no turn that is due after this time of the run; those on their way are finished. A trace"
        " that ends before ends the run; --repeat plays it again.",
    ),
    named("--max-requests", type=COUNT, help="Send so many turns in all, retries apart."),
    named(
        "--max-sessions",
        type=click.IntRange(min=1),
        help="Play only so many sessions, the first of the trace; repetitions count.",
    ),
    named(
        "--max-turns",
        type=click.IntRange(min=1),
        help="Play only so many turns of a session, from its first or from --start-turn.",
    ),
    named(
        "--speed",
        type=_SPEED,
        default=1.0,
        show_default=True,
        help="How much faster than recorded arrivals, tools and think time pass. A --rate stays what it is.",
    ),
    named("--arrival-speed", type=_SPEED, help="The same for recorded arrivals, instead of --speed."),
    named("--tool-speed", type=_SPEED, help="The same for tools."),
    named("--think-speed", type=_SPEED, help="The same for think time."),
    named(
        "--max-gap",
        "max_gap_s",
        type=_SECONDS,
        metavar="SECONDS",
        help="Shorten think times, tool calls and gaps between recorded arrivals to this (before --speed).",
    ),
    named(
        "--start-turn",
        default="0",
        show_default=True,
        metavar="N|random",
        help="Begin sessions at a later turn (0 is the first), the history until then sent as prefix; random:"
        " drawn for each. A session that is shorter begins at its last turn.",
    ),
    named(
        "--repeat",
        type=COUNT,
        default=1,
        show_default=True,
        help="Play the trace so many times, each time with prefixes that no cache has seen; the second"
        ' session of ID is "ID#2".',
    ),
    named(
        "--salt",
        metavar="TEXT|random",
        help="Make all prompts differ from those of runs with another salt, so that no cache knows them.",
    ),
)
