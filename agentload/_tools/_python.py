"""Tools that are a Python callable of the user's: `python:MODULE:FUNCTION`.

    def run_tool(name: str, arguments: str | None, context: ToolContext) -> str: ...
    async def run_tool(name: str, arguments: str | None, context: ToolContext) -> str: ...

arguments: JSON text as the model wrote it, valid or not; `None` where they are not known, as with recorded
history. context: `session_id`, `turn_id`, `call_id`. What it returns is what the model is told. An exception
is a failed call, and the model is told of it.

A plain function runs in a thread of its own, a coroutine function on an event loop of its own: neither holds
up the loop that stamps arrivals.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelledError
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from agentload._one_line import one_line
from agentload._tools._executor import ToolContext, ToolOutcome, failed
from agentload_traces import AgentloadError

ToolFunction = Callable[[str, str | None, ToolContext], Any]

_GRACE_S = 1.0
"""How long calls may take to be cancelled when the run ends."""


def load_function(name: str) -> ToolFunction:
    """The callable of MODULE:FUNCTION, looked for beside the modules of Python in the working directory, too.

    Raises `AgentloadError` if there is none, or its module cannot be imported.
    """
    where = f"--tools python:{name}"
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise AgentloadError(f"{where}: must be python:MODULE:FUNCTION, such as python:my_tools:run_tool")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        raise AgentloadError(
            f"{where}: cannot import {module_name}: {type(error).__name__}: {one_line(str(error))}"
        ) from None
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise AgentloadError(f"{where}: {module_name} has no {path}")
    if not callable(found):
        raise AgentloadError(f"{where}: {path} of {module_name} is no function but {type(found).__name__}")
    function: ToolFunction = found
    try:
        inspect.signature(function).bind("", None, ToolContext("", "", ""))
    except TypeError as error:
        raise AgentloadError(f"{where}: must take (name, arguments, context): {error}") from None
    except ValueError:
        pass  # built in, and its signature not known
    return function


def _is_coroutine_function(function: ToolFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (an object whose __call__ is async)
    )


class PythonTools:
    """Runs a user's callable; see `ToolExecutor`. An async context manager."""

    def __init__(self, name: str) -> None:
        self._function = load_function(name)
        self._is_async = _is_coroutine_function(self._function)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        if self._is_async:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="agentload-tools", daemon=True
            )
            self._thread.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._loop is None or self._thread is None:
            return
        # A call that does not let itself be cancelled must not keep the run from ending.
        ending = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
        await asyncio.wait([asyncio.wrap_future(ending)], timeout=_GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _GRACE_S)

    async def call(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
        """See `ToolExecutor`."""
        if self._loop is not None:
            coroutine = self._awaited(name, arguments, context)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))
        return await self._in_thread(name, arguments, context)

    async def _awaited(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
        try:
            return _outcome(await self._function(name, arguments, context))
        except (Exception, FutureCancelledError) as error:
            return _failed_by(error)

    async def _in_thread(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ToolOutcome] = loop.create_future()

        def give(outcome: ToolOutcome) -> None:
            if not done.done():  # timed out
                done.set_result(outcome)

        def run() -> None:
            try:
                outcome = _outcome(self._function(name, arguments, context))
            except BaseException as error:
                outcome = _failed_by(error)
            try:
                loop.call_soon_threadsafe(give, outcome)
            except RuntimeError:
                return  # the run has ended, and nobody waits for it

        # Not a pool's thread: the interpreter would wait for one that hangs.
        threading.Thread(target=run, name="agentload-tool", daemon=True).start()
        return await done


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _outcome(result: Any) -> ToolOutcome:
    if isinstance(result, str):
        return ToolOutcome(result)
    return failed(f"the callable returned {type(result).__name__}, not str")


def _failed_by(error: BaseException) -> ToolOutcome:
    return failed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
