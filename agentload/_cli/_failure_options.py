"""Options of failure: when a turn has failed, whether it is sent again, and what becomes of its session."""

from __future__ import annotations

import click

from agentload._cli._option_groups import named, option_group
from agentload._cli._values import NumberRange

_SECONDS = NumberRange(min=0.01, max=86_400)

FAILURE = option_group(
    "Failure (wall clock)",
    named(
        "--connect-timeout",
        "connect_timeout_s",
        type=_SECONDS,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="A connection that is not open by then has failed.",
    ),
    named(
        "--first-token-timeout",
        "first_token_timeout_s",
        type=_SECONDS,
        metavar="SECONDS",
        help="A turn of whose answer no token has come by then has failed.",
    ),
    named(
        "--stall-timeout",
        "stall_timeout_s",
        type=_SECONDS,
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="A turn of whose answer nothing comes for this long has failed.",
    ),
    named(
        "--total-timeout",
        "total_timeout_s",
        type=_SECONDS,
        metavar="SECONDS",
        help="A turn that is not answered whole by then has failed.",
    ),
    named(
        "--retries",
        type=click.IntRange(min=0, max=1_000),
        default=0,
        show_default=True,
        help="How often a failed turn is sent again. Each attempt is a row of the run.",
    ),
    named(
        "--retry-on",
        default="connect,connect_timeout,reset,rate_limited,unavailable",
        show_default=True,
        metavar="KINDS",
        help="Which failures are worth a retry, of: connect, tls, connect_timeout, first_token_timeout,"
        " stall_timeout, total_timeout, reset, cut_off, rate_limited (429), unavailable (5xx), refused (other"
        " statuses), not_a_stream, bad_stream, error_event, empty.",
    ),
    named(
        "--retry-wait",
        "retry_wait_s",
        type=NumberRange(min=0, max=3_600),
        default=0.5,
        show_default=True,
        metavar="SECONDS",
        help="Before the first retry, doubled each time, of which half to all is waited; a Retry-After of the"
        " endpoint counts instead.",
    ),
    named(
        "--retry-max-wait",
        "retry_max_wait_s",
        type=NumberRange(min=0, max=86_400),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="The longest wait before a retry; an endpoint that asks for more is not asked again.",
    ),
    named(
        "--on-failure",
        type=click.Choice(["end", "continue"]),
        default="end",
        show_default=True,
        help="What a failed turn does to its session: ends it, or counts as an empty answer.",
    ),
)
