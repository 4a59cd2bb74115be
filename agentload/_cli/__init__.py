"""The command line: one module per command, imported when the command is called.

Exit codes: 0 done; 1 done, but something that the user must know of went wrong (failed requests, an
interrupted run, an invalid trace); 2 bad usage or input; 130 interrupted before anything was kept; 141 nobody
reads the output any more.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_INTERRUPTED, _NOT_READ = 130, 141  # what a shell shows of a command that SIGINT or SIGPIPE has ended

try:
    import click

    from agentload._cli._interrupts import like_ctrl_c
    from agentload_traces import AgentloadError, printable
except KeyboardInterrupt:
    sys.exit(_INTERRUPTED)

_COMMANDS = {
    "run": "Replay a trace on a simulated deployment and report it, in one go.",
    "replay": "Replay a trace against a simulated deployment or an endpoint.",
    "report": "Report a run: sessions, latencies by turn and by context.",
    "sweep": "Sweep concurrency, context and modes in virtual time; table and plots.",
    "bench": "Measure output speed as published benchmarks do.",
    "size": "Find the largest concurrency at which a deployment holds an SLO.",
    "generate": "Write a trace of generated agent sessions.",
    "trace": "Look at, check and convert traces.",
    "record": "Record a trace between an agent and its endpoint.",
    "serve": "Serve a simulated deployment over HTTP.",
    "schedule": "Show the static schedule of a decode step on a group of LPUs.",
    "fidelity": "Compare the simulator with every published number.",
    "baseline": "Measure this machine's own error, without an endpoint.",
    "backends": "List the simulated deployments and what their numbers rest on.",
}


class _NotRead(Exception):
    """Nobody reads the output any more."""


@contextmanager
def _reading_ends() -> Iterator[None]:
    """Tell of a closed pipe by an exception that click does not make an exit code of 1 of."""
    try:
        yield
    except BrokenPipeError as error:
        raise _NotRead from error


class _LazyGroup(click.Group):
    """Lists commands without importing them, so that `--help` stays fast."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _reading_ends():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _reading_ends():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"agentload._cli._{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentload")
def cli() -> None:
    """What a whole agent session takes on a machine that decodes thousands of tokens a second.

    \b
    Example:
      agentload run                         # a bundled real session on gemma4-31b/pd, virtual time
      agentload trace info my_trace.jsonl
    """


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the `agentload` command."""
    try:
        _open_standard_streams()
        for stream in (sys.stdout, sys.stderr):
            # Ids and texts of a trace may hold any character; a terminal that cannot show one gets its code.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        with like_ctrl_c():
            code = cli.main(args=argv, prog_name="agentload", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except AgentloadError as error:
        click.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(2)
    except _NotRead:
        # Else Python would try once more at its exit, and complain of it.
        sys.stdout = sys.stderr = None
        sys.exit(_NOT_READ)
    except OSError as error:
        # Errors of the user's own files are AgentloadErrors; what is left is the output.
        click.echo(f"error: cannot write the output: {error.strerror or error}", err=True)
        sys.stdout = None
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def entry() -> NoReturn:
    """The `agentload` command: `main`, whose exit code nothing can change any more once it is known."""
    try:
        main()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _open_standard_streams() -> None:
    """Open /dev/null for a standard stream that is closed; else the next socket or file took its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, for those below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
