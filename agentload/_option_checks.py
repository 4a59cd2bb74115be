"""Options that contradict each other or the target, told before anything is written."""

from __future__ import annotations

from collections.abc import Iterator

from agentload._endpoint import check_endpoint
from agentload._endpoint_options import base_url_of, extra_body_of
from agentload._load import check_load
from agentload._options import EndpointOptions, FailureOptions, ReplayOptions
from agentload._requests_fields import check_extra_body
from agentload._retry import check_failure
from agentload._tools import check_tools
from agentload_traces import AgentloadError

_ON_BOTH_CLOCKS = ("--on-failure",)
"""Of the options of an endpoint and of failure, what means something in virtual time, too."""


def check_options(options: ReplayOptions, *, url: bool) -> None:
    """Raise `AgentloadError` for the first option that cannot be meant.

    url: the target is an endpoint, not a deployment.
    """
    if url:
        base_url_of(options.target)  # before anything else may print it
    for reason in _of_target(options, url=url):
        raise AgentloadError(reason)
    check_load(options)
    check_failure(options.failure)
    check_tools(options.tooling, options.clock)
    if options.clock == "wall":
        check_endpoint(options.endpoint)
        if options.endpoint.force_output and options.endpoint.api == "messages":
            raise AgentloadError("--force-output: Anthropic's messages have no fields for it; leave it out")
        check_extra_body(options.endpoint.api, extra_body_of(options.endpoint))


def _of_target(options: ReplayOptions, *, url: bool) -> Iterator[str]:
    if url and options.clock == "virtual":
        yield f"{options.target} is an endpoint: replay against it needs --clock wall"
    if url and options.faults:
        yield (
            f"--faults: {options.target} is an endpoint, and its faults are its own; a simulated one takes"
            " them with `agentload serve --faults`"
        )
    content = options.content
    if url and content is not None and not (content.isascii() and content.isprintable()):
        yield f"--content {content!r}: holds characters that cannot stand in a header"
    if options.clock == "virtual":
        changed = [*_changed(options.endpoint), *_changed(options.failure)]
        names = [name for name in changed if name not in _ON_BOTH_CLOCKS]
        if names:
            yield (
                f"{', '.join(names)}: of endpoints, and in virtual time there is none; leave it out, or take"
                " --clock wall"
            )
    elif not url and options.endpoint.more_urls:
        yield f"--more-urls: {options.target} is no URL, so there are no further ones of it"


def _changed(group: EndpointOptions | FailureOptions) -> list[str]:
    """Names of the options that are not as they are by default, the way that the command line has them."""
    default = type(group)()
    changed = [name for name in group.__struct_fields__ if getattr(group, name) != getattr(default, name)]
    flags = {"headers": "--header"}
    return [flags.get(name, f"--{name.removesuffix('_s').replace('_', '-')}") for name in changed]
