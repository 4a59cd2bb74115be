"""What the proxy hands to the process that reads its copies: one request and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Literal

import msgspec

from agentload._options import Api

Outcome = Literal["whole", "cut_off", "reset", "cancelled", "unreachable", "stopped"]
"""How an answer ended: whole; the endpoint ended it early, or reset the connection; the client went away;
the endpoint could not be reached; the proxy was told to stop at once."""

_CONTENT = (b"content-type", b"content-encoding", b"transfer-encoding")


class Exchange(msgspec.Struct, kw_only=True):
    """A request that is to be recorded, and as much of its answer as came.

    Times are of perf_counter. sent_fields, came_fields: the few headers that are needed, with names in lower
    case; no others leave the proxy. body: of the request, and reads: when which bytes of the answer's body
    came; both as they were on the wire, framing included. dropped: the copy was given up, to save memory.
    """

    api: Api
    target: str
    start_ns: int
    sent_fields: dict[str, str]
    body: list[bytes] = []
    status: int | None = None
    came_fields: dict[str, str] = {}
    reads: list[tuple[int, bytes]] = []
    end_ns: int = 0
    outcome: Outcome = "whole"
    dropped: bool = False

    @property
    def held_bytes(self) -> int:
        """How much of the copy is in memory."""
        return sum(map(len, self.body)) + sum(len(data) for _, data in self.reads)


class Origin(msgspec.Struct, frozen=True, tag=True):
    """When the recording began (perf_counter); the first thing that is told."""

    start_ns: int


class Finish(msgspec.Struct, frozen=True, tag=True):
    """All is told, the trace can be written. Without it, the proxy has died."""


class _Frame(msgspec.Struct, tag=True):
    """An exchange without its bytes, which follow it: of what size."""

    exchange: Exchange
    body_sizes: list[int]
    read_sizes: list[tuple[int, int]]


Told = Origin | Exchange | Finish

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Origin | _Frame | Finish] = msgspec.msgpack.Decoder(
    Origin | _Frame | Finish
)


def kept_fields(fields: tuple[tuple[bytes, bytes], ...], names: frozenset[str]) -> dict[str, str]:
    """The headers of a message that its recording needs: those that tell of the content, and `names`."""
    kept: dict[str, str] = {}
    for name, value in fields:
        text = name.decode("latin-1")
        if name in _CONTENT or text in names:
            kept.setdefault(text, value.decode("utf-8", "replace"))
    return kept


def written(told: Told) -> Iterator[bytes]:
    """A message as bytes to be written one after the other; bodies are not copied."""
    if not isinstance(told, Exchange):
        head = _encode(told)
        yield len(head).to_bytes(4, "big") + head
        return
    bare = msgspec.structs.replace(told, body=[], reads=[])
    sizes = [(at_ns, len(data)) for at_ns, data in told.reads]
    head = _encode(_Frame(bare, [len(data) for data in told.body], sizes))
    yield len(head).to_bytes(4, "big") + head
    yield from told.body
    for _, data in told.reads:
        yield data


def read(file: BinaryIO) -> Told | None:
    """The next message; `None` where they end, in mid-message or not."""
    size = file.read(4)
    if len(size) < 4:
        return None
    head = file.read(int.from_bytes(size, "big"))
    if len(head) < int.from_bytes(size, "big"):
        return None
    told = _decoder.decode(head)
    if not isinstance(told, _Frame):
        return told
    exchange = told.exchange
    wanted = sum(told.body_sizes) + sum(size for _, size in told.read_sizes)
    data = memoryview(file.read(wanted))
    if len(data) < wanted:
        return None
    at = 0
    for length in told.body_sizes:
        exchange.body.append(bytes(data[at : at + length]))
        at += length
    for at_ns, length in told.read_sizes:
        exchange.reads.append((at_ns, bytes(data[at : at + length])))
        at += length
    return exchange
