"""The summary in words, the same for the terminal and the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentload_analysis._client_words import NOT_VALID, client_lines, validity_lines
from agentload_analysis._load_words import loop, pace, shown_options, warmup
from agentload_analysis._numbers import duration, number, tokens
from agentload_analysis._summary import Summary
from agentload_traces import counted

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

BASIS_TITLE = "What these numbers rest on"

_OF_A_NUMBER = re.compile(r"\A[^=]+ = \S.* is (fitted|an estimate)\b|\AAlso estimates: ")
"""How the simulator's sentences about its fitted and estimated numbers look."""

_INCOMPLETE = "INCOMPLETE"
_FAILED = " failed, "
_LOST = " skipped: unusable."


def headline(summary: Summary) -> list[str]:
    """What the run showed, a sentence or two each: validity, state, size, times, speed, failures, the client,
    what is unknown."""
    size = [_state(summary), _lost_lines(summary), _size(summary), _asked(summary), pace(summary)]
    times = [_session_time(summary), _parts(summary), _tool_queue(summary), _speed(summary)]
    moved = [_handed_over(summary), _compactions(summary)]
    told = [
        *size,
        *times,
        *moved,
        _failures(summary),
        warmup(summary),
        *client_lines(summary),
        _unknown(summary),
    ]
    return [*validity_lines(summary), *(line for line in told if line)]


def alarming(line: str) -> bool:
    """Whether a line of the headline must not be overlooked: something is missing, or turns failed."""
    return line.startswith((NOT_VALID, _INCOMPLETE)) or _FAILED in line or line.endswith(_LOST)


def conditions(summary: Summary) -> list[str]:
    """What the headline holds for: deployment, clock, trace, loop, options; then what the simulation is."""
    clock = "virtual time (simulated)" if summary["clock"] == "virtual" else "wall clock"
    trace = Path(summary["trace"])
    trace_name = trace.name if trace.is_absolute() else summary["trace"]
    facts = [f"{summary['target']} (mode {summary['mode']})", clock, f"trace {trace_name}"]
    if "concurrency" in summary["options"]:
        facts.append(loop(summary))
    facts += shown_options(summary["options"])
    resting = basis(summary)
    others = [sentence for sentence in summary["conditions"] if sentence not in resting]
    lines = ["; ".join([*facts, f"seed {summary['seed']}"]), *others]
    if resting:
        count = counted(len(resting), "sentence")
        lines.append(f'Fitted and estimated: {count} below the tables, "{BASIS_TITLE}".')
    return lines


def basis(summary: Summary) -> list[str]:
    """Those of the run's conditions that are about fitted and estimated numbers, one sentence each."""
    return [sentence for sentence in summary["conditions"] if _OF_A_NUMBER.search(sentence)]


def notes(summary: Summary) -> list[str]:
    """How to read the numbers of this run."""
    lines = [
        "answered: turns answered whole, the only ones in the latencies. TTFT counts from when they were due."
    ]
    if summary["answered"]:
        lines.append("Contexts are input tokens, K = 1,000: 8K-16K holds prompts of 8,000 to 15,999 tokens.")
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
    if summary["output_tokens_per_s_per_user"]["count"]:
        lines.append(
            "Tokens/s: p90 and p99 are the fast end; the slow end is in the headline, in --json and in --csv."
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


def _lost_lines(summary: Summary) -> str | None:
    lost, read = summary["trace_lines_skipped"], summary["trace_lines_read"]
    if not lost:
        return None
    lines = f"{lost:,} of {counted(read, 'line')}" if read else counted(lost, "line")
    return f"{lines} of the trace {'was' if lost == 1 else 'were'}{_LOST}"


def _asked(summary: Summary) -> str | None:
    """Answers that are shorter or longer than the trace has them."""
    received, asked = summary["output_tokens_total"], summary["output_tokens_asked_total"]
    if asked is None or received == asked:
        return None
    if received < asked:
        return f"Answers shorter than the trace's: received {received:,} of {asked:,} tokens asked for."
    return f"Answers longer than the trace's: received {received:,} tokens, {asked:,} were asked for."


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


def _tool_queue(summary: Summary) -> str | None:
    wait_ms = summary["tool_queue_ms"]
    if not wait_ms["count"]:
        return None
    return (
        f"Tools waited for a slot: {wait_ms['count']:,} of {counted(summary['tool_calls'], 'call')},"
        f" those {duration(wait_ms['p50'] / 1e3)} at the median and {duration(wait_ms['p99'] / 1e3)} at p99,"
        f" {summary['tool_queue_share']:.1%} of the time of all calls."
    )


def _handed_over(summary: Summary) -> str | None:
    """How much of the prompts crossed to the decode side; what of it was not new crossed once more."""
    handed, all_tokens = summary["handoff_tokens_total"], summary["input_tokens_total"]
    if not handed:
        return None
    return f"KV handed over: {handed:,} of {all_tokens:,} input tokens ({handed / all_tokens:.1%})."


def _compactions(summary: Summary) -> str | None:
    if summary["options"].get("on_overflow") != "compact" or not summary["compactions"]:
        return None
    turns = counted(summary["compactions"], "turn")
    return f"Contexts were compacted in {turns}, by --on-overflow compact or as recorded."


def _failures(summary: Summary) -> str | None:
    if not summary["failed"] and not summary["skipped"]:
        return None
    broken = sum(row["failed"] + row["skipped"] > 0 for row in summary["per_session"])
    line = (
        f"{counted(summary['failed'], 'turn')}{_FAILED}{summary['skipped']:,} not sent, "
        f"in {counted(broken, 'session')} that the session times leave out."
    )
    for title, why in (("Errors", summary["errors"]), ("Not sent", summary["not_sent"])):
        if why:
            line += f" {title}: {'; '.join(map(_reason, why))}."
    return line


def _reason(reason: dict[str, Any]) -> str:
    numbers = ", with other numbers too" if reason["texts"] > 1 else ""
    return f"{reason['error']} ({reason['turns']:,}x{numbers})"


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
