"""A run's load and its other options, in words."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from agentload_analysis._summary import Summary
from agentload_traces import counted

_FIRST = ("speed", "on_overflow")
"""Options that every report shows, in this order."""

_NOT_SHOWN = frozenset(
    [
        *("trace_format", "strict", "arrivals"),
        *("concurrency", "arrival", "rate_per_s", "burstiness", "stages"),
        *("baseline", "key_env", "secrets", "laws_sha256"),
    ]
)
"""Options that say how a trace was read and what was recorded, on which no number of a report depends, those
that the words about the loop hold, and where a key is."""

_USUAL: dict[str, object] = {
    "warmup_s": 0.0,
    "start_turn": "0",
    "repeat": 1,
    "workers": 1,
    "api": "chat",
    "history": "recorded",
    "tokens": "o200k",
    "force_output": False,
    "more_urls": (),
    "balance": "session",
    "insecure": False,
    "connect_timeout_s": 30.0,
    "stall_timeout_s": 600.0,
    "retries": 0,
    "on_failure": "end",
    "tools": "recorded",
    "tool_timeout_s": 600.0,
}
"""Options that are shown only where they are not as usual."""


def shown_options(options: dict[str, Any]) -> list[str]:
    """The options that a report's numbers hang on, each with its unit, but for those of the loop."""
    names = [name for name in _FIRST if name in options]
    names += [name for name in options if name not in _FIRST]
    return [_shown(name, options[name]) for name in names if _matters(name, options)]


def _matters(name: str, options: dict[str, Any]) -> bool:
    value = options[name]
    if value is None or name in _NOT_SHOWN or (name.startswith("retry_") and not options.get("retries")):
        return False
    # A list is what a tuple became in the manifest.
    usual = _USUAL.get(name)
    return usual is None or (tuple(value) if isinstance(value, list) else value) != usual


def _shown(name: str, value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}"
    return f"{name.removesuffix('_s').replace('_', ' ')} {text}{' s' if name.endswith('_s') else ''}"


def loop(summary: Summary) -> str:
    """When sessions start: closed loop, or open loop by which law."""
    options = summary["options"]
    concurrency, arrival = options.get("concurrency"), options.get("arrival") or "recorded"
    stages = options.get("stages")
    if concurrency is not None:
        return f"closed loop, {counted(concurrency, 'session')} at a time"
    if stages is not None and arrival == "recorded":
        return f"closed loop, sessions at a time by stages: {stages}"
    most = summary["sessions_at_once_max"]
    at_once = f", at most {most:,} at once" if summary["sessions"] > 1 and most is not None else ""
    if arrival != "recorded":
        burstiness = options.get("burstiness")
        law = {"constant": "evenly", "poisson": "as a Poisson process"}.get(
            arrival, f"by a {arrival} law of burstiness {burstiness}"
        )
        rate = f"by stages: {stages}" if stages is not None else f"at {options.get('rate_per_s'):g} a second"
        return f"open loop: sessions start {law}, {rate}{at_once}"
    if summary["sessions"] > 1 and summary["session_start_times"] == 1:
        return "open loop: start times unknown or equal: all at once"
    return f"open loop: sessions start as recorded{at_once}"


def pace(summary: Summary) -> str | None:
    """How much faster than recorded things passed, `None` if they did not."""
    options = summary["options"]
    speed = options.get("speed")
    if speed is None:
        return None
    kinds = ["tool", "think"]
    if not options.get("concurrency") and not options.get("stages"):
        kinds += ["arrival"] if (options.get("arrival") or "recorded") == "recorded" else []
    speeds = [(options.get(f"{kind}_speed") or speed, kind) for kind in kinds]
    parts = [
        _passed([kind for _, kind in group], each)
        for each, group in groupby(sorted(speeds, key=lambda each: -each[0]), key=lambda each: each[0])
        if each != 1
    ]
    return " ".join(parts) or None


def _passed(kinds: list[str], speed: float) -> str:
    names = [{"tool": "tools", "think": "think time", "arrival": "arrivals"}[kind] for kind in kinds]
    what = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    what = f"{what[0].upper()}{what[1:]}"
    if speed > 1:
        return f"{what} passed {speed:,.12g} times faster than recorded."
    return f"{what} passed at {speed:.12g} times the recorded speed."


def warmup(summary: Summary) -> str | None:
    """What the figures leave out of the run's beginning, `None` if nothing."""
    turns = summary["warmup_turns"]
    if not turns:
        return None
    first_s = summary["options"].get("warmup_s")
    first = f" (the first {first_s:g} s)" if isinstance(first_s, int | float) and first_s else ""
    return (
        f"{counted(turns, 'turn')} of the warm-up{first}: counted, and in session times and sums of tokens,"
        " but in no latency and no speed."
    )
