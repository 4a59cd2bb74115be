"""This machine's own error: a short replay of a run's shape against a server that tells the truth.

The client is the run's own: `StampingClient` on the same event loop, answers read in a thread meanwhile. The
server (`_null_server`) is a process of its own that tells afterwards when it wrote each token. What the two
tell differently is the client's doing, and the machine's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import NamedTuple

import msgspec

from agentload._answers import ParsedAnswer
from agentload._baseline_figures import Level, Sample, baseline_of, kept_up
from agentload._child_server import child_server
from agentload._event_loop import run_to_its_end
from agentload._http_client import Connection, HttpRequest, StampingClient, Timeouts
from agentload._parsing import AnswerParser
from agentload._quiet_gc import quiet_gc
from agentload._wall_clock import RunClock
from agentload_traces import AgentloadError, Baseline

FAST_STEP_NS = 291_000
"""Step to assume of an unknown endpoint: 3,436 tokens/s a user, as the fastest deployments are said to do."""

DURATION_S = 2.0
_PROBE_S = 0.5
_PROBES = 4
_MOST_TOKENS = 300_000
"""No level is measured with more tokens than this, for they are compared one by one."""

_PAUSE_NS = 2_000_000
"""From the end of an answer to the next request of its stream, so that its due time can be missed."""

_WANTED_ANSWERS = 100
"""So many answers a p99 of TTFT needs; they are made shorter than the run's to get there."""

LEAST_TOKENS = 32
"""No answer is made shorter."""


class Shape(NamedTuple):
    """What a run asks of the client. output_tokens: of one answer. prompt_bytes: of one request's body."""

    streams: int
    output_tokens: int
    prompt_bytes: int
    step_ns: int


def measure_baseline(
    streams: int,
    output_tokens: int,
    prompt_bytes: int,
    step_ns: int = FAST_STEP_NS,
    duration_s: float = DURATION_S,
) -> Baseline:
    """Measure the own error of this machine at a run's shape; takes about 3 s, 5 s at the most by default.

    If the errors are large with so many streams, a few smaller numbers are tried to find how many are well.
    Raises `AgentloadError` if the server cannot be started. Not to be called on a running event loop.
    """
    shape = Shape(streams, output_tokens, prompt_bytes, step_ns)
    with null_server(step_ns) as url:
        return run_to_its_end(_measure(url, shape, duration_s))


@contextmanager
def null_server(step_ns: int) -> Iterator[str]:
    """Serve tokens `step_ns` apart in a process of its own; yields its URL, without `/v1`."""
    arguments = ["agentload._null_server", "--step-ns", str(step_ns)]
    with child_server("the null server", arguments) as server:
        yield f"http://127.0.0.1:{server.said}"


async def _measure(url: str, shape: Shape, duration_s: float) -> Baseline:
    timeouts = Timeouts(connect_s=10.0, first_token_s=None, stall_s=10.0, total_s=None)
    with tempfile.TemporaryDirectory(prefix="agentload-") as held:
        async with StampingClient(
            connection=Connection(), timeouts=timeouts, shows_token=lambda body: True
        ) as client:
            with AnswerParser(Path(held), "chat") as parser, RunClock() as clock, quiet_gc():
                bench = _Bench(client, parser, clock, url, shape)
                level = await bench.level(shape.streams, duration_s)
                trusted: int | None = shape.streams
                if not kept_up(level):
                    trusted = await most_streams(bench.holds, shape.streams)
    return baseline_of(level, trusted)


async def most_streams(holds: Callable[[int], Awaitable[bool]], too_many: int) -> int | None:
    """The most streams of a few numbers below `too_many` for which `holds`; `None` if not even one does."""
    if too_many <= 1 or not await holds(1):
        return None
    best = 1
    for _ in range(_PROBES - 1):
        # Halfway on a scale of ratios: 50 streams and 70 are as far apart as 5 and 7.
        probe = round((best * too_many) ** 0.5)
        if not best < probe < too_many:
            break
        if await holds(probe):
            best = probe
        else:
            too_many = probe
    return best


class _Truth(msgspec.Struct):
    """What the server tells of one answer."""

    received_ns: int
    written_ns: list[int]


class _Bench:
    """Runs streams against the null server, side by side."""

    def __init__(
        self, client: StampingClient, parser: AnswerParser, clock: RunClock, url: str, shape: Shape
    ) -> None:
        self._client = client
        self._parser = parser
        self._clock = clock  # not started, it reads `perf_counter_ns`
        self._url = url
        self._shape = shape
        self._numbers = count()
        self._warm = 0

    async def holds(self, streams: int) -> bool:
        """Whether the client keeps up with so many streams, tried for a short time."""
        return kept_up(await self.level(streams, _PROBE_S))

    async def level(self, streams: int, duration_s: float) -> Level:
        """So many streams for a time; the connections are opened before it starts."""
        step_ns = self._shape.step_ns
        duration_ns = round(min(duration_s * 1e9, max(_MOST_TOKENS // streams, 1) * step_ns))
        tokens = self._answer_tokens(streams, duration_ns)
        body = self._body(tokens)
        if streams > self._warm:
            short = self._body(2)
            await asyncio.gather(*(self._ask(short, perf_counter_ns()) for _ in range(streams)))
            self._warm = streams
        await self._truths()
        began_ns, cpu_ns = perf_counter_ns(), process_time_ns()
        # Spread over an answer's time: in a run turns do not all begin at once, and their ends do not meet.
        spread_ns = tokens * step_ns // streams
        asked = await asyncio.gather(
            *(self._stream(body, began_ns + n * spread_ns, began_ns + duration_ns) for n in range(streams))
        )
        took_ns, cpu_ns = perf_counter_ns() - began_ns, process_time_ns() - cpu_ns
        truths = await self._truths()
        samples = [
            _sample(answer, truths.get(answer.request_id), tokens) for stream in asked for answer in stream
        ]
        return Level(streams, tokens, step_ns, samples, cpu_ns, took_ns)

    def _answer_tokens(self, streams: int, duration_ns: int) -> int:
        fitting = duration_ns * streams // (_WANTED_ANSWERS * self._shape.step_ns)
        return max(2, min(self._shape.output_tokens, max(fitting, LEAST_TOKENS)))

    def _body(self, tokens: int) -> bytes:
        message = {"role": "user", "content": "the " * (self._shape.prompt_bytes // 4)}
        return msgspec.json.encode(
            {"model": "null", "messages": [message], "stream": True, "max_completion_tokens": tokens}
        )

    async def _stream(self, body: bytes, due_ns: int, until_ns: int) -> list[_Asked]:
        """One request after the other until a time; at least one."""
        asked: list[_Asked] = []
        while not asked or due_ns < until_ns:
            await self._clock.until(due_ns)
            asked.append(await self._ask(body, due_ns))
            due_ns = perf_counter_ns() + _PAUSE_NS
        for answer in asked:
            await answer.parsed
        return asked

    async def _ask(self, body: bytes, due_ns: int) -> _Asked:
        request_id = str(next(self._numbers))
        headers = {"content-type": "application/json", "x-request-id": request_id}
        request = HttpRequest(f"{self._url}/v1/chat/completions", body, headers)
        answer = await self._client.post(request)
        parsed = asyncio.ensure_future(self._parser.parse(answer))
        return _Asked(request_id, due_ns, answer.sent_ns, parsed)

    async def _truths(self) -> dict[str, _Truth]:
        """What the server tells of the answers since it was last asked."""
        answer = await self._client.post(HttpRequest(f"{self._url}/truth", b"{}", {}))
        if answer.error is not None:
            raise AgentloadError(f"the null server does not answer: {answer.error}")
        return msgspec.json.decode(answer.body, type=dict[str, _Truth])


class _Asked(NamedTuple):
    """A request that was answered."""

    request_id: str
    due_ns: int
    sent_ns: int
    parsed: asyncio.Future[ParsedAnswer]


def _sample(asked: _Asked, truth: _Truth | None, tokens: int) -> Sample:
    """What the client saw beside what the server did."""
    seen: list[int] = []
    for at_ns, count_there in asked.parsed.result().arrivals:
        seen += [at_ns] * count_there
    written = truth.written_ns if truth is not None else []
    received_ns = truth.received_ns if truth is not None else 0
    return Sample(asked.due_ns, asked.sent_ns, received_ns, written, seen, max(0, tokens - len(seen)))
