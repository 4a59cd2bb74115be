"""What the summary says of the client, in words: whether the figures are the endpoint's, and why not."""

from __future__ import annotations

from typing import Any

from agentload_analysis._numbers import duration, number
from agentload_analysis._percentiles import VALUES_NEEDED
from agentload_analysis._summary import Summary
from agentload_traces import counted

NOT_VALID = "NOT VALID"

_SAME = 0.0005
"""Token counts whose ratio is this close to 1 are called the same."""

_MISMATCH = 0.02

_NOTICEABLE_MS = 1.0
_NOTICEABLE_SHARE = 0.05


def validity_lines(summary: Summary) -> list[str]:
    """Whether the client kept up with the endpoint; nothing of virtual time, which has no client."""
    if summary["clock"] != "wall":
        return []
    if summary["valid"] is None:
        if summary["incomplete"]:
            return []
        why = " ".join(summary["invalid_reasons"])
        return [f"Not judged: {why or 'whether the client kept up with the endpoint is not recorded.'}"]
    if summary["valid"]:
        return ["Valid: the client kept up with the endpoint."]
    return [f"{NOT_VALID}: {reason}" for reason in summary["invalid_reasons"]] or [f"{NOT_VALID}."]


def client_lines(summary: Summary) -> list[str]:
    """The machine's own error, lateness, attempts and token counts, a line each."""
    if summary["clock"] != "wall":
        return []
    lines = [_own_error(summary), _lateness(summary), _service(summary), _load(summary)]
    lines += [_retries(summary), _failed_kinds(summary), _tokens(summary)]
    return [line for line in lines if line]


def _own_error(summary: Summary) -> str | None:
    baseline = summary["baseline"]
    if baseline is None:
        return None
    ttft, gap = (baseline[name]["p99_ns"] / 1e9 for name in ("ttft", "gap"))
    per_s = f"{1e9 / baseline['step_ns']:,.0f} tokens/s"
    streams = counted(baseline["streams"], "stream")
    line = f"Own error of this machine before the run: TTFT ±{duration(ttft)}, gaps ±{duration(gap)} (p99)"
    line += f" at {streams} of {per_s}, {number(baseline['cpu_us_per_token'])} us of CPU a token"
    trusted = baseline["trusted_streams"]
    if trusted is None:
        line += "; not small even with one"
    elif trusted < baseline["streams"]:
        line += f"; small up to {trusted:,} of them"
    if baseline["lost_tokens"]:
        line += f"; it lost {counted(baseline['lost_tokens'], 'token')}"
    return f"{line}."


def _lateness(summary: Summary) -> str | None:
    late = summary["send_late_ms"]
    if not late["count"]:
        return None
    return f"Turns were sent late by {_middle_and_end(late)}."


def _service(summary: Summary) -> str | None:
    """TTFT from when turns were sent, if it is noticeably less than from when they were due."""
    due, sent = summary["ttft_ms"], summary["ttft_from_sent_ms"]
    if not sent["count"]:
        return None
    noticeable = any(
        due[name] - sent[name] > max(_NOTICEABLE_MS, _NOTICEABLE_SHARE * due[name]) for name in ("p50", "p99")
    )
    if not noticeable:
        return None
    return (
        f"From when turns were sent, TTFT was {_middle_and_end(sent)}: the rest of it is the wait until they"
        " were sent."
    )


def _load(summary: Summary) -> str | None:
    client = summary["client"]
    if client is None:
        return None
    lag, cpu = client["loop_lag_ms"], client["cpu_share"]
    return (
        f"The client: at most {counted(client['active_turns_max'], 'turn')} on their way at once in a"
        f" process; event loop late by {_middle_and_end(lag)} (the worst of each 0.1 s);"
        f" {cpu['p50']:.0%} of a core at the median, {cpu['max']:.0%} at the most."
    )


def _middle_and_end(values: dict[str, Any]) -> str:
    """The median, and p99 if there are values enough for one."""
    name, words = ("p99", "at p99") if values["count"] >= VALUES_NEEDED["p99"] else ("max", "at the most")
    return f"{duration(values['p50'] / 1e3)} at the median, {duration(values[name] / 1e3)} {words}"


def _retries(summary: Summary) -> str | None:
    if not summary["retried"]:
        return None
    kinds = _kinds(summary["retried_by_kind"], "attempts")
    return f"{counted(summary['retried'], 'attempt')} failed and another followed, no turns here: {kinds}."


def _failed_kinds(summary: Summary) -> str | None:
    if not any(row["kind"] for row in summary["failed_by_kind"]):
        return None
    return f"Kinds of failed turns: {_kinds(summary['failed_by_kind'], 'turns')}."


def _kinds(rows: list[dict[str, Any]], count: str) -> str:
    return ", ".join(f"{row['kind'] or 'kind not recorded'} {row[count]:,}" for row in rows)


def _tokens(summary: Summary) -> str | None:
    """The endpoint's own counts beside o200k_base."""
    told = {what: row for what, row in summary["token_counts"].items() if row["ratio"] is not None}
    if not told:
        return None
    ratios = [row["ratio"] for row in told.values()]
    if all(abs(ratio - 1) < _SAME for ratio in ratios):
        return f"The endpoint counts tokens as o200k_base does, of {' and '.join(map(_whose, told))}."
    parts = ", ".join(
        f"{_ratio(row['ratio'])} tokens per o200k token of {_whose(what)}"
        f" ({row['reported']:,} for {row['o200k']:,})"
        for what, row in told.items()
    )
    mismatch = any(abs(ratio - 1) > _MISMATCH for ratio in ratios)
    line = f"{'Token-count mismatch: t' if mismatch else 'T'}he endpoint counts {parts}."
    most = max(row["answers"] for row in told.values())
    if most < summary["answered"]:
        line += f" Only {most:,} of {counted(summary['answered'], 'answer')} told it."
    if mismatch:
        line += " Lengths and speeds here are in o200k tokens."
    return line


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if abs(ratio - 1) >= 0.01 else f"{ratio:.3f}"


def _whose(what: str) -> str:
    return {"prompt": "prompt", "output": "answer"}[what]
