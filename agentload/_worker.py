"""A worker process: plays its share of a run and sends the rows to the process that writes them.

Started by `_workers` as `python -m agentload._worker`. Its standard input is the parent: first the job, then
what the run is to do, a line each; when it ends the parent is gone, and so is this process, at once. Its
standard output are the rows, a line each, with a letter for what they are.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from queue import SimpleQueue
from time import get_clock_info, monotonic_ns, perf_counter_ns
from typing import Any, BinaryIO, NamedTuple

import msgspec

from agentload_traces import AgentloadError, ClientRow, RequestRow, ToolCallRow

REQUEST, TOOL_CALL, CLIENT, READY, DONE, FAILED = b"r", b"t", b"c", b"R", b"D", b"E"
"""What a line to the parent holds: a row of one of three tables, that the worker is ready to start, what its
share gave, or why it ended."""

GO, DRAIN, STOP = b"go", b"drain", b"stop"
"""What the parent says. `GO` is followed by the time at which the run's clock reads 0."""


_ONE_CLOCK = get_clock_info("monotonic").implementation == get_clock_info("perf_counter").implementation


class Job(NamedTuple):
    """What a worker process is to do.

    entry: "module:function", called with `argument` and the `Worker`; what it returns goes to the parent.
    number, workers: which of how many workers this is.
    """

    entry: str
    argument: Any
    number: int
    workers: int


class Worker:
    """A worker's side of a run: the sink of its rows, and what the parent says."""

    def __init__(self, number: int, count: int, control: BinaryIO, rows: int) -> None:
        self.share = (number, count)
        self._encode = msgspec.json.Encoder().encode
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._control = control
        self._rows = rows
        self._origin_ns: SimpleQueue[int] = SimpleQueue()
        self._lock = threading.Lock()
        self._ends_said: list[bytes] = []
        self._on_end: Callable[[bytes], None] | None = None
        self._writing = threading.Thread(target=self._write, daemon=True)
        self._writing.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def add_request(self, row: RequestRow) -> None:
        """See `RowSink`."""
        self._lines.put(REQUEST + self._encode(row))

    def add_tool_call(self, row: ToolCallRow) -> None:
        """See `RowSink`."""
        self._lines.put(TOOL_CALL + self._encode(row))

    def add_client(self, row: ClientRow) -> None:
        """A row of what the worker saw of itself."""
        self._lines.put(CLIENT + self._encode(row))

    def tick(self, now_ns: int) -> None:
        """See `RowSink`; the parent looks after the disk."""

    async def begin(self) -> int:
        """Tell the parent that this worker is ready, and wait for the others.

        Returns the time (`time.perf_counter_ns`) at which the run's clock reads 0, the same in all workers;
        it reads the run's start a little later, so that the first turns can be built.
        """
        self._lines.put(READY)
        origin_ns = await asyncio.get_running_loop().run_in_executor(None, self._origin_ns.get)
        return origin_ns if _ONE_CLOCK else origin_ns + perf_counter_ns() - monotonic_ns()

    def listen(self, drain: Callable[[], object], stop: Callable[[], object]) -> None:
        """Have `drain` or `stop` called, on the running loop, when the parent says so or has said so."""
        loop = asyncio.get_running_loop()

        def on_end(said: bytes) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(drain if said == DRAIN else stop)

        with self._lock:
            self._on_end = on_end
            for said in self._ends_said:
                on_end(said)

    def finish(self, line: bytes) -> None:
        """Send the last line and wait until all are sent."""
        self._lines.put(line)
        self._lines.put(None)
        self._writing.join()

    def _listen(self) -> None:
        for line in self._control:
            said = line.strip()
            if said.startswith(GO):
                self._origin_ns.put(int(said[len(GO) :]))
                continue
            with self._lock:
                self._ends_said.append(said)
                if self._on_end is not None:
                    self._on_end(said)
        # Nobody takes rows any more, and what this process sends would be measured by nobody.
        os._exit(1)

    def _write(self) -> None:
        more = True
        while more:
            lines = [self._lines.get()]
            while not self._lines.empty():
                lines.append(self._lines.get())
            more = lines[-1] is not None
            data = memoryview(b"".join(line + b"\n" for line in lines if line is not None))
            try:
                while data:
                    data = data[os.write(self._rows, data) :]
            except OSError:
                os._exit(1)  # as in `_listen`


def _play(job: Job, worker: Worker) -> bytes:
    try:
        module, _, function = job.entry.partition(":")
        result = getattr(import_module(module), function)(job.argument, worker)
        return DONE + msgspec.json.encode(result)
    except AgentloadError as error:
        return FAILED + msgspec.json.encode(str(error))
    except BaseException as error:
        traceback.print_exc()
        why = f"worker {job.number + 1}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return FAILED + msgspec.json.encode(why)


def main() -> None:
    """Play the job that comes by the standard input."""
    # What a library or a user's tool prints must not come between the rows.
    control, rows = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    job: Job = pickle.load(control)
    worker = Worker(job.number, job.workers, control, rows)
    last = _play(job, worker)
    worker.finish(last)
    sys.stderr.flush()
    # Not by way of the interpreter's end, which would wait for threads that wait for the parent.
    os._exit(0 if last.startswith(DONE) else 1)


if __name__ == "__main__":
    # Under its own name, so that jobs that name its classes mean these.
    import_module("agentload._worker").main()
