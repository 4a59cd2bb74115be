"""Groups of options: each under a heading of its own in the help, and in a struct of its own for the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click


class OptionGroup(NamedTuple):
    """Options of one concern. heading: of their part of the help text."""

    heading: str
    options: tuple[Callable[[Any], Any], ...]


class GroupedCommand(click.Command):
    """A command whose help shows its options by group; those of no group come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                parts.setdefault(getattr(param, "group_heading", "Options"), []).append(record)
        for heading, records in parts.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class _GroupedOption(click.Option):
    """An option that knows its group."""

    def __init__(self, *args: Any, group_heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group_heading = group_heading


def option_group(heading: str, *options: tuple[tuple[str, ...], dict[str, Any]]) -> OptionGroup:
    """A group of options, each as the names and the arguments of `click.option`; see `named`."""
    made = tuple(
        click.option(*names, cls=_GroupedOption, group_heading=heading, **arguments)
        for names, arguments in options
    )
    return OptionGroup(heading, made)


def named(*names: str, **arguments: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """An option of a group, in the words of `click.option`."""
    return names, arguments


def add_options(command: Callable[..., Any], groups: tuple[OptionGroup, ...]) -> Callable[..., Any]:
    """Add the options of all groups to a command, in this order."""
    for group in reversed(groups):
        for option in reversed(group.options):
            command = option(command)
    return command
