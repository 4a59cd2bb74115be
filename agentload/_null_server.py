"""A server that does nothing but keep time, in a process of its own: `python -m agentload._null_server`.

It answers any POST with an OpenAI chat stream of as many tokens as `max_completion_tokens` (or `max_tokens`)
asks for, one token an event, one event a step. The steps are on one absolute schedule that all streams share,
as those of an engine's decode batch are: every step brings one burst of writes. Tokens that are due together,
because the server or its machine was late, go out in one write.

It tells the truth about itself afterwards, so that telling disturbs no stream: `POST /truth` answers
`{"REQUEST ID": {"received_ns": ..., "written_ns": [...]}, ...}` for the answers that ended since it was last
asked, by the `x-request-id` of their requests. Times are `time.perf_counter_ns`, which is one clock for all
processes of a machine: `received_ns` when the whole request had been read, `written_ns` just before each
token was handed to the operating system.

It imports only small modules of the standard library, prints its port, and ends with its standard input.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import select
import selectors
import socket
import sys
from array import array
from contextlib import suppress
from time import perf_counter_ns
from typing import NamedTuple

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_READ_BYTES = 1 << 20
_TIMER_SLACK_NS = 1_000
_PR_SET_TIMERSLACK = 29

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"\r\nx-request-id: *([^\r]*)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')


def _event(content: dict[str, object]) -> bytes:
    """One event as one chunk of the body."""
    data = {"id": "null", "object": "chat.completion.chunk", "created": 0, "model": "null", **content}
    event = b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _delta(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


_TOKEN = _delta({"content": " the"})  # one o200k token, and n of them are n
_FINISH = _delta({}, "stop")
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class _Truth(NamedTuple):
    """When a request had come, and when each token of its answer was written."""

    received_ns: int
    written_ns: array[int]


class _Connection:
    """A client's connection, and the answer that is written to it; `ended`: all but what is `unwritten`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.held = bytearray()
        self.unwritten = b""
        self.request_id = ""
        self.prompt_bytes = 0
        self.tokens = 0
        self.ended = False
        self.first_step = 0
        self.truth = _Truth(0, array("q"))


class NullServer:
    """The server; `run` serves until its standard input ends."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._origin_ns = perf_counter_ns()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4_096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._writing: dict[int, _Connection] = {}
        self._done: dict[str, _Truth] = {}
        self._open = True

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        port: int = self._listener.getsockname()[1]
        return port

    def run(self) -> None:
        """Serve until standard input ends."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        poll = self._selector.fileno()
        while self._open:
            # A selector's own time-out is in whole milliseconds; select(2) on its descriptor is not.
            wait_s = self._until_next_step_s()
            select.select((poll,), (), (), wait_s)
            for key, _ in self._selector.select(0):
                self._handle(key)
            if self._writing:
                self._step()

    def _until_next_step_s(self) -> float | None:
        if not self._writing:
            return None
        past_ns = (perf_counter_ns() - self._origin_ns) % self._step_ns
        return (self._step_ns - past_ns) / 1e9

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            with suppress(BlockingIOError):
                while True:
                    sock, _ = self._listener.accept()
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))
        elif key.data is None:
            self._open = bool(os.read(sys.stdin.fileno(), 4_096))  # standard input ends
        else:
            self._read(key.data)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        held = connection.held
        held += data
        head_end = held.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(held[: head_end + 2])
        found = _LENGTH.search(head)
        end = head_end + 4 + (int(found[1]) if found else 0)
        if len(held) < end:
            return
        body = bytes(held[head_end + 4 : end])
        del held[:end]
        if head.startswith(b"POST /truth"):
            self._tell(connection)
        elif head.startswith(b"POST "):
            self._begin(connection, head, body)
        else:
            self._write(connection, _plain(b'{"object":"list","data":[{"id":"null"}]}'))

    def _begin(self, connection: _Connection, head: bytes, body: bytes) -> None:
        received_ns = perf_counter_ns()
        asked = _TOKENS.search(body, max(0, len(body) - 4_096)) or _TOKENS.search(body)
        named = _REQUEST_ID.search(head)
        connection.request_id = named[1].decode("latin-1") if named else ""
        connection.prompt_bytes = len(body)
        connection.tokens = max(1, int(asked[1])) if asked else 1
        connection.first_step = (received_ns - self._origin_ns) // self._step_ns + 1
        connection.truth = _Truth(received_ns, array("q"))
        connection.ended = False
        self._writing[connection.sock.fileno()] = connection
        self._write(connection, _HEAD)

    def _step(self) -> None:
        """Write what is due by now."""
        step = (perf_counter_ns() - self._origin_ns) // self._step_ns
        for number, connection in list(self._writing.items()):
            if connection.unwritten:
                self._write(connection, b"")
                continue
            tokens, written = connection.tokens, connection.truth.written_ns
            due = min(tokens, step - connection.first_step + 1) - len(written)
            if due == 1:
                written.append(perf_counter_ns())
                self._write(connection, _TOKEN)
            elif due > 0:
                written.extend([perf_counter_ns()] * due)
                self._write(connection, _TOKEN * due)
            if connection.ended:
                self._writing.pop(number, None)
            elif len(written) == tokens:
                self._end(connection)

    def _end(self, connection: _Connection) -> None:
        prompt, tokens = connection.prompt_bytes // 4, connection.tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        connection.ended = True
        self._done[connection.request_id] = connection.truth
        self._write(connection, _FINISH + _event({"choices": [], "usage": usage}) + _END)

    def _tell(self, connection: _Connection) -> None:
        told = {
            name: {"received_ns": truth.received_ns, "written_ns": truth.written_ns.tolist()}
            for name, truth in self._done.items()
        }
        self._done.clear()
        # Nothing is timed now, so the whole of it may be waited for.
        with suppress(OSError):
            connection.sock.setblocking(True)
            connection.sock.sendall(_plain(json.dumps(told, separators=(",", ":")).encode()))
            connection.sock.setblocking(False)

    def _write(self, connection: _Connection, data: bytes) -> None:
        """Send; what the system does not take at once is kept for the next step."""
        data = connection.unwritten + data if connection.unwritten else data
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        connection.unwritten = b"" if sent == len(data) else data[sent:]

    def _close(self, connection: _Connection) -> None:
        if connection.sock.fileno() >= 0:
            self._writing.pop(connection.sock.fileno(), None)
            self._selector.unregister(connection.sock)
            connection.sock.close()


def _plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def _fine_timers() -> None:
    """Let the waits of this thread end within a microsecond of their time; Linux adds 50 otherwise."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS, 0, 0, 0)


def main() -> None:
    """Serve, as the command line says."""
    parser = argparse.ArgumentParser(description="A server that does nothing but keep time.")
    parser.add_argument("--step-ns", type=int, required=True, help="time from one token to the next")
    server = NullServer(parser.parse_args().step_ns)
    _fine_timers()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    gc.disable()
    server.run()


if __name__ == "__main__":
    main()
