"""What the replayer costs per token, as a ratio to the leanest reader.

A server process paces 12 streams at 291 us a token, one event a token. The reference is a bare
asyncio.Protocol on uvloop that stores (time, bytes) and looks for the end of the body. The replayer's
client is measured whole: HTTP, stamping, parsing, counting tokens by arrival. Both run in this process,
in turn, several times; CPU time is that of the process, all threads included.

    python benchmarks/client_cpu.py [--streams 12] [--tokens 3000] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import uvloop

from agentload._answers import parse_answer
from agentload._http_client import HttpRequest, StampingClient

SERVER = """
import asyncio, sys
from agentload_simbackend import SimServer
from agentload_simbackend.testing import FixedStepEngine
async def main():
    async with SimServer(FixedStepEngine(step_ns=291_000), seed=0, model="m") as server:
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
from agentload_simbackend._usloop import new_event_loop
with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main())
"""


def body(tokens: int) -> bytes:
    message = {"role": "user", "content": "hello " * 64}
    return json.dumps({"model": "m", "messages": [message], "stream": True, "max_tokens": tokens}).encode()


class LeanReader(asyncio.Protocol):
    """Timestamps and bytes, nothing else."""

    def __init__(self, payload: bytes, done: asyncio.Future[int]) -> None:
        self._payload, self._done = payload, done
        self.reads: list[tuple[int, bytes]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: l\r\nContent-Type: application/json\r\n"
        transport.write(f"{head}Content-Length: {len(self._payload)}\r\n\r\n".encode() + self._payload)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.perf_counter_ns(), data))
        if data.endswith(b"0\r\n\r\n"):
            self._done.set_result(len(self.reads))
            self._transport.close()


async def lean(url: str, streams: int, tokens: int) -> int:
    loop = asyncio.get_running_loop()
    where = urlsplit(url)
    waiting = []
    for _ in range(streams):
        done: asyncio.Future[int] = loop.create_future()
        await loop.create_connection(lambda d=done: LeanReader(body(tokens), d), where.hostname, where.port)
        waiting.append(done)
    return sum(await asyncio.gather(*waiting))


async def replayer(url: str, streams: int, tokens: int) -> int:
    loop = asyncio.get_running_loop()
    reads = 0
    with ThreadPoolExecutor(max_workers=1) as parser:
        async with StampingClient() as client:

            async def one() -> None:
                nonlocal reads
                answer = await client.post(HttpRequest(f"{url}/v1/chat/completions", body(tokens), {}))
                parsed = await loop.run_in_executor(parser, parse_answer, answer)
                assert (parsed.error, parsed.output_tokens) == (None, tokens), parsed
                reads += len(answer.marks.at_ns)

            await asyncio.gather(*(one() for _ in range(streams)))
    return reads


def measure(kind: object, url: str, streams: int, tokens: int) -> tuple[float, float]:
    """CPU microseconds per token, and reads per token."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before = time.process_time()
        reads = runner.run(kind(url, streams, tokens))  # type: ignore[operator]
        return (time.process_time() - before) * 1e6 / (streams * tokens), reads / (streams * tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        results: dict[str, list[tuple[float, float]]] = {"lean": [], "replayer": []}
        for _ in range(args.rounds + 1):
            results["lean"].append(measure(lean, url, args.streams, args.tokens))
            results["replayer"].append(measure(replayer, url, args.streams, args.tokens))
        server.communicate("")
    # The first round warms up.
    cpu = {name: [us for us, _ in rounds[1:]] for name, rounds in results.items()}
    ratios = [a / b for a, b in zip(cpu["replayer"], cpu["lean"], strict=True)]
    summary = {
        "streams": args.streams,
        "tokens": args.tokens,
        "cpu_us_per_token": {name: statistics.median(values) for name, values in cpu.items()},
        "reads_per_token": {name: rounds[-1][1] for name, rounds in results.items()},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }
    if args.json:
        print(json.dumps(summary))
        return
    for name, us in summary["cpu_us_per_token"].items():  # type: ignore[attr-defined]
        print(f"{name:9} {us:6.2f} us of CPU a token, {summary['reads_per_token'][name]:.2f} reads a token")  # type: ignore[index]
    print(f"ratio     {statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
