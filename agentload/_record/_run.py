"""A recording from its beginning to its trace: proxy, reading process, and the command that is recorded."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter_ns
from urllib.parse import urlsplit

import msgspec

from agentload._quiet_gc import quiet_gc
from agentload._record._feeder import Feeder
from agentload._record._journal import make_partial, partial_path
from agentload._record._proxy import Copies, Passed, Proxy
from agentload._record._sessions import SessionFinder
from agentload._record._turns import Totals
from agentload._record._upstream import Upstream, UpstreamOptions
from agentload._record._worker import Recorded, WorkerOptions
from agentload_traces import AgentloadError

_SECRET_FIELDS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "x-goog-api-key"}
)
_KILL_AFTER_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RecordOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to record, and into which trace.

    out: the trace. session_header: a header that names sessions, before those that are known.
    keep_text: record prompts and answers too. command: to be run with its base URLs set to the proxy's;
    without one, the recording ends by a signal.
    """

    upstream: UpstreamOptions
    out: Path
    host: str = "127.0.0.1"
    port: int = 0
    session_header: str | None = None
    keep_text: bool = False
    command: tuple[str, ...] = ()


class Recording(msgspec.Struct, kw_only=True):
    """What a recording came to. trace: `None` if there is none; error: why, or what else is wrong with it.

    command_exit_code: `None` without a command. interrupted: answers were cut, by a second signal.
    """

    trace: str | None
    totals: Totals
    passed: Passed
    command_exit_code: int | None = None
    interrupted: bool = False
    error: str | None = None


async def record(
    options: RecordOptions,
    ready: Callable[[str], None],
    tell: Callable[[str], None] = lambda warning: None,
) -> Recording:
    """Record until the command ends, or SIGINT, SIGTERM or SIGHUP comes; a second one ends it at once.

    ready: called with the proxy's URL when it listens. tell: called from a thread with what a user must know
    before the recording ends.
    Raises `AgentloadError` if the recording cannot begin; nothing is left behind then.
    """
    field = _checked_field(options.session_header)
    if options.command and shutil.which(options.command[0]) is None:
        raise AgentloadError(f"{options.command[0]}: no such command")
    upstream = Upstream(options.upstream)
    out = options.out.absolute()
    worker = WorkerOptions(trace=str(out), session_field=field, keep_text=options.keep_text)
    partial = make_partial(out)
    feeder = Feeder(
        worker, lambda: tell("the process that reads the copies has died; from now on nothing is recorded")
    )
    copies = Copies(SessionFinder(field).fields(), feeder.put)
    loop = asyncio.get_running_loop()
    proxy = Proxy(upstream, copies, host=options.host, port=options.port)
    try:
        await asyncio.to_thread(feeder.wait_until_ready)
        with _queued_signals() as signals:
            async with proxy:
                feeder.start(perf_counter_ns(), lambda size: loop.call_soon_threadsafe(copies.release, size))
                with quiet_gc():
                    ended = await _until_end(proxy, options.command, ready, signals)
            # The answers that were cut are noted too, before the trace is written; nothing stops that.
            recorded = await asyncio.to_thread(feeder.finish)
    except BaseException:
        feeder.abandon()
        with suppress(OSError):
            partial.rmdir()  # where something was recorded, it stays
        raise
    return _recording(out, recorded, feeder.lost, copies.passed(), ended)


class _Ended(msgspec.Struct):
    exit_code: int | None
    interrupted: bool


def _recording(out: Path, recorded: Recorded | None, lost: int, passed: Passed, ended: _Ended) -> Recording:
    error = None
    partial = partial_path(out)
    if recorded is None:
        error = (
            f"the process that reads the copies has died, {lost} exchanges are lost; {partial} has the rest"
        )
    elif recorded.error is not None:
        error = f"{recorded.error}; what was recorded is in {partial}"
    elif not recorded.totals.turns:
        error = "nothing was recorded: no answer to a request of a known API came through"
    return Recording(
        trace=None if error else str(out),
        totals=recorded.totals if recorded is not None else Totals(),
        passed=passed,
        command_exit_code=ended.exit_code,
        interrupted=ended.interrupted,
        error=error,
    )


def _checked_field(name: str | None) -> str | None:
    """A header's name in lower case; raises `AgentloadError` for one whose value is a secret."""
    if name is None:
        return None
    field = name.strip().lower()
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", field):
        raise AgentloadError(f"--session-header {name!r}: is no name of a header")
    if field in _SECRET_FIELDS:
        raise AgentloadError(f"--session-header {name}: holds a secret, which would stand in the trace")
    return field


@contextmanager
def _queued_signals() -> Iterator[asyncio.Queue[int]]:
    """Within the block signals are put into a queue; one that is ignored stays so."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    numbers = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        yield signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


async def _until_end(
    proxy: Proxy, command: tuple[str, ...], ready: Callable[[str], None], signals: asyncio.Queue[int]
) -> _Ended:
    """Serve until the end; what is on its way then is finished, unless a second signal comes."""
    process: Process | None = None
    try:
        if command:
            try:
                process = await asyncio.create_subprocess_exec(*command, env=_environment(proxy.url))
            except OSError as error:
                raise AgentloadError(f"{command[0]}: cannot be run: {error.strerror or error}") from None
        ready(proxy.url)
        told = await _first(signals, process)
        stopped = asyncio.create_task(signals.get())
        draining = asyncio.create_task(proxy.drain())
        await asyncio.wait((stopped, draining), return_when=asyncio.FIRST_COMPLETED)
        interrupted = not draining.done()
        proxy.stop()
        await draining
        stopped.cancel()
        if process is None:
            return _Ended(None, interrupted)
        return _Ended(await _end_command(process, told, interrupted), interrupted)
    finally:
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _first(signals: asyncio.Queue[int], process: Process | None) -> int | None:
    """Wait for a signal, and return it, or for the end of the command."""
    if process is None:
        return await signals.get()
    told, ended = asyncio.create_task(signals.get()), asyncio.create_task(process.wait())
    await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
    number = told.result() if told.done() else None
    for task in (told, ended):
        task.cancel()
    return number


async def _end_command(process: Process, told: int | None, interrupted: bool) -> int:
    """The command's exit code; one that a signal has ended, or that had to be, has the shell's for it."""
    if process.returncode is None:
        # Ctrl-C has reached it too; any other signal was for this process alone.
        if told != signal.SIGINT or interrupted:
            process.terminate()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), 0.5 if interrupted else _KILL_AFTER_S)
        if process.returncode is None:
            process.kill()
    code = await process.wait()
    return 128 - code if code < 0 else code


def _environment(url: str) -> Mapping[str, str]:
    """The environment of the command: its clients go to the proxy, and not through another one to it."""
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    environment = dict(os.environ)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        environment[name] = f"{url}/v1"
    environment["ANTHROPIC_BASE_URL"] = url
    host = urlsplit(url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(part for part in (environment.get(name), host) if part)
    return environment
