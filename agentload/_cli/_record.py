"""`agentload record`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentload._cli._values import NamedPath
from agentload_traces import printable

if TYPE_CHECKING:
    from agentload._record._latency import LatencySummary
    from agentload._record._run import Recording

_FILE = NamedPath(path_type=Path, dir_okay=False)


@click.command(
    name="record",
    short_help="Record a trace between an agent and its endpoint.",
)
@click.option(
    "--upstream",
    required=True,
    metavar="URL",
    help="The endpoint, such as https://api.openai.com/v1. A /v1 at its end is left to the client.",
)
@click.option(
    "--out",
    "-o",
    required=True,
    type=_FILE,
    help="The trace: .jsonl, .jsonl.zst or .parquet. It appears whole, at the end.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--keep-text", is_flag=True, help="Record prompts and answers too, not only their sizes.")
@click.option(
    "--session-header", metavar="NAME", help="A header that names the session, before those that are known."
)
@click.option(
    "--key-env", metavar="NAME", help="Send the key in this environment variable, in place of the client's."
)
@click.option("--key-file", type=_FILE, metavar="FILE", help="Send the key in this file, instead.")
@click.option("--ca-file", type=_FILE, metavar="PEM", help="Authorities to trust, instead of the system's.")
@click.option("--client-cert", type=_FILE, metavar="PEM", help="Certificate to show to the endpoint.")
@click.option("--client-key", type=_FILE, metavar="PEM", help="Its key, if it is in a file of its own.")
@click.option("--insecure", is_flag=True, help="Do not verify the endpoint's certificate.")
@click.option("--json", "as_json", is_flag=True, help="Print the ready line and the totals as JSON.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    upstream: str,
    out: Path,
    host: str,
    port: int,
    keep_text: bool,
    session_header: str | None,
    key_env: str | None,
    key_file: Path | None,
    ca_file: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    insecure: bool,
    as_json: bool,
    command_line: tuple[str, ...],
) -> None:
    """Record what an agent asks its endpoint, as a trace that `agentload replay` takes.

    A reverse proxy: requests go up and answers come down byte for byte, as they come; only the host, and a
    key if you give one, are the endpoint's. OpenAI's chat completions, responses and completions and
    Anthropic's messages are recorded, everything else passes. Prompts and answers are counted, not kept;
    keys never are.

    \b
    Example:
      agentload record --upstream https://api.openai.com/v1 --out trace.jsonl -- python my_agent.py
      agentload record --upstream http://127.0.0.1:8000 --out trace.jsonl.zst --port 8399
      agentload replay trace.jsonl --target http://127.0.0.1:8000

    With COMMAND it runs that, with OPENAI_BASE_URL, OPENAI_API_BASE and ANTHROPIC_BASE_URL set to the proxy,
    and ends when it ends; else Ctrl-C ends it. Once: answers on their way are finished first. Twice: they
    are cut. Until then, the trace is in a directory beside it, OUT.partial, one file a session.
    """
    from agentload._record._run import RecordOptions, record
    from agentload._record._upstream import UpstreamOptions

    options = RecordOptions(
        upstream=UpstreamOptions(
            url=upstream,
            key_env=key_env,
            key_file=key_file,
            ca_file=ca_file,
            client_cert=client_cert,
            client_key=client_key,
            insecure=insecure,
        ),
        out=out,
        host=host,
        port=port,
        session_header=session_header,
        keep_text=keep_text,
        command=command_line,
    )
    quiet = bool(command_line)
    recording = asyncio.run(record(options, lambda url: _print_ready(url, upstream, as_json, quiet), _warn))
    _print_end(recording, as_json, quiet)
    if recording.error is not None or recording.interrupted or recording.command_exit_code:
        sys.exit(1)


def _warn(warning: str) -> None:
    click.echo(f"warning: {warning}", err=True)


def _print_ready(url: str, upstream: str, as_json: bool, quiet: bool) -> None:
    if quiet:
        return
    if as_json:
        _print_json({"event": "ready", "url": url})
        return
    click.echo(f"recording {printable(upstream)}")
    click.echo(f"ready: {url} (OPENAI_BASE_URL={url}/v1, ANTHROPIC_BASE_URL={url}); Ctrl-C ends it")


def _print_end(recording: Recording, as_json: bool, quiet: bool) -> None:
    """quiet: a command was run, and standard output was for what it printed."""
    if as_json:
        _print_json({"event": "stopped"}, recording)
    else:
        for line in _lines(recording):
            click.echo(line, err=quiet)
    if recording.error is not None:
        click.echo(f"error: {printable(recording.error)}", err=True)


def _print_json(value: dict[str, object], recording: Recording | None = None) -> None:
    import msgspec

    more = {} if recording is None else msgspec.to_builtins(recording)
    click.echo(msgspec.json.encode(value | more))  # bytes: UTF-8 whatever the terminal's encoding is


def _lines(recording: Recording) -> list[str]:
    totals, passed = recording.totals, recording.passed
    lines = []
    if recording.trace is not None:
        sessions = f"{totals.sessions:,} sessions ({totals.sessions_by_header:,} by header)"
        tokens = f"{totals.input_tokens:,} tokens in, {totals.output_tokens:,} out"
        turns = f"{totals.turns:,} turns, {totals.tool_calls:,} tool calls"
        lines.append(f"{printable(recording.trace)}: {sessions}, {turns}, {tokens}")
    counted = [
        (totals.counted_inputs, "prompts counted in o200k_base, for the endpoint told no usage"),
        (totals.counted_outputs, "answers counted so"),
        (totals.retries, "turns had been tried before"),
        (totals.compactions, "compactions"),
        (totals.subagents, "sub-agents"),
    ]
    lines += [f"  {number:,} {what}" for number, what in counted if number]
    missing = [
        *((number, f"failed answers: {kind}") for kind, number in sorted(totals.failed.items())),
        (totals.cancelled, "answers that the client gave up"),
        (totals.not_requests, "bodies that are no request of their API"),
        (totals.misread, "exchanges that could not be read"),
        (passed.dropped, "exchanges that were not copied, to save memory"),
        (passed.other_requests, "other requests, passed on"),
        (passed.blind_connections, "connections that left HTTP/1.1 (WebSockets), passed on"),
    ]
    lines += [f"  not recorded: {number:,} {what}" for number, what in missing if number]
    for reason, number in sorted(totals.unreadable.items()):
        lines.append(f"  without output tokens: {number:,} answers {printable(reason)}")
    requests, answers = _latency(passed.request_latency), _latency(passed.answer_latency)
    lines.append(f"added latency: requests {requests}; answers {answers}")
    if recording.command_exit_code:
        lines.append(f"the command ended with exit code {recording.command_exit_code}")
    if recording.interrupted:
        lines.append("interrupted: answers on their way were cut")
    return lines


def _latency(summary: LatencySummary) -> str:
    if not summary.count:
        return "none"
    return (
        f"p50 {summary.p50_ms:.3f} ms, p99 {summary.p99_ms:.3f} ms, max {summary.max_ms:.3f} ms"
        f" ({summary.count:,} reads)"
    )
