"""The options that `sweep` and `size` share, and the values that they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentload._cli._values import SEED, NamedPath, NumberRange
from agentload_traces import printable

if TYPE_CHECKING:
    from agentload._sweep_points import Workload
    from agentload._sweep_slo import Slo

MODES = ("rubin", "lpx", "pd", "afd", "drafter")
_MOST_CONCURRENCY = 100_000
_MOST_TOKENS = 100_000_000
_SIZE = re.compile(r"([0-9]{1,12})(\.[0-9]{1,6})?([KM]?)", re.ASCII | re.IGNORECASE)


class Listed(click.ParamType[Any]):
    """Values separated by commas, each of them once."""

    def __init__(self, name: str, value_of: Callable[[str], Any]) -> None:
        self.name = name
        self._value_of = value_of

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        found = []
        for part in str(value).split(","):
            try:
                found.append(self._value_of(part.strip()))
            except ValueError as error:
                self.fail(f'"{part.strip()}" {error}', param, ctx)
        for item in found:
            if found.count(item) > 1:
                self.fail(f"{item} is given twice", param, ctx)
        return tuple(found)


def mode(text: str) -> str:
    """One of `MODES`; raises `ValueError`."""
    if text not in MODES:
        raise ValueError(f"is no mode; there are {', '.join(MODES)}")
    return text


def concurrency(text: str) -> int:
    """Sessions at a time; raises `ValueError`."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MOST_CONCURRENCY:
        raise ValueError(f"is no whole number from 1 to {_MOST_CONCURRENCY:,}")
    return int(text)


def context_tokens(text: str) -> int:
    """Tokens of a context such as "10K" (K = 1,000), "1.5M" or "8192"; raises `ValueError`."""
    match = _SIZE.fullmatch(text)
    count = 0.0
    if match is not None:
        factor = {"": 1, "K": 1_000, "M": 1_000_000}[match[3].upper()]
        count = int(match[1]) * factor + float(match[2] or 0) * factor
    if match is None or not 1 <= count <= _MOST_TOKENS or count != int(count):
        raise ValueError("is no number of tokens, such as 10K, 100K or 8192")
    return int(count)


def context_option(context: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback that reads the tokens of one context."""
    try:
        return None if value is None else context_tokens(value)
    except ValueError as error:
        raise click.BadParameter(f'"{value}" {error}', context, param) from None


def slo_option(context: click.Context, param: click.Parameter, value: str | None) -> Slo | None:
    """Callback that reads an SLO."""
    if value is None:
        return None
    from agentload._sweep_slo import parse_slo

    return parse_slo(value)


_WORKLOAD_OPTIONS = [
    click.option(
        "--trace",
        type=NamedPath(path_type=Path, exists=True, dir_okay=False),
        help="Play this trace's sessions, copied up to the concurrency, with tools and think time as"
        " recorded. Without it sessions are generated.",
    ),
    click.option("--format", "trace_format", help="The trace's format (default: recognised by its content)."),
    click.option(
        "--speed",
        type=NumberRange(min=0.01, max=1e6),
        help="How much faster than recorded a trace's tools and think time pass.  [default: 1]",
    ),
    click.option(
        "--turns",
        type=click.IntRange(1, 100_000),
        help="Turns of a session: the first of a recorded one (default: all), or those of a generated one"
        " (default: 10).",
    ),
    click.option(
        "--output-tokens",
        type=click.IntRange(1, 1_000_000),
        help="Tokens of each answer of a generated session.  [default: 400]",
    ),
    click.option(
        "--tool-time",
        "tool_s",
        type=NumberRange(min=0, max=86_400),
        metavar="SECONDS",
        help="Time of the tools of a generated turn; 0 sends turn after turn.  [default: 0.3]",
    ),
    click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of all draws."),
]

SLO_HELP = (
    "Limits, such as ttft=500ms,itl=5ms,session=30min. METRIC[.STATISTIC]=VALUE with ttft, tpot, itl, session"
    " (p99 unless .p50, .p90, .max; units us, ms, s, min, h) or speed=1000tok/s, a lower limit (p1 unless"
    " .p10, .p50, .min). What its count cannot carry is judged by the worst value; a turn without an answer"
    " breaks every SLO."
)


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is played."""
    for option in reversed(_WORKLOAD_OPTIONS):
        command = option(command)
    return command


def take_workload(values: dict[str, Any]) -> Workload:
    """Take the options of `workload_options`, but for the seed, out of `values`."""
    from agentload._sweep_points import Workload

    trace, trace_format = values.pop("trace"), values.pop("trace_format")
    speed = values.pop("speed")
    turns, output_tokens, tool_s = values.pop("turns"), values.pop("output_tokens"), values.pop("tool_s")
    if trace is None:
        for name, value in (("format", trace_format), ("speed", speed)):
            if value is not None:
                raise click.UsageError(f"--{name} is of a trace: give --trace too")
    if trace is not None:
        for name, value in (("output-tokens", output_tokens), ("tool-time", tool_s)):
            if value is not None:
                raise click.UsageError(f"a trace has its own: leave out --{name}")
    given = {"speed": speed, "output_tokens": output_tokens, "tool_s": tool_s}
    return Workload(
        trace=trace,
        trace_format=trace_format,
        turns=turns,
        **{name: value for name, value in given.items() if value is not None},
    )


def check_model(model: str) -> None:
    """Raise `BadParameter` for a model of which there is no deployment, and no file if it names one."""
    from agentload_simbackend import list_deployments, list_models

    if model.endswith(".toml"):
        if not Path(model).is_file():
            raise click.BadParameter(f"no such file: {printable(Path(model))}", param_hint="--model")
        return
    deployed = {name.partition("/")[0] for name in list_deployments()}
    known = sorted({*list_models(), *deployed})
    if model not in known:
        message = f"no model named {model!r}; there are {', '.join(known)}, or the path of a .toml file"
        raise click.BadParameter(message, param_hint="--model")
