"""`agentload baseline`: what this machine's own error is, without any endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentload._cli._console import echo_json
from agentload._cli._values import NumberRange

if TYPE_CHECKING:
    from agentload_traces import Baseline, ErrorFigures

_PROMPT_BYTES = 16_384  # about 4K tokens


@click.command(short_help="Measure this machine's own error, without an endpoint.")
@click.option(
    "--streams",
    type=click.IntRange(1, 1_000),
    default=12,
    show_default=True,
    help="Answers that are streamed at a time.",
)
@click.option(
    "--step-us",
    type=NumberRange(min=20, max=1e6),
    default=291.0,
    show_default=True,
    help="Time from one token of a stream to the next, in microseconds.",
)
@click.option(
    "--tokens", type=click.IntRange(2, 100_000), default=300, show_default=True, help="Tokens of an answer."
)
@click.option(
    "--seconds",
    type=NumberRange(min=0.2, max=600),
    default=2.0,
    show_default=True,
    help="How long to measure; a second or two more if that is too much for the machine.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(streams: int, step_us: float, tokens: int, seconds: float, as_json: bool) -> int:
    """Measure how wrong this machine's own measurements are.

    Replays answers from a server that does nothing but keep time, in a process of its own, and compares what
    the client saw with what the server did: the time to first token from when each request was due, every
    gap between two tokens, tokens lost. Nothing leaves the machine. Exit code 1 says that the errors are too
    large with so many streams. What else runs on the machine counts, so measure as you will run.

    \b
    Example:
      agentload baseline
      agentload baseline --streams 100 --step-us 291
      agentload baseline --streams 8 --step-us 20000 --json
    """
    from agentload._baseline import LEAST_TOKENS, measure_baseline

    if LEAST_TOKENS * step_us * 1e-6 > seconds:
        raise click.UsageError(
            f"--seconds {seconds:g} is too short for answers of {LEAST_TOKENS} tokens, {step_us:g} us each"
        )
    baseline = measure_baseline(streams, tokens, _PROMPT_BYTES, round(step_us * 1e3), seconds)
    if as_json:
        echo_json(baseline)
    else:
        for line in _lines(baseline):
            click.echo(line)
    return 0 if baseline.trusted_streams == streams else 1


def _lines(baseline: Baseline) -> list[str]:
    from agentload._baseline_figures import verdict
    from agentload_traces import counted

    per_s = f"{1e9 / baseline.step_ns:,.0f} tokens/s"
    return [
        f"{counted(baseline.streams, 'stream')} at {per_s} each, answers of {baseline.tokens:,} tokens",
        f"  TTFT too long by          {_spread(baseline.ttft)} of {counted(baseline.ttft.count, 'answer')}",
        f"  of that, sent late by     {_spread(baseline.send_late)}",
        f"  gaps of tokens wrong by   {_spread(baseline.gap)} of {counted(baseline.gap.count, 'gap')}",
        f"  tokens lost               {baseline.lost_tokens:,}",
        f"  CPU of the client         {baseline.cpu_us_per_token:.1f} us a token",
        verdict(baseline),
    ]


def _spread(errors: ErrorFigures) -> str:
    return (
        f"{errors.p50_ns / 1e6:.3f} ms at the median, {errors.p99_ns / 1e6:.3f} at p99,"
        f" {errors.max_ns / 1e6:.3f} at the most"
    )
