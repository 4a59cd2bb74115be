"""The leanest asyncio client of a stream: the reference for what a client must cost.

    python benchmarks/lean_reader.py PORT OUT --streams 12 --requests 60 --tokens 256 [--parse]

One hand-written protocol a stream on uvloop: a stamp for each read, the chunks taken apart, the events that
carry a token counted. --parse: each event is decoded as JSON, as a client that believes nothing has to.
OUT: a line an answer, [id, sent, [time of a read, ...], [tokens in it, ...]], by `time.monotonic_ns`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import cast

import msgspec
import uvloop

_decode = msgspec.json.Decoder().decode
Answer = tuple[str, int, list[int], list[int]]


class Reader(asyncio.Protocol):
    """Sends one request after the other on one connection."""

    def __init__(self, payload: bytes, numbers: Iterator[int], parse: bool, answers: list[Answer]) -> None:
        self._payload = payload
        self._numbers = numbers
        self._tokens = _parsed_tokens if parse else _counted_tokens
        self._answers = answers
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def _next(self) -> None:
        number = next(self._numbers, None)
        if number is None:
            self._transport.close()
            self.done.set_result(None)
            return
        self._head, self._rest, self._event = True, b"", b""
        self._answer: Answer = (f"r{number}", monotonic_ns(), [], [])
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: l\r\nContent-Type: application/json\r\n"
            f"X-Request-ID: r{number}\r\nContent-Length: {len(self._payload)}\r\n\r\n"
        )
        self._transport.write(head.encode() + self._payload)

    def data_received(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        raw = self._rest + data if self._rest else data
        if self._head:
            head_end = raw.find(b"\r\n\r\n")
            if head_end < 0:
                self._rest = raw
                return
            raw, self._head = raw[head_end + 4 :], False
        parts, at, ended = [], 0, False
        while (line_end := raw.find(b"\r\n", at)) >= 0:
            size = int(raw[at:line_end], 16)
            after = line_end + 4 + size
            if after > len(raw):
                break
            if size == 0:
                ended = True
                break
            parts.append(raw[line_end + 2 : after - 2])
            at = after
        self._rest = raw[at:]
        if parts:
            *events, self._event = (self._event + b"".join(parts)).split(b"\n\n")
            if tokens := self._tokens(events):
                self._answer[2].append(now_ns)
                self._answer[3].append(tokens)
        if ended:
            self._answers.append(self._answer)
            self._next()


def _counted_tokens(events: list[bytes]) -> int:
    return sum(b'"content":' in event for event in events)


def _parsed_tokens(events: list[bytes]) -> int:
    tokens = 0
    for event in events:
        data = event[event.find(b"data: ") + 6 :]
        if data != b"[DONE]":
            choices = _decode(data)["choices"]
            tokens += bool(choices and choices[0]["delta"].get("content"))
    return tokens


def _same(reader: Reader) -> Reader:
    return reader


async def read_all(port: int, streams: int, requests: int, tokens: int, parse: bool) -> list[Answer]:
    """Send `requests` requests on `streams` connections."""
    message = {"role": "user", "content": "hello " * 64}
    body = {"model": "mock", "messages": [message], "stream": True, "max_completion_tokens": tokens}
    payload, answers = json.dumps(body).encode(), list[Answer]()
    loop, readers = asyncio.get_running_loop(), []
    for first in range(streams):
        reader = Reader(payload, iter(range(first, requests, streams)), parse, answers)
        await loop.create_connection(partial(_same, reader), "127.0.0.1", port)
        readers.append(reader.done)
    await asyncio.gather(*readers)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--parse", action="store_true")
    args = parser.parse_args()
    answers = uvloop.run(read_all(args.port, args.streams, args.requests, args.tokens, args.parse))
    args.out.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


if __name__ == "__main__":
    main()
