"""`agentload generate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from agentload._cli._console import echo_json
from agentload._cli._interrupts import interruptible_write
from agentload_traces import Session, Turn, decodable, printable


class _Totals(msgspec.Struct):
    """What was written; the same words as `agentload trace info --json`."""

    sessions: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    user_turns: int = 0
    compactions: int = 0

    def add(self, turn: Turn) -> None:
        self.turns += 1
        self.input_tokens += turn.input_tokens
        self.output_tokens += turn.output_tokens or 0
        self.tool_calls += len(turn.tool_calls)
        self.user_turns += turn.trigger == "user"
        self.compactions += turn.trigger == "compaction"


def _counted(sessions: Iterable[Session], totals: _Totals) -> Iterator[Turn]:
    for session in sessions:
        totals.sessions += 1
        for turn in session.turns:
            totals.add(turn)
            yield turn


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(readable=False, path_type=Path),
    help="Where to write: a name ending in .jsonl, .jsonl.zst or .parquet.  [default: PROFILE.jsonl]",
)
@click.option("--profile", default="coding", show_default=True, help="A bundled profile, or a .toml file.")
@click.option("--sessions", type=click.IntRange(min=1), default=10, show_default=True, help="How many.")
@click.option("--turns", type=click.IntRange(min=1), default=200, show_default=True, help="Turns a session.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Of all draws; another seed gives other sessions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the totals as JSON.")
def command(output: Path | None, profile: str, sessions: int, turns: int, seed: int, as_json: bool) -> None:
    """Write a trace of generated agent sessions.

    Each session starts from a first prompt and grows turn by turn with its answers, tool results and user
    messages, until it is compacted. Same profile, counts and seed: same bytes, on every machine.

    \b
    Example:
      agentload generate -o coding.jsonl --sessions 100 --turns 300 --seed 1
      agentload run coding.jsonl
    """
    from rich.console import Console
    from rich.progress import track

    from agentload._generate import generate_sessions, load_profile
    from agentload_traces import write_trace

    drawn_from = load_profile(profile)
    path = output or Path(f"{drawn_from.name}.jsonl")
    stderr = Console(stderr=True)
    totals = _Totals()
    made = track(
        generate_sessions(drawn_from, sessions=sessions, turns=turns, seed=seed),
        "generating sessions",
        total=sessions,
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
    with interruptible_write(path):
        write_trace(path, _counted(made, totals))
    not_measured = dict(drawn_from.not_measured())
    if as_json:
        summary = {"path": decodable(path), "profile": drawn_from.name, "seed": seed}
        echo_json({**summary, **msgspec.to_builtins(totals), "not_measured": not_measured})
        return
    click.echo(
        f"{printable(path)}: {totals.sessions:,} sessions, {totals.turns:,} turns "
        f"({totals.user_turns:,} started by the user, {totals.compactions:,} compactions), "
        f"{totals.tool_calls:,} tool calls, {totals.input_tokens:,} tokens in, {totals.output_tokens:,} out"
    )
    for kind in ("estimate", "fitted"):
        names = ", ".join(name for name, its_kind in not_measured.items() if its_kind == kind)
        if names:
            click.echo(f"profile {printable(drawn_from.name)}, {kind}: {printable(names)}")
