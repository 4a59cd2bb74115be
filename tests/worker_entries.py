"""What the workers of `test_workers` play; imported by their processes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from typing import Any

from agentload._worker import Worker
from agentload_traces import AgentloadError, ClientRow, RequestRow, ToolCallRow
from agentload_traces._results import RequestStatus


def rows(argument: dict[str, Any], worker: Worker) -> dict[str, Any]:
    """Give so many turns, each after its tool call, and print what must not come between them."""

    async def play() -> int:
        origin_ns = await worker.begin()
        for number in range(argument["turns"]):
            session_id, turn_id = f"s{worker.share[0]}", f"t{number}"
            worker.add_tool_call(
                ToolCallRow(session_id=session_id, turn_id=turn_id, call_index=0, start_ns=1, end_ns=2)
            )
            status: RequestStatus = (
                "retried" if number % 100 == 8 else "skipped" if number % 100 == 9 else "ok"
            )
            text = f"line\n{number} \u00e9" if number % 100 == 7 else None
            worker.add_request(
                RequestRow(
                    session_id=session_id, turn_id=turn_id, turn_index=number, status=status, error=text
                )
            )
        sys.stdout.write("a tool that talks\n")
        sys.stdout.flush()
        os.write(1, b"and a library\n")
        worker.add_client(ClientRow(at_ns=1, span_ns=1, worker=worker.share[0]))
        return origin_ns

    return {"origin_ns": asyncio.run(play()), "share": worker.share, "argument": argument}


def until_told(argument: dict[str, Any], worker: Worker) -> list[str]:
    """Give a row, then wait to be told to end; `stubborn` ones go on until they are told twice."""
    said: list[str] = []

    async def play() -> None:
        await worker.begin()
        ended = asyncio.Event()

        def drain() -> None:
            said.append("drain")
            if not argument.get("stubborn"):
                ended.set()

        def stop() -> None:
            said.append("stop")
            ended.set()

        worker.listen(drain, stop)
        worker.add_request(RequestRow(session_id=f"s{worker.share[0]}", turn_id="t", turn_index=os.getpid()))
        await ended.wait()

    asyncio.run(play())
    return said


def one_dies(argument: dict[str, Any], worker: Worker) -> list[str]:
    """Worker 1 ends as the argument says, before the run or in it; the others wait to be told."""
    if worker.share[0] != 1 or argument["how"] == "waits":
        return until_told({}, worker)
    if argument["when"] == "running":
        asyncio.run(_one_row(worker))
    if argument["how"] == "exit":
        os._exit(3)
    if argument["how"] == "told":
        raise AgentloadError("the trace is gone")
    sys.stderr = io.StringIO()  # its traceback is no news here
    raise RuntimeError("a defect\nof two lines")


async def _one_row(worker: Worker) -> None:
    await worker.begin()
    worker.add_request(RequestRow(session_id="s1", turn_id="t", turn_index=os.getpid()))


def never_ready(argument: object, worker: Worker) -> None:
    """Press Ctrl-C at the parent, and wait for its end."""
    if worker.share[0] == 0:
        os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait()
