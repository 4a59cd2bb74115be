"""JSON-RPC 2.0 with a child process, a message a line on its standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from agentload._one_line import one_line

LONGEST_LINE_BYTES = 64 * 1024 * 1024
"""A longer message ends the connection."""

_GRACE_S = 2.0
"""How long the child may take to end once its input has ended, and once more after SIGTERM."""

_METHOD_NOT_FOUND = -32601


class RpcError(Exception):
    """A request that was refused, or that cannot be answered any more; one line."""


class ChildRpc:
    """Requests to a child process; any number may be on their way at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0
        self._said: deque[str] = deque(maxlen=20)
        self._over: str | None = None
        self._errors = asyncio.create_task(self._read_errors())
        self._answers = asyncio.create_task(self._read_answers())

    @classmethod
    async def start(cls, command: Sequence[str], hidden: Collection[str]) -> ChildRpc:
        """Start the child, in a group of its own so that Ctrl-C does not reach it. Raises `OSError`.

        hidden: names of environment variables that it does not get.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LONGEST_LINE_BYTES,
            env={name: value for name, value in os.environ.items() if name not in hidden},
        )
        return cls(process)

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request. Raises `RpcError`; tells the child if it is cancelled."""
        if self._over is not None:
            raise RpcError(self._over)
        self._requests += 1
        number = self._requests
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            await self._send({"id": number, "method": method, "params": params})
            return await answer
        except asyncio.CancelledError:
            with suppress(RpcError):
                self._write(
                    {
                        "method": "notifications/cancelled",
                        "params": {"requestId": number, "reason": "timed out"},
                    }
                )
            raise
        finally:
            del self._pending[number]

    async def notify(self, method: str) -> None:
        """Tell the child something. Raises `RpcError`."""
        await self._send({"method": method})

    async def end(self) -> None:
        """End the child in order: its input ends, then SIGTERM, then SIGKILL."""
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await process.wait()
                    break
        # A grandchild may still hold the pipes open.
        for task in (self._answers, self._errors):
            task.cancel()
        await asyncio.gather(self._answers, self._errors, return_exceptions=True)
        self._end_all("the MCP server was ended")
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            self._write(message)
        except RpcError:
            await asyncio.wait([self._answers], timeout=2 * _GRACE_S)  # until it is known why
            raise RpcError(self._over or "the MCP server has closed its input") from None
        assert self._process.stdin is not None
        with suppress(OSError):  # the answer's end tells why
            await self._process.stdin.drain()

    def _write(self, message: dict[str, Any]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        if stdin.is_closing():
            raise RpcError("the MCP server has closed its input")
        stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    async def _read_answers(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            async for line in stdout:
                self._take(line)
        except ValueError:
            why = f"the MCP server sent a line longer than {LONGEST_LINE_BYTES:,} bytes"
        else:
            why = await self._why_it_ended()
        self._end_all(why)

    async def _why_it_ended(self) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                code = await self._process.wait()
                await asyncio.wait([self._errors], timeout=_GRACE_S)
                last = self._said[-1] if self._said else "it said nothing"
                return f"the MCP server ended (exit code {code}): {last}"
        return "the MCP server closed its output"

    def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return  # something that it printed
        if not isinstance(message, dict):
            return
        number = message.get("id")
        if "method" in message:
            if number is not None:
                self._answer(number, message["method"])
            return
        pending = self._pending.get(number) if isinstance(number, int) else None
        if pending is None or pending.done():
            return
        if "error" in message:
            error = message["error"]
            told = error.get("message", error) if isinstance(error, dict) else error
            pending.set_exception(RpcError(one_line(str(told))))
        else:
            pending.set_result(message.get("result"))

    def _answer(self, number: Any, method: Any) -> None:
        """The child asks for something: it can be sure of us, and that is all there is."""
        with suppress(RpcError):
            if method == "ping":
                self._write({"id": number, "result": {}})
            else:
                refusal = {"code": _METHOD_NOT_FOUND, "message": f"{method} is not supported"}
                self._write({"id": number, "error": refusal})

    async def _read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with suppress(ValueError):
            async for line in stderr:
                if said := one_line(line.decode(errors="replace")):
                    self._said.append(said)

    def _end_all(self, why: str) -> None:
        self._over = self._over or why
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(RpcError(self._over))
