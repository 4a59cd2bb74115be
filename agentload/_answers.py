"""Reads a finished answer of an OpenAI-compatible endpoint: tokens by arrival time, usage, phases, errors.

Runs after the stream has ended, off the replayer's hot path.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from agentload._http_client import Answer, Marks
from agentload_simbackend import Arrival
from agentload_traces import count_tokens


class Timing(msgspec.Struct):
    """The simulator's own account of a request, in its answers' `agentload` object."""

    queue_ns: int
    prefill_ns: int
    handoff_ns: int
    decode_ns: int
    cached_tokens: int | None = None
    steps: int | None = None
    replica: int | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The endpoint's token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
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


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: Usage | None = None
    agentload: Timing | None = None
    error: Any = None


class ParsedAnswer(NamedTuple):
    """arrivals: o200k tokens by arrival time (perf_counter). error: one line; `None` for a whole answer."""

    arrivals: list[Arrival]
    output_tokens: int
    usage: Usage | None
    timing: Timing | None
    error: str | None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


@lru_cache(maxsize=65536)
def _piece_tokens(text: str) -> int:
    # Deltas repeat: words at one token an event, and the same phrases of tools and prompts.
    return count_tokens(text)


def parse_answer(answer: Answer) -> ParsedAnswer:
    """Read an answer; whatever is wrong with it is said in `error`, and what came before is kept."""
    if answer.status is None:
        return ParsedAnswer([], 0, None, None, answer.error)
    if answer.status != 200:
        return ParsedAnswer([], 0, None, None, f"HTTP {answer.status}: {_error_message(answer.body)}")
    if "text/event-stream" in answer.content_type:
        return _parse_stream(answer)
    return _parse_whole(answer)


def _parse_whole(answer: Answer) -> ParsedAnswer:
    """An endpoint that does not stream: all tokens arrive with the last byte."""
    try:
        chunk = _decode_chunk(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        what = answer.content_type or "no content type"
        return ParsedAnswer([], 0, None, None, f"the answer is neither a stream nor a completion ({what})")
    if chunk.error is not None:
        return ParsedAnswer([], 0, None, None, f"error in the answer: {_error_message(answer.body)}")
    text = "".join(choice.message.text() for choice in chunk.choices if choice.message)
    tokens = count_tokens(text)
    at_ns = answer.marks.at_ns[-1] if answer.marks.at_ns else answer.end_ns
    arrivals = [Arrival(at_ns, tokens)] if tokens else []
    finished = any(choice.finish_reason for choice in chunk.choices)
    error = answer.error or (None if finished else "the answer has no finish reason")
    return ParsedAnswer(arrivals, tokens, chunk.usage, chunk.agentload, error)


class _Stream:
    """What the events of a stream add up to."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ends: list[int] = []
        self.usage: Usage | None = None
        self.timing: Timing | None = None
        self.finished = False

    def take(self, chunk: _Chunk, end: int) -> None:
        for choice in chunk.choices:
            if choice.delta is not None and (text := choice.delta.text()):
                self.texts.append(text)
                self.ends.append(end)
            if choice.finish_reason:
                self.finished = True
        self.usage = chunk.usage or self.usage
        self.timing = chunk.agentload or self.timing


def _parse_stream(answer: Answer) -> ParsedAnswer:
    stream = _Stream()
    error = _read_events(answer.body, stream)
    error = answer.error or error
    if error is None and not stream.finished:
        error = "the stream ended without a finish reason"
    total = count_tokens("".join(stream.texts))
    arrivals = _arrivals(stream, total, answer.marks)
    return ParsedAnswer(arrivals, total, stream.usage, stream.timing, error)


def _read_events(body: bytes, stream: _Stream) -> str | None:
    """Feed each whole event to `stream`; return what is wrong with the first bad one."""
    separator = b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    step = len(separator)
    end = 0
    for number, event in enumerate(body.split(separator)[:-1]):
        end += len(event) + step
        data = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data_of(event)
        if not data:
            continue
        if data == b"[DONE]":
            return None
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as failure:
            reason = " ".join(str(failure).split())
            return f"event {number + 1} of the stream is not a completion chunk: {reason}"
        if chunk.error is not None:
            return f"error in the stream: {_error_message(data)}"
        stream.take(chunk, end)
    return None


def _data_of(event: bytes) -> bytes:
    """The joined `data` lines of an event that is more than one plain line."""
    lines = event.replace(b"\r\n", b"\n").lstrip(b"\xef\xbb\xbf").split(b"\n")
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = body.decode(errors="replace")
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), str(value))
    line = " ".join(str(value).split())
    return line[:200] or "no message"
