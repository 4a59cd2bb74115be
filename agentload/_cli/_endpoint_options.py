"""Options of an endpoint: its API, its key and how it is reached; and of the prompts that it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentload._cli._option_groups import named, option_group
from agentload._cli._values import NamedPath

_FILE = NamedPath(path_type=Path, dir_okay=False)


class _Header(click.ParamType[tuple[str, str]]):
    """NAME:VALUE, as a pair."""

    name = "header"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, colon, content = str(value).partition(":")
        if not colon or not name.strip():
            self.fail("must be NAME:VALUE, such as x-tenant:blue", param, ctx)
        return name.strip(), content.strip()


ENDPOINT = option_group(
    "Endpoint",
    named(
        "--api",
        type=click.Choice(["chat", "responses", "completions", "messages"]),
        default="chat",
        show_default=True,
        help="chat, responses, completions: OpenAI's. messages: Anthropic's.",
    ),
    named("--model", help="Model to ask an endpoint for (default: the first it lists)."),
    named(
        "--force-output",
        is_flag=True,
        help="Send min_tokens and ignore_eos too (vLLM, SGLang, Dynamo), so that answers have their length.",
    ),
    named(
        "--more-urls",
        multiple=True,
        metavar="URL",
        help="A further URL of the same service, which is --target's; may be given more than once.",
    ),
    named(
        "--balance",
        type=click.Choice(["session", "turn"]),
        default="session",
        show_default=True,
        help="Of several URLs: one for all turns of a session, or the next one for each turn.",
    ),
    named(
        "--header",
        "headers",
        type=_Header(),
        multiple=True,
        metavar="NAME:VALUE",
        help="Sent with every request, such as x-tenant:blue. The value is never recorded. May be given more"
        " than once.",
    ),
    named(
        "--query",
        multiple=True,
        metavar="NAME=VALUE",
        help="Added to every URL, such as api-version=2024-10-21; may be given more than once.",
    ),
    named("--extra-body", metavar="JSON", help='Merged into every request, such as {"temperature":0}.'),
    named(
        "--key-env",
        default="AGENTLOAD_API_KEY",
        show_default=True,
        metavar="NAME",
        help="Environment variable that holds the key, which is never recorded. Sent as a bearer token, or as"
        " x-api-key with --api messages.",
    ),
    named("--key-file", type=_FILE, metavar="FILE", help="A file that holds the key, instead."),
    named("--ca-file", type=_FILE, metavar="PEM", help="Authorities to trust, instead of the system's."),
    named("--client-cert", type=_FILE, metavar="PEM", help="Certificate to show to the endpoint."),
    named("--client-key", type=_FILE, metavar="PEM", help="Its key, if it is in a file of its own."),
    named("--insecure", is_flag=True, help="Do not verify the endpoint's certificate."),
    named(
        "--proxy",
        metavar="URL",
        help="HTTP proxy, such as http://proxy:3128; none is used unless given here. user:password come from"
        " AGENTLOAD_PROXY_AUTH.",
    ),
    named("--unix-socket", type=_FILE, metavar="PATH", help="Connect to this socket instead of to the host."),
)

PROMPTS = option_group(
    "Prompts",
    named(
        "--history",
        type=click.Choice(["recorded", "live"]),
        default="recorded",
        show_default=True,
        help="What later turns send of earlier answers: the trace's text, or what really came.",
    ),
    named(
        "--tokens",
        type=click.Choice(["o200k", "server"]),
        default="o200k",
        show_default=True,
        help="Whose count of a prompt is to be the trace's. server: prompts are fitted to the usage that the"
        " endpoint reports.",
    ),
)
"""No options of a benchmark: its sessions have no later turns, and its prompts are counted in o200k_base."""
