"""`agentload serve`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from agentload._cli._serve_log import one_line_log
from agentload_traces._errors import AgentloadError

if TYPE_CHECKING:
    from agentload_simbackend import Deployment

_GC_THRESHOLD = 50_000
"""Allocations between two collections: prompts hold many small objects, none of them in cycles."""


@click.command(name="serve", short_help="Serve a simulated deployment over HTTP.")
@click.argument("deployment", default="gemma4-31b/pd")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8400, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**63 - 1),
    help="Seed of all random draws and of the answers' text.",
)
@click.option(
    "--realtime",
    is_flag=True,
    help="Run ahead of ordinary processes (SCHED_FIFO), for even pacing; needs the privilege.",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the ready line and the pacing at the end as JSON."
)
def command(
    deployment: str, host: str, port: int, seed: int, realtime: bool, until_stdin_ends: bool, as_json: bool
) -> None:
    """Serve DEPLOYMENT (a name from `agentload backends`, or a TOML file) in real time.

    The API is OpenAI's chat completions, streamed or not. An answer has exactly as many o200k_base tokens
    as `max_completion_tokens` (or `max_tokens`) asks for, 256 if it asks for none. Prompt tokens are those
    of the messages' text and tool calls; no chat template is counted.

    \b
    Example:
      agentload serve gemma4-31b/pd --port 8400
      curl http://127.0.0.1:8400/v1/chat/completions -H 'content-type: application/json' \\
        -d '{"model": "any", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'

    Headers tell a request's place: `x-session-id`, and if you like `x-agentload-turn-id` and, for a
    sub-agent, `x-agentload-agent-id`; their values are percent-encoded. SIGINT or SIGTERM stops it, cuts
    the streams that are still running, and prints how well it kept time.
    """
    from agentload_simbackend import load_deployment
    from agentload_simbackend._usloop import new_event_loop

    loaded = load_deployment(deployment)
    if realtime:
        _real_time()
    with one_line_log(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(loaded, host, port, seed, as_json, until_stdin_ends))


async def _serve(
    deployment: Deployment, host: str, port: int, seed: int, as_json: bool, until_stdin_ends: bool
) -> None:
    from agentload_simbackend import build_engine
    from agentload_simbackend._server import SimServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    if until_stdin_ends:
        # A replay that started this server holds the other end, so the server ends with it, however it ends.
        loop.add_reader(sys.stdin.fileno(), stop.set)
    server = SimServer(
        build_engine(deployment, seed),
        seed=seed,
        model=deployment.name,
        max_model_len=deployment.max_context_tokens,
        block_tokens=deployment.cache_block_tokens,
        host=host,
        port=port,
        about=deployment.about(),
    )
    async with server:
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        _print_ready(deployment, server.url, as_json)
        await stop.wait()
        pacing = server.pacing
    if as_json:
        _print_json({"event": "stopped", "pacing": pacing})
    elif pacing["writes"]:
        click.echo(
            f"stopped after {pacing['writes']} writes; late by p50 {pacing['lateness_p50_ms']} ms, "
            f"p99 {pacing['lateness_p99_ms']} ms, max {pacing['lateness_max_ms']} ms"
        )
    else:
        click.echo("stopped; nothing was streamed")


def _print_ready(deployment: Deployment, url: str, as_json: bool) -> None:
    conditions = list(deployment.conditions())
    if as_json:
        _print_json({"event": "ready", "url": url, "deployment": deployment.name, "conditions": conditions})
        return
    click.echo(f"{deployment.name}: {deployment.summary}")
    for condition in conditions:
        click.echo(f"  {condition}")
    click.echo(f"ready: {url} (OpenAI API at {url}/v1)")


def _print_json(value: dict[str, object]) -> None:
    import msgspec

    click.echo(msgspec.json.encode(value))  # bytes: UTF-8 whatever the terminal's encoding is


def _real_time() -> None:
    """Run under SCHED_FIFO. Raises `AgentloadError` where that is not possible."""
    if not hasattr(os, "sched_setscheduler"):
        raise AgentloadError("--realtime: this system has no SCHED_FIFO; leave the option out")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError as error:
        raise AgentloadError(
            "--realtime: SCHED_FIFO is not permitted; run with CAP_SYS_NICE, or leave the option out"
        ) from error
