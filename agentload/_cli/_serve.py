"""`agentload serve`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentload._cli._serve_log import one_line_log
from agentload._cli._values import SEED, NamedPath
from agentload_traces import AgentloadError

if TYPE_CHECKING:
    from agentload_simbackend import Deployment, Engine

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
    type=SEED,
    help="Seed of all random draws and of the answers' text.",
)
@click.option(
    "--faults",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Faults that befall it (TOML or JSON, see the simulator's README), timed from its start.",
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
    deployment: str,
    host: str,
    port: int,
    seed: int,
    faults: Path | None,
    realtime: bool,
    until_stdin_ends: bool,
    as_json: bool,
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
      agentload serve gemma4-31b/pd --faults bad_day.toml

    Headers tell a request's place: `x-session-id`, and if you like `x-agentload-turn-id` and, for a
    sub-agent, `x-agentload-agent-id`; their values are percent-encoded. Whom it is served before says
    `x-agentload-class` (interactive, standard, batch), or the body's `priority` (vLLM: lower is sooner) or
    `nvext.agent_hints` (Dynamo: higher is sooner); what it is about `x-agentload-content`. SIGINT or SIGTERM
    stops it, cuts the streams that are still running, and prints how well it kept time.
    """
    from agentload._run_setup import check_faults
    from agentload_simbackend import SimServer, build_engine, faults_sentence, load_deployment, load_faults

    loaded = load_deployment(deployment)
    conditions = list(loaded.conditions())
    timeline = load_faults(faults) if faults else ()
    if faults:
        check_faults(faults, timeline, loaded)
        conditions.append(faults_sentence(faults, timeline))
    engine = build_engine(loaded, seed, faults=timeline)
    if realtime:
        _real_time()
    serve = _serve(loaded, engine, conditions, host, port, seed, as_json, until_stdin_ends)
    with one_line_log(), asyncio.Runner(loop_factory=SimServer.new_event_loop) as runner:
        runner.run(serve)


class _Clock:
    """Time since the start, for an engine whose faults count from there; 0 until then."""

    def __init__(self) -> None:
        self._origin_ns: int | None = None

    def __call__(self) -> int:
        return 0 if self._origin_ns is None else max(0, time.monotonic_ns() - self._origin_ns)

    def start(self, origin_ns: int) -> None:
        """Start it; it reads 0 at `origin_ns` of `time.monotonic_ns`."""
        self._origin_ns = origin_ns


def _read_stdin(clock: _Clock, stop: asyncio.Event) -> None:
    """A replay tells when its run starts, and ends the input at its own end, however it ends."""
    told = os.read(sys.stdin.fileno(), 4_096).split()
    if told:
        clock.start(int(told[-1]))
    else:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


async def _serve(
    deployment: Deployment,
    engine: Engine,
    conditions: list[str],
    host: str,
    port: int,
    seed: int,
    as_json: bool,
    until_stdin_ends: bool,
) -> None:
    from agentload_simbackend import SimServer, SimulatedModel

    clock, stop = _Clock(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, clock, stop)
    speculation = deployment.spec.speculation
    server = SimServer(
        engine,
        seed=seed,
        model=deployment.name,
        max_model_len=min(deployment.max_context_tokens, deployment.max_stream_tokens),
        block_tokens=deployment.cache_block_tokens,
        host=host,
        port=port,
        clock=clock,
        contents=speculation.acceptance_length if speculation else (),
        about=SimulatedModel(deployment.mode, deployment.spec_sha256, tuple(conditions)),
    )
    async with server:
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        if not until_stdin_ends:
            clock.start(time.monotonic_ns())
        _print_ready(deployment, conditions, server.url, as_json)
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


def _print_ready(deployment: Deployment, conditions: list[str], url: str, as_json: bool) -> None:
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
