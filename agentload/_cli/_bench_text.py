"""What `agentload bench` prints: a table, what the figures hold for, definitions side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agentload_traces import counted, printable

if TYPE_CHECKING:
    from rich.console import Console

    from agentload._bench import BenchResult, CaseResult
    from agentload._bench_figures import Spread
    from agentload._bench_words import Published

_TITLES = {
    "aa": "Output speed as Artificial Analysis measured it on LPX",
    "coding": "Output speed per user in the manner of SPEED-Bench coding",
}


def render_bench(result: BenchResult, console: Console) -> None:
    """Print a result."""
    from rich.text import Text

    def say(line: str, style: str | None = None) -> None:
        console.print(Text(printable(line)), style=style)

    what = result.target if result.model is None else f"{result.model} at {result.target}"
    say(f"{_TITLES[result.benchmark]}: {what}, {result.clock} clock", "bold")
    say(f"{counted(result.requests, 'request')} for each length, concurrency 1, o200k_base tokens")
    say("")
    console.print(_table(result))
    say("")
    say(
        "tokens/s, TTFT and whole answer: medians; P5-P95: of requests; in brackets: where the figure lies"
        " for endlessly many requests, with 95 % confidence"
    )
    sources: dict[str, int] = {}

    def cited(source: str) -> str:
        return f"[{sources.setdefault(source, len(sources) + 1)}]"

    for note in (*_published(result, cited), *_notes(result)):
        say(note)
    say("")
    say("Conditions", "bold")
    for line in (*result.conditions, *_baseline(result)):
        say(f"  - {line}")
    say("")
    say("Theirs and here", "bold")
    for each in result.compared:
        say(f"  - {each.what}: theirs: {each.theirs} {cited(each.source)}. Here: {each.here}.")
    for source, number in sources.items():
        # A line that is broken is no address any more.
        console.print(Text(f"  [{number}] {source}"), soft_wrap=True)


def _table(result: BenchResult) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    coding = result.benchmark == "coding"
    for column in (
        *("in", "out", "answered", "tokens/s", *(["P80"] if coding else []), "P5-P95"),
        *("TTFT ms", "P5-P95", "whole s", "published"),
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for case in result.cases:
        figures = case.figures
        if figures is None:
            continue
        speed, ttft, whole = figures.speed_tokens_per_s, figures.ttft_ms, figures.end_to_end_s
        p80 = [] if not coding else [_with_interval(speed, 0.8)]
        table.add_row(
            case.name,
            f"{case.output_tokens:,}",
            f"{figures.answered}/{figures.requests}",
            _with_interval(speed, 0.5),
            *p80,
            _range(speed, ",.0f"),
            _value(ttft, ",.1f"),
            _range(ttft, ",.1f"),
            _value(whole, ",.3f"),
            " ".join(_shown(each) for each in case.published) or "-",
        )
    return table


def _with_interval(spread: Spread | None, quantile: float) -> str:
    if spread is None:
        return "-"
    value, low, high = (
        (spread.median, spread.median_low, spread.median_high)
        if quantile == 0.5
        else (spread.p80, spread.p80_low, spread.p80_high)
    )
    if low is None or high is None:
        return f"{value:,.0f}"
    return f"{value:,.0f} ({low:,.0f}-{high:,.0f})"


def _value(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else format(spread.median, form)


def _range(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else f"{spread.p5:{form}}-{spread.p95:{form}}"


def _shown(each: Published) -> str:
    return f"{each.tokens_per_s:,.0f}" if each.quantile == 0.5 else f"P80 {each.tokens_per_s:,.0f}"


def _published(result: BenchResult, cited: Callable[[str], str]) -> Iterator[str]:
    kinds = {(each.by, each.kind, each.source) for case in result.cases for each in case.published}
    for by, kind, source in sorted(kinds):
        how = (
            "the simulator was fitted to it, so that it proves nothing"
            if kind == "fitted"
            else "the simulator was not fitted to it"
        )
        yield f"published: {by}, of the hardware that {result.target} simulates {cited(source)}; {how}"


def _baseline(result: BenchResult) -> Iterator[str]:
    if (own := result.baseline) is not None:
        yield (
            f"This machine's own error, measured before, at the 99th percentile: TTFT"
            f" {own.ttft.p99_ns / 1e6:,.2f} ms, gaps between tokens {own.gap.p99_ns / 1e3:,.0f} us, at a"
            f" token each {own.step_ns / 1e3:,.0f} us."
        )


def _notes(result: BenchResult) -> Iterator[str]:
    """What a reader of the table must know of single cases."""
    for case in result.cases:
        figures = case.figures
        if figures is None:
            continue
        if figures.shorter:
            got = f"{figures.output_tokens:,.0f}" if figures.output_tokens is not None else "none"
            yield (
                f"{case.name}: {figures.shorter} of {figures.answered} answers have fewer than the"
                f" {case.output_tokens:,} tokens asked for; the median has {got}"
            )
        if figures.cached:
            yield (
                f"{case.name}: of {counted(figures.cached, 'prompt')} the endpoint had something in its"
                " cache, by its own count, so their TTFT is too good"
            )
        ratio = figures.reported_per_counted
        if ratio is not None and abs(ratio - 1) > 0.005:
            yield f"{case.name}: the endpoint counts {ratio:.3f} output tokens for each one of o200k_base"
        yield from _validity(case)


def _validity(case: CaseResult) -> Iterator[str]:
    if case.valid is False:
        for reason in case.invalid_reasons:
            yield f"{case.name}: not to be trusted: {reason}"
