"""A lean client of many-turned sessions: the reference for requests per second.

    python benchmarks/lean_sessions.py PORT --sessions 20 --turns 200

aiohttp on uvloop. The encoded history is kept as bytes and appended to; answers are read event by event and
go into the history.
"""

from __future__ import annotations

import argparse
import asyncio
from time import perf_counter_ns

import aiohttp
import msgspec
import uvloop

_decode, _encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
TEXT = "messages " * 24
"""With the answer as many bytes as the replayer's words."""
TOKENS = 16


async def session(http: aiohttp.ClientSession, url: str, name: str, turns: int) -> list[tuple[int, int]]:
    """Time of the first and of the last token of each turn."""
    history = bytearray(b'{"model":"mock","stream":true,"messages":[')
    times = []
    for number in range(turns):
        history += (b"," if number else b"") + _encode({"role": "user", "content": TEXT})
        body = bytes(history) + b'],"max_completion_tokens":%d}' % TOKENS
        headers = {"Content-Type": "application/json", "X-Request-ID": f"{name}-{number}"}
        rest, texts, first_ns, last_ns = b"", [], 0, 0
        async with http.post(url, data=body, headers=headers) as response:
            async for data in response.content.iter_any():
                now_ns = perf_counter_ns()
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    at = event.find(b"data: ") + 6
                    if event.startswith(b"[DONE]", at):
                        continue
                    choices = _decode(event[at:])["choices"]
                    if choices and (text := choices[0]["delta"].get("content")):
                        first_ns, last_ns = first_ns or now_ns, now_ns
                        texts.append(text)
        assert len(texts) == TOKENS
        times.append((first_ns, last_ns))
        history += b"," + _encode({"role": "assistant", "content": "".join(texts)})
    return times


async def play(port: int, sessions: int, turns: int) -> None:
    """All sessions at a time."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**18) as http:
        await asyncio.gather(*(session(http, url, f"s{number}", turns) for number in range(sessions)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--turns", type=int, default=200)
    args = parser.parse_args()
    uvloop.run(play(args.port, args.sessions, args.turns))


if __name__ == "__main__":
    main()
