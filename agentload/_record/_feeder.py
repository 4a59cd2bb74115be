"""Takes the proxy's copies to the process that reads them; neither may hold up the proxy."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from agentload._record._exchange import Exchange, Finish, Origin, Told, written
from agentload._record._worker import READY, Recorded, WorkerOptions
from agentload_traces import AgentloadError


class Feeder:
    """A process, and a thread that writes to it."""

    def __init__(self, options: WorkerOptions, died: Callable[[], object] = lambda: None) -> None:
        """died: called from the thread when the process has died, and what comes is lost from then on."""
        self._died = died
        self._queue: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._release: Callable[[int], object] = lambda size: None
        self.lost = 0
        """Exchanges that the process did not take, because it had died."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentload._record._worker", msgspec.json.encode(options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C reaches the proxy alone, which then ends this in order
        )
        self._thread = threading.Thread(target=self._write, name="copies", daemon=True)

    def wait_until_ready(self) -> None:
        """Wait until the process has loaded all it needs; raises `AgentloadError` if it does not start."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            raise AgentloadError(
                f"the process that reads the copies did not start (exit code {self._process.wait()})"
            )

    def start(self, start_ns: int, release: Callable[[int], object]) -> None:
        """Tell when the recording began. release: called from the thread, with the size of what has left."""
        self._release = release
        self._queue.put(Origin(start_ns))
        self._thread.start()

    def put(self, exchange: Exchange) -> None:
        """Hand on an exchange; takes no time."""
        self._queue.put(exchange)

    def finish(self) -> Recorded | None:
        """Have the trace written, and wait for it; `None` if the process has died."""
        self._queue.put(Finish())
        self._thread.join()
        assert self._process.stdout is not None
        said = self._process.stdout.read()
        self._process.stdout.close()
        self._process.wait()
        if self._process.returncode != 0 or not said:
            return None
        return msgspec.json.decode(said, type=Recorded)

    def abandon(self) -> None:
        """End the process without a trace; what it has stays in its journal."""
        self._process.kill()
        self._queue.put(Finish())
        if self._thread.ident is not None:
            self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()

    def _write(self) -> None:
        assert self._process.stdin is not None
        alive = True
        while True:
            told = self._queue.get()
            if alive:
                try:
                    for data in written(told):
                        self._process.stdin.write(data)
                    self._process.stdin.flush()
                except OSError:
                    alive = False
                    self._died()
            if isinstance(told, Finish):
                break
            if isinstance(told, Exchange):
                self.lost += not alive
                self._release(told.held_bytes)
        with suppress(OSError):
            self._process.stdin.close()
