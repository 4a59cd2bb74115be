"""How close the simulator's server keeps to the engine's schedule: |arrival - scheduled| of every event.

    python benchmarks/server_pacing.py                # 12 and 100 streams, 291 us a token
    python benchmarks/server_pacing.py --json --seconds 5 --streams 1 12 100

The server runs in a process of its own, with an engine whose schedule is known to the nanosecond. The
client, on another core, is the leanest reader that Python allows: non-blocking sockets on one epoll, a
timestamp of every read and the number of events in it. Both use the same monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentload_simbackend._api import Emission, Finished
from agentload_simbackend.testing import FixedStepEngine

EVENT_END = b"\n\n\r\n"
WARM_UP_EVENTS = 20
"""Events of a stream that are not judged, while connections are being set up."""

Reads = list[tuple[int, int]]
"""Time of a read, events that have arrived whole by then."""


class RecordingEngine(FixedStepEngine):
    """Remembers for each session when its first step was due, and how many steps it had."""

    def __init__(self, step_ns: int) -> None:
        super().__init__(step_ns=step_ns, prefill_ns=50_000_000)
        self.schedule: dict[str, tuple[int, int]] = {}

    def advance(self, now_ns: int) -> list[Emission]:
        emissions = super().advance(now_ns)
        for emission in emissions:
            if isinstance(emission, Finished):
                session_id = self.submitted[emission.request_id - 1].session_id
                self.schedule[session_id] = (emission.first_token_at_ns, emission.steps)
        return emissions


def take_core(last: bool, realtime: bool) -> None:
    """Pin this process to the first or the last core, if asked ahead of all ordinary processes."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores) if last else min(cores)})
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


async def serve(step_ns: int, tick_ns: int) -> dict[str, Any]:
    from agentload_simbackend._server import SimServer

    engine = RecordingEngine(step_ns)
    async with SimServer(engine, tick_ns=tick_ns) as server:
        gc.collect()  # as `agentload serve` does
        gc.freeze()
        gc.set_threshold(50_000)
        print(json.dumps({"url": server.url}), flush=True)
        cpu_start = time.process_time()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        cpu_s = time.process_time() - cpu_start
        return {"schedule": engine.schedule, "cpu_s": cpu_s, "pacing": server.pacing}


def request_bytes(session_id: str, tokens: int) -> bytes:
    messages = [{"role": "user", "content": session_id}]
    body = json.dumps({"model": "m", "stream": True, "max_tokens": tokens, "messages": messages}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-session-id: {session_id}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_streams(url: str, streams: int, tokens: int) -> list[Reads]:
    """Ask for `streams` answers at once and return the reads of each."""
    address = urlsplit(url)
    connections: dict[int, socket.socket] = {}
    reads: dict[int, Reads] = {}
    poll = select.epoll()
    for index in range(streams):
        connection = socket.create_connection((address.hostname or "", address.port or 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        connections[connection.fileno()] = connection
        reads[connection.fileno()] = []
        poll.register(connection, select.EPOLLIN)
        connection.send(request_bytes(f"s{index}", tokens))
    receive = {fd: connection.recv for fd, connection in connections.items()}
    carry = dict.fromkeys(reads, b"")
    now_ns, running = time.monotonic_ns, streams
    while running:
        for fd, _ in poll.poll():
            data = receive[fd](65_536)
            at_ns = now_ns()
            if carry[fd]:
                data = carry[fd] + data
            reads[fd].append((at_ns, data.count(EVENT_END)))
            carry[fd] = b"" if data.endswith(EVENT_END) else data[-(len(EVENT_END) - 1) :]
            if data.endswith(b"0\r\n\r\n") or not data:
                poll.unregister(fd)
                running -= 1
    for connection in connections.values():
        connection.close()
    return list(reads.values())


def errors_ns(reads: Reads, first_ns: int, steps: int, step_ns: int) -> list[int]:
    """|arrival - scheduled| of each event that carries a token; an event arrives with its last byte."""
    errors: list[int] = []
    seen = -1  # the first event gives the role and comes with the first token
    for at_ns, events in reads:
        for index in range(max(seen, 0), min(seen + events, steps)):
            errors.append(abs(at_ns - first_ns - index * step_ns))
        seen += events
    if len(errors) != steps:
        raise SystemExit(f"{len(errors)} events arrived, expected {steps}")
    return errors[WARM_UP_EVENTS:]


def measure(streams: int, options: argparse.Namespace) -> dict[str, Any]:
    step_ns = options.step_us * 1_000
    tokens = max(2 * WARM_UP_EVENTS, int(options.seconds * 1e9 / step_ns))
    command = [sys.executable, str(Path(__file__)), "--serve", f"--step-us={options.step_us}"]
    command += [f"--tick-us={options.tick_us}", *(["--realtime"] if options.realtime else [])]
    cores = os.sched_getaffinity(0)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        take_core(True, options.realtime)
        cpu_start = time.process_time()
        reads = read_streams(ready["url"], streams, tokens)
        client_cpu_s = time.process_time() - cpu_start
        os.sched_setaffinity(0, cores)
        result = json.loads(server.communicate()[0])
    errors = []
    for index, of_stream in enumerate(reads):
        first_ns, steps = result["schedule"][f"s{index}"]
        errors += errors_ns(of_stream, first_ns, steps, step_ns)
    errors.sort()
    wall_s = tokens * step_ns / 1e9
    return {
        "streams": streams,
        "events": len(errors),
        "reads": sum(map(len, reads)),
        "p50_ms": errors[len(errors) // 2] / 1e6,
        "p99_ms": errors[len(errors) * 99 // 100] / 1e6,
        "max_ms": errors[-1] / 1e6,
        "server_cpu_percent": 100 * result["cpu_s"] / wall_s,
        "client_cpu_percent": 100 * client_cpu_s / wall_s,
        "server_pacing": result["pacing"],
    }


def print_table(rows: list[dict[str, Any]], step_us: int) -> None:
    print(f"|arrival - scheduled| of every event, one token each {step_us} us a stream")
    print("streams   events    reads  p50 ms  p99 ms  max ms  server p50/p99 ms  CPU server/client")
    for row in rows:
        pacing = row["server_pacing"]
        late = f"{pacing['lateness_p50_ms']:7.3f}/{pacing['lateness_p99_ms']:.3f}"
        print(
            f"{row['streams']:7} {row['events']:8} {row['reads']:8} {row['p50_ms']:7.3f} "
            f"{row['p99_ms']:7.3f} {row['max_ms']:7.2f}   {late}     "
            f"{row['server_cpu_percent']:6.0f} %/{row['client_cpu_percent']:.0f} %"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pacing of the simulator's HTTP server.")
    parser.add_argument("--streams", type=int, nargs="+", default=[12, 100])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run")
    parser.add_argument("--step-us", type=int, default=291, help="decode step of the engine")
    parser.add_argument("--tick-us", type=int, default=500, help="steps closer than this share a write")
    parser.add_argument("--realtime", action="store_true", help="run under SCHED_FIFO (needs the privilege)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        take_core(False, options.realtime)
        from agentload_simbackend._usloop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            print(json.dumps(runner.run(serve(options.step_us * 1_000, options.tick_us * 1_000))))
        return
    rows = [measure(streams, options) for streams in options.streams]
    if options.json:
        print(json.dumps(rows))
    else:
        print_table(rows, options.step_us)


if __name__ == "__main__":
    main()
