"""Options of tool calls: what they do, and how many run at a time."""

from __future__ import annotations

import click

from agentload._cli._option_groups import named, option_group
from agentload._cli._values import NumberRange

TOOLS = option_group(
    "Tools",
    named(
        "--tools",
        default="recorded",
        show_default=True,
        metavar="recorded|law:FILE|python:MODULE:FUNCTION|mcp:COMMAND",
        help="How long tool calls take: as recorded, drawn from the laws in a TOML file, or as long as they"
        " really do, executed (wall clock) by FUNCTION(name, arguments, context) -> str, which may be async,"
        " or by an MCP server that is started and spoken to over its standard streams.",
    ),
    named(
        "--tool-slots",
        type=click.IntRange(min=0),
        metavar="N",
        help="Tools of all sessions that run at a time, further ones wait; 0 is any number (default: what"
        " the deployment says).",
    ),
    named(
        "--tool-timeout",
        "tool_timeout_s",
        type=NumberRange(min=0.01, max=86_400),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="A really executed tool call that takes longer has failed.",
    ),
)
