"""The summary in words and its numbers as text, the same for the terminal and the page."""

from __future__ import annotations

from pathlib import Path

from agentload_analysis._metrics import K_TOKENS
from agentload_analysis._summary import Summary

PART_NAMES = {
    "queue": "queue",
    "prefill": "prefill",
    "handoff": "hand-off",
    "first_token_wait": "first-token wait",
    "decode": "decode",
    "tool": "tools",
    "think": "think",
    "client": "network + client",
}

_VALUES_NEEDED = {"p90": 10, "p99": 100}
"""A percentile stands on at least one value beyond it only from this count on."""

UNKNOWN = "–"
BASIS_TITLE = "What these numbers rest on"

_READING_OPTIONS = frozenset(["trace_format", "strict", "arrivals"])
"""Options that say how a trace was read and what was recorded; no number of a report depends on them."""

_INCOMPLETE = "INCOMPLETE"
_FAILED = " failed, "


def duration(seconds: float | None) -> str:
    """A length of time with its unit: "812 ms", "12.3 s", "12 min 5 s", "3 h 20 min"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {rest} min"


def number(value: float | None) -> str:
    """A number to three or four significant figures, thousands separated."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3f}"


def tokens(count: float | None) -> str:
    """A context length: "812", "95K" (K = 1024)."""
    if count is None:
        return UNKNOWN
    return f"{count:,.0f}" if count < K_TOKENS else f"{number(count / K_TOKENS)}K"


def percentile(value: float | None, name: str, count: int) -> str:
    """A percentile; "~" stands before one that `count` values cannot carry."""
    mark = "~" if value is not None and count < _VALUES_NEEDED.get(name, 1) else ""
    return mark + number(value)


def counted(count: int, thing: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def headline(summary: Summary) -> list[str]:
    """What the run showed, a sentence or two each: state, size, times, speed, failures, what is unknown."""
    lines = [_state(summary), _size(summary), _session_time(summary), _parts(summary), _speed(summary)]
    return [line for line in [*lines, _failures(summary), _unknown(summary)] if line]


def alarming(line: str) -> bool:
    """Whether a line of the headline must not be overlooked: rows are missing, or turns failed."""
    return line.startswith(_INCOMPLETE) or _FAILED in line


def conditions(summary: Summary) -> list[str]:
    """What the headline holds for: deployment, clock, trace, loop, options; then what the simulation is."""
    clock = "virtual time (simulated)" if summary["clock"] == "virtual" else "wall clock"
    trace = Path(summary["trace"])
    trace_name = trace.name if trace.is_absolute() else summary["trace"]
    facts = [f"{summary['target']} (mode {summary['mode']})", clock, f"trace {trace_name}"]
    options = dict(summary["options"])
    if "concurrency" in options:
        facts.append(_loop(options.pop("concurrency")))
    facts += [
        f"{name.replace('_', ' ')} {value}"
        for name, value in options.items()
        if value is not None and name not in _READING_OPTIONS
    ]
    lines = ["; ".join([*facts, f"seed {summary['seed']}"]), *summary["conditions"][:1]]
    resting = len(basis(summary))
    if resting:
        lines.append(f'Fitted and estimated: {counted(resting, "line")} below the tables, "{BASIS_TITLE}".')
    return lines


def basis(summary: Summary) -> list[str]:
    """The run's conditions after the first: its fitted and estimated numbers, one sentence each."""
    return list(summary["conditions"][1:])


def notes(summary: Summary) -> list[str]:
    """How to read the numbers of this run."""
    lines = ["Only answered turns are in the latencies; TTFT counts from the time at which a turn was due."]
    if summary["sessions_cut_off"]:
        lines.append(
            'A session whose turns read "n of m" was cut off: its time ends with its last answered turn, and'
            " it is in no sum and no session time."
        )
    if summary["answered"]:
        lines.append(
            "TPOT and speed count the tokens after the first arrival, one value an answer, long or short:"
            " those of answers with few decode steps scatter."
        )
    if summary["answered_without_tpot"]:
        lines.append(
            f"{counted(summary['answered_without_tpot'], 'answer')} came whole in one arrival (or empty) and"
            " so without TPOT or speed."
        )
    if summary["itl_source"] == "tpot" and summary["itl_ms"]["count"]:
        lines.append("Token arrivals were not recorded: ITL here is TPOT, one mean gap a turn.")
    if not summary["queue_ms"]["count"] and summary["answered"]:
        lines.append(
            "The endpoint does not tell queue, prefill and hand-off apart: first-token wait is their sum."
        )
    lines.append("~ too few values for this percentile: p90 needs 10, p99 needs 100.")
    return lines


def _loop(concurrency: int | None) -> str:
    if concurrency is None:
        return "open loop at recorded starts"
    return f"closed loop, {counted(concurrency, 'session')} at a time"


def _state(summary: Summary) -> str | None:
    if not summary["incomplete"]:
        return None
    why = {
        "interrupted": "the run was cut short",
        "running": "the run was cut short or still goes on",
    }.get(summary["status"], "the run was not finished")
    planned = summary["turns_planned"]
    have = (
        f"{summary['turns']:,} of {planned:,} planned turns" if planned else counted(summary["turns"], "turn")
    )
    line = f"{_INCOMPLETE}: {why}; it holds {have}."
    if summary["sessions_cut_off"]:
        cut_off = counted(summary["sessions_cut_off"], "session")
        line += f" Not played to the end, and so not in the session times: {cut_off}."
    if summary["torn_lines"]:
        line += f" Not in it: {counted(summary['torn_lines'], 'line')} of its files, cut off or damaged."
    unknown = sum(row["session_turns"] is None for row in summary["per_session"])
    if unknown:
        line += f" Of {counted(unknown, 'session')} it is unknown whether they were cut off; they count."
    return line


def _size(summary: Summary) -> str:
    where = f"on {summary['target']}"
    clock = "in virtual time" if summary["clock"] == "virtual" else "on the wall clock"
    size = f"{counted(summary['sessions'], 'session')}, {counted(summary['turns'], 'turn')}"
    if summary["subagent_turns"]:
        size += f" ({summary['subagent_turns']:,} by sub-agents)"
    return f"{size}, {summary['output_tokens_total']:,} output tokens {where}, {clock}."


def _session_time(summary: Summary) -> str | None:
    time_s = summary["session_time_s"]
    if not time_s["count"]:
        return "No session was answered whole, so there is no session time." if summary["sessions"] else None
    if time_s["count"] == 1:
        which = "The session" if summary["sessions"] == 1 else "The one session answered whole"
        return f"{which} took {duration(time_s['max'])}."
    return (
        f"A session took {duration(time_s['p50'])} at the median, {duration(time_s['p90'])} at p90, "
        f"{duration(time_s['max'])} at the most ({counted(time_s['count'], 'session')})."
    )


def _parts(summary: Summary) -> str | None:
    shares = {part: values["share"] for part, values in summary["session_split_s"].items()}
    large = sorted((-share, PART_NAMES[part]) for part, share in shares.items() if share and share >= 0.0005)
    if not large:
        return None
    return "Where it went: " + ", ".join(f"{name} {-share:.1%}" for share, name in large) + "."


def _speed(summary: Summary) -> str | None:
    speed, ttft = summary["output_tokens_per_s_per_user"], summary["ttft_ms"]
    contexts = (
        f"contexts of {tokens(summary['input_tokens_min'])} to {tokens(summary['input_tokens_max'])} tokens "
        f"(median {tokens(summary['input_tokens_p50'])})."
    )
    sentences = []
    if speed["count"]:
        sentences.append(
            f"Output speed per user {number(speed['p50'])} tokens/s at the median "
            f"(slowest tenth below {number(speed['p10'])}), {contexts}"
        )
    elif summary["answered"]:
        sentences.append(
            f"Output speed per user unknown, for no token came after a first arrival; {contexts}"
        )
    if ttft["count"]:
        sentences.append(
            f"TTFT {duration(ttft['p50'] / 1e3)} at the median, {duration(ttft['max'] / 1e3)} at the most."
        )
    return " ".join(sentences) or None


def _failures(summary: Summary) -> str | None:
    if not summary["failed"] and not summary["skipped"]:
        return None
    broken = sum(row["failed"] + row["skipped"] > 0 for row in summary["per_session"])
    line = (
        f"{counted(summary['failed'], 'turn')}{_FAILED}{summary['skipped']:,} skipped after a failure, "
        f"in {counted(broken, 'session')} that the session times leave out."
    )
    errors = "; ".join(f"{error['error']} ({error['turns']:,}x)" for error in summary["errors"])
    return f"{line} Errors: {errors}." if errors else line


def _unknown(summary: Summary) -> str | None:
    """What a number of a foreign endpoint holds for and nobody here can know."""
    if summary["mode"] != "endpoint":
        return None
    unknown = ["the endpoint's hardware, batch size and other load"]
    if not summary["queue_ms"]["count"]:
        unknown.append("queue, prefill and hand-off apart from each other")
    if summary["cached_tokens_total"] is None:
        unknown.append("how much of the prompts came from its prefix cache")
    return f"Unknown: {'; '.join(unknown)}."
