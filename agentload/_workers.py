"""Runs a wall-clock run in several processes; this one is the only one that writes the run directory.

Each worker plays its share of the sessions, on one clock, and its rows come through a pipe. Ctrl-C, or what
has the effect of it, goes to this process alone: it tells the workers.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, monotonic_ns
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from agentload._rows import WallSink
from agentload._worker import CLIENT, DONE, DRAIN, FAILED, GO, READY, REQUEST, STOP, TOOL_CALL, Job
from agentload_traces import AgentloadError, ClientRow, RequestRow, ToolCallRow

LEAD_NS = 150_000_000
"""From when all workers are ready to the run's start: they learn of it, and build their first turns."""

_GRACE_S = 15.0
"""How long a worker that is to stop may take; then it is killed."""

_LOOK_S = 0.1


class WorkersEnded(NamedTuple):
    """results: what the entry returned in each worker. interrupted: the run was told to end early."""

    results: list[Any]
    interrupted: bool


def run_workers(
    entry: str,
    argument: object,
    count: int,
    sink: WallSink,
    *,
    clock_start_ns: int = 0,
    on_start: Callable[[int], None] = lambda origin_ns: None,
    progress: Callable[[], None] = lambda: None,
    interrupted: Callable[[bool], None] = lambda again: None,
) -> WorkersEnded:
    """Play a run in `count` processes and hand their rows to `sink`; returns when all have ended.

    entry: "module:function" that each calls with `argument` (anything that can be pickled; it goes through a
        pipe, so it may hold secrets) and its `_worker.Worker`. The function makes its feed with
        `share=worker.share`, gives its rows to the worker, which is a sink, awaits `worker.begin()` when it
        is ready to send, for the origin of the clock, and hands `worker.listen` what ends its run in order
        and at once. What it returns must be plain data for JSON.
    clock_start_ns: what the run's clock reads at its start. on_start: called with the time
        (`time.monotonic_ns`) at which it reads 0, before any worker sends.
    progress: called after each turn that was sent and ended.
    interrupted: called at the first Ctrl-C (False), which drains the workers, and at the second (True), which
        stops them.

    Raises `AgentloadError` that names the worker if one dies or fails. The others are stopped before, and
    what they recorded is with the sink. `KeyboardInterrupt` before the run has begun.
    """
    parent = _Parent(count, sink, progress)
    try:
        parent.start(entry, argument)
        while not parent.all_ready:
            parent.look()
        origin_ns = monotonic_ns() + LEAD_NS - clock_start_ns
        if parent.failure is None:
            on_start(origin_ns)
            with _counted_ctrl_c() as presses:
                parent.tell(b"%b %d" % (GO, origin_ns))
                while parent.running:
                    parent.look()
                    sink.tick(monotonic_ns() - origin_ns)
                    while presses:
                        presses.pop()
                        interrupted(parent.end_early())
    finally:
        parent.close()
    if parent.failure is not None:
        raise AgentloadError(parent.failure)
    return WorkersEnded(parent.results, parent.told is not None)


class _Child:
    """One worker, as this process sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready = False
        self.ended = False  # it said its last line
        self.rest = b""
        # A group of its own, so that Ctrl-C reaches the parent alone.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentload._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # that it has died is found by reading
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def give(self, job: Job) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            pickle.dump(job, self.process.stdin)
            self.process.stdin.flush()

    def fate(self) -> str:
        """How it died."""
        code = self.process.wait()
        if code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


class _Parent:
    """All workers: what they send, and what they are told."""

    def __init__(self, count: int, sink: WallSink, progress: Callable[[], None]) -> None:
        self._count = count
        self._sink = sink
        self._progress = progress
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._request = msgspec.json.Decoder(RequestRow).decode
        self._tool_call = msgspec.json.Decoder(ToolCallRow).decode
        self._client = msgspec.json.Decoder(ClientRow).decode
        self.results: list[Any] = [None] * count
        self.failure: str | None = None
        self.told: bytes | None = None

    def start(self, entry: str, argument: object) -> None:
        for number in range(self._count):
            child = _Child(number)
            self._children.append(child)
            assert child.process.stdout is not None
            os.set_blocking(child.process.stdout.fileno(), False)
            self._selector.register(child.process.stdout, selectors.EVENT_READ, child)
        for child in self._children:
            child.give(Job(entry, argument, child.number, self._count))

    @property
    def all_ready(self) -> bool:
        """All are ready, or one never will be."""
        return self.failure is not None or all(child.ready or child.ended for child in self._children)

    @property
    def running(self) -> bool:
        return bool(self._selector.get_map())

    def end_early(self) -> bool:
        """Tell the workers to drain, and at once to stop if they were told before; whether they were."""
        again = self.told is not None
        self.told = STOP if again else DRAIN
        if again:
            self._stop()
        else:
            self.tell(DRAIN)
        return again

    def tell(self, line: bytes) -> None:
        for child in self._children:
            child.say(line)

    def _stop(self) -> None:
        self.tell(STOP)
        if self._kill_at is None:
            self._kill_at = monotonic() + _GRACE_S

    def look(self) -> None:
        """Take what has come, waiting a moment for it."""
        for key, _ in self._selector.select(_LOOK_S):
            self._read(key.data)
        if self._kill_at is not None and monotonic() > self._kill_at:
            for child in self._children:
                child.process.kill()

    def _read(self, child: _Child) -> None:
        assert child.process.stdout is not None
        data = os.read(child.process.stdout.fileno(), 1 << 20)
        if not data:
            self._selector.unregister(child.process.stdout)
            if not child.ended:
                self._fail(f"worker {child.number + 1} of {self._count} {child.fate()} during the run")
            return
        *lines, child.rest = (child.rest + data).split(b"\n")
        for line in lines:
            self._take(child, line[:1], line[1:])

    def _take(self, child: _Child, kind: bytes, body: bytes) -> None:
        if kind == REQUEST:
            row = self._request(body)
            self._sink.add_request(row)
            if row.status not in ("retried", "skipped"):
                self._progress()
        elif kind == TOOL_CALL:
            self._sink.add_tool_call(self._tool_call(body))
        elif kind == CLIENT:
            self._sink.add_client(self._client(body))
        elif kind == READY:
            child.ready = True
        else:
            child.ended = True
            if kind == DONE:
                self.results[child.number] = msgspec.json.decode(body)
            elif kind == FAILED:
                self._fail(msgspec.json.decode(body, type=str))

    def _fail(self, why: str) -> None:
        """One worker has failed; the others end in order."""
        if self.failure is None:
            self.failure = why
            self._stop()

    def close(self) -> None:
        """End what still runs; a worker ends by itself when its standard input does."""
        for child in self._children:
            if child.process.stdin is not None:
                with suppress(OSError):
                    child.process.stdin.close()
        for child in self._children:
            try:
                child.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            if child.process.stdout is not None:
                child.process.stdout.close()
        self._selector.close()


@contextmanager
def _counted_ctrl_c() -> Iterator[list[int]]:
    """Within the block SIGINT adds to a list instead of raising; only the main thread gets signals."""
    presses: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield presses
        return

    def handle(signal_number: int, frame: FrameType | None) -> None:
        presses.append(signal_number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield presses
    finally:
        signal.signal(signal.SIGINT, before)
