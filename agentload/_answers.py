"""Reads a finished answer of an OpenAI-compatible endpoint: tokens by arrival time, usage, phases, errors.

Runs after the stream has ended, off the replayer's hot path.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import msgspec.structs

from agentload._http_client import Answer, Marks
from agentload_simbackend import Arrival, ServerTimes
from agentload_traces import count_tokens

_MOST = 2**53
"""What an endpoint tells of itself is believed only up to here: no count of tokens or nanoseconds is more."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """The endpoint's token counts."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None

    def text(self) -> str:
        """Everything in it that the model generated."""
        if self.tool_calls is None and self.reasoning is None and self.reasoning_content is None:
            return self.content or ""
        parts = [self.reasoning or self.reasoning_content or "", self.content or ""]
        for call in self.tool_calls or ():
            if call.function is not None:
                parts += [call.function.name or "", call.function.arguments or ""]
        return "".join(parts)


def _clean(text: str) -> str:
    """Text that can be tokenised: lone surrogates replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    agentload: Any = None
    error: Any = None


class ParsedAnswer(NamedTuple):
    """arrivals: o200k tokens by arrival time (perf_counter). error: one line; `None` for a whole answer."""

    arrivals: list[Arrival]
    output_tokens: int
    usage: Usage | None
    timing: ServerTimes | None
    error: str | None


_Told = TypeVar("_Told", Usage, ServerTimes)

_decode = msgspec.json.Decoder(_Chunk).decode

_ERROR_DEPTH = 5

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)


def _decode_chunk(data: bytes) -> _Chunk:
    """Raises one of `_NOT_JSON`."""
    try:
        return _decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # The standard library reads what msgspec does not: lone surrogates, which models do send.
        return msgspec.convert(json.loads(data), _Chunk)


def _told(value: Any, kind: type[_Told]) -> _Told | None:
    """What the endpoint tells of itself, or `None` where it makes no sense: the answer is whole without."""
    try:
        told = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
    if isinstance(told, ServerTimes) and not all(
        number is None or 0 <= number <= _MOST for number in msgspec.structs.astuple(told)
    ):
        return None
    return told


@lru_cache(maxsize=65536)
def _piece_tokens(text: str) -> int:
    # Deltas repeat: words at one token an event, and the same phrases of tools and prompts.
    return _tokens(text)


def _tokens(text: str) -> int:
    try:
        return count_tokens(text)
    except UnicodeEncodeError:
        return count_tokens(_clean(text))


def parse_answer(answer: Answer) -> ParsedAnswer:
    """Read an answer; whatever is wrong with it is said in `error`, and what came before is kept."""
    if answer.status is None:
        return _nothing(answer.error or "no answer")
    if 300 <= answer.status < 400 and (place := answer.headers.get("location")):
        return _nothing(f"HTTP {answer.status}: redirects to {_one_line(place)}")
    if answer.status != 200:
        return _nothing(f"HTTP {answer.status}: {_error_message(answer.body)}")
    if encoding := answer.headers.get("content-encoding"):
        return _nothing(f"the answer is encoded as {_one_line(encoding)}, though identity was asked for")
    if "text/event-stream" in answer.headers.get("content-type", "").lower():
        return _parse_stream(answer)
    return _parse_whole(answer)


def _nothing(error: str) -> ParsedAnswer:
    return ParsedAnswer([], 0, None, None, error)


def _parse_whole(answer: Answer) -> ParsedAnswer:
    """An endpoint that does not stream: all tokens arrive with the last byte."""
    try:
        chunk = _decode_chunk(answer.body)
    except _NOT_JSON:
        what = _one_line(answer.headers.get("content-type", "")) or "no content type"
        return _nothing(answer.error or f"the answer is neither a stream nor a completion ({what})")
    if chunk.error is not None:
        return _nothing(f"error in the answer: {_error_message(answer.body)}")
    choices = chunk.choices or []
    text = "".join(choice.message.text() for choice in choices if choice.message)
    tokens = _tokens(text)
    arrivals = [Arrival(last_byte_ns(answer), tokens)] if tokens else []
    finished = any(choice.finish_reason for choice in choices)
    error = answer.error or (None if finished else "the answer has no finish reason")
    return ParsedAnswer(
        arrivals, tokens, _told(chunk.usage, Usage), _told(chunk.agentload, ServerTimes), error
    )


def last_byte_ns(answer: Answer) -> int:
    """When the last byte of an answer's body came; what ends the HTTP message may come later."""
    times, sizes = answer.marks
    return times[bisect_left(sizes, sizes[-1])] if times else answer.end_ns


class _Stream:
    """What the events of a stream add up to."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ends: list[int] = []
        self.usage: Usage | None = None
        self.timing: ServerTimes | None = None
        self.finished = False

    def take(self, chunk: _Chunk, end: int) -> None:
        for choice in chunk.choices or ():
            if choice.delta is not None and (text := choice.delta.text()):
                self.texts.append(text)
                self.ends.append(end)
            if choice.finish_reason:
                self.finished = True
        if chunk.usage is not None:
            self.usage = _told(chunk.usage, Usage) or self.usage
        if chunk.agentload is not None:
            self.timing = _told(chunk.agentload, ServerTimes) or self.timing


def _parse_stream(answer: Answer) -> ParsedAnswer:
    stream = _Stream()
    error = _read_events(answer.body, stream)
    error = answer.error or error
    if error is None and not stream.finished:
        error = "the stream ended without a finish reason"
    total = _tokens("".join(stream.texts))
    marks = answer.marks if answer.marks.at_ns else Marks([answer.end_ns], [len(answer.body)])
    arrivals = _arrivals(stream, total, marks)
    return ParsedAnswer(arrivals, total, stream.usage, stream.timing, error)


_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")


def _events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Each whole event of a stream, and where in the body it ends."""
    if b"\r" not in body:
        end = 0
        for event in body.split(b"\n\n")[:-1]:
            end += len(event) + 2
            yield event, end
        return
    start = 0
    for found in _EVENT_END.finditer(body):
        yield body[start : found.start()], found.end()
        start = found.end()


def _read_events(body: bytes, stream: _Stream) -> str | None:
    """Feed each whole event to `stream`; return what is wrong with the first bad one."""
    number = 0
    for event, end in _events(body):
        number += 1
        data = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data_of(event)
        if not data:
            continue
        try:
            chunk = _decode_chunk(data)
        except _NOT_JSON as failure:
            if data.strip() == b"[DONE]":
                return None
            reason = _one_line(str(failure))
            return f"event {number} of the stream is not a completion chunk: {reason}"
        if chunk.error is not None:
            return f"error in the stream: {_error_message(data)}"
        stream.take(chunk, end)
    return None


def _data_of(event: bytes) -> bytes:
    """The joined `data` lines of an event that is more than one plain line."""
    lines = event.removeprefix(b"\xef\xbb\xbf").splitlines()
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def _arrivals(stream: _Stream, total: int, marks: Marks) -> list[Arrival]:
    """Tokens by the read that completed their event.

    Deltas are counted one by one and scaled to the count of the whole text, since a token may be split
    between two deltas.
    """
    counts = [_piece_tokens(text) for text in stream.texts]
    whole = sum(counts)
    times, sizes = marks
    if not whole or not times:
        return []
    arrivals = []
    read, last = 0, len(times) - 1
    seen = given = 0
    for count, end in zip(counts, stream.ends, strict=True):
        if sizes[read] < end:
            if (arrived := seen * total // whole) > given:
                arrivals.append(Arrival(times[read], arrived - given))
                given = arrived
            while read < last and sizes[read] < end:
                read += 1
        seen += count
    if total > given:
        arrivals.append(Arrival(times[read], total - given))
    return arrivals


def _error_message(body: bytes) -> str:
    """The message in an error body of any common shape, in one line."""
    try:
        value = msgspec.json.decode(body)
    except _NOT_JSON:
        value = body[:10_000].decode(errors="replace")
    for _ in range(_ERROR_DEPTH):
        if not isinstance(value, dict):
            break
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), str(value))
    return _one_line(str(value)) or "no message"


def _one_line(text: str) -> str:
    """At most 200 printable characters of foreign text: it goes to terminals and tables."""
    printable = "".join(character if character.isprintable() else " " for character in text[:2_000])
    return " ".join(printable.split())[:200]
