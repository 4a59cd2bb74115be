"""Defaults of options stand in the library, the commands and the words of reports: they are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import structs

from agentload._cli import cli, main
from agentload._options import GROUPS, EndpointOptions, ReplayOptions
from agentload_analysis._load_words import _USUAL
from agentload_traces import Turn, write_trace

OF_THE_COMMAND = {"baseline": True, "out": None, "clock": None}
"""Where a command differs on purpose: it measures the machine, and works out the path and the clock."""


def library_defaults() -> dict[str, Any]:
    """By name, over all groups; without what has to be given."""
    kinds = (ReplayOptions, *GROUPS.values())
    fields = [field for kind in kinds for field in structs.fields(kind) if field.name not in GROUPS]
    return {field.name: field.default for field in fields if not field.required}


def command_defaults(*path: str) -> dict[str, Any]:
    command: click.Command = cli
    context = click.Context(command)
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(context, name)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    # Parsed, so that the defaults are of the types that the code gets.
    return command.make_context(path[-1], [], parent=context.parent).params


@pytest.mark.parametrize("name", ["run", "replay"])
def test_a_command_has_the_defaults_of_the_library(name: str) -> None:
    library, command = library_defaults(), command_defaults(name)
    assert set(library) - {"resume"} <= set(command)
    # `--resume` takes a run, which the library has as `out`.
    shared = set(library) - {"resume"}
    expected = {option: OF_THE_COMMAND.get(option, library[option]) for option in shared}
    assert {option: command[option] for option in shared} == expected


@pytest.mark.parametrize("name", ["aa", "coding"])
def test_a_benchmark_has_the_defaults_of_an_endpoint(name: str) -> None:
    library = {field.name: field.default for field in structs.fields(EndpointOptions)}
    command = command_defaults("bench", name)
    assert set(library) - set(command) == {"history", "tokens"}
    shared = set(library) & set(command)
    assert {option: command[option] for option in shared} == {option: library[option] for option in shared}


def test_the_report_takes_the_same_for_usual() -> None:
    library = library_defaults()
    assert {option: library[option] for option in _USUAL} == _USUAL


def test_answers_of_anthropics_messages_cannot_be_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "t.jsonl", tmp_path / "run"
    write_trace(trace, [Turn(session_id="s", turn_id="t", input_tokens=9)])
    words = ["--target", "http://127.0.0.1:9", "--api", "messages", "--force-output", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(trace), *words])
    assert ended.value.code == 2
    told = "error: --force-output: Anthropic's messages have no fields for it; leave it out\n"
    assert capsys.readouterr() == ("", told)
    assert not out.exists()
