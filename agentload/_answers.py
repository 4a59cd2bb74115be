"""Reads a finished answer of any of the four APIs: tokens by arrival time, usage, phases, message, errors.

Runs after the stream has ended, off the replayer's hot path.
"""

from __future__ import annotations

from bisect import bisect_left

from agentload._answers_ends import encoding_of, ended_well, is_stream, reader_for, shows_token
from agentload._answers_gathered import Reader
from agentload._answers_json import NOT_JSON, error_message
from agentload._answers_retry import retry_after_s
from agentload._answers_sse import read_events
from agentload._answers_types import Failure, LiveMessage, LiveToolCall, ParsedAnswer, Usage
from agentload._http_client import Answer, Marks
from agentload._one_line import one_line
from agentload._options import Api
from agentload_simbackend import Arrival
from agentload_traces import ErrorKind

__all__ = [
    "LiveMessage",
    "LiveToolCall",
    "ParsedAnswer",
    "Usage",
    "ended_well",
    "last_byte_ns",
    "parse_answer",
    "retry_after_s",
    "shows_token",
]


def parse_answer(answer: Answer, api: Api = "chat", *, keep_message: bool = False) -> ParsedAnswer:
    """Read an answer; whatever is wrong with it is said in `error`, and what came before is kept.

    An endpoint that answers a request for a stream with a whole completion has answered: all its tokens come
    with the last byte. Usage that contradicts what came is no error either.
    """
    if answer.status is None:
        return _nothing(_transport_failure(answer) or Failure("reset", "no answer"))
    if 300 <= answer.status < 400 and (place := answer.headers.get("location")):
        return _nothing(Failure("refused", f"HTTP {answer.status}: redirects to {one_line(place)}"))
    if answer.status != 200:
        message = f"HTTP {answer.status}: {error_message(answer.body)}"
        return _nothing(Failure(_status_kind(answer.status), message))
    if encoding := encoding_of(answer):
        message = f"the answer is encoded as {one_line(encoding)}, though identity was asked for"
        return _nothing(Failure("bad_stream", message))
    reader = reader_for(api)
    if is_stream(answer):
        read_events(answer.body, reader)
        if reader.gathered.finish_reason is None:
            reader.gathered.fail("cut_off", "the stream ended without a finish reason")
    else:
        _read_whole(answer, reader)
    return _parsed(answer, reader, keep_message)


def last_byte_ns(answer: Answer) -> int:
    """When the last byte of an answer's body came; what ends the HTTP message may come later."""
    times, sizes = answer.marks
    return times[bisect_left(sizes, sizes[-1])] if times else answer.end_ns


def _nothing(failure: Failure) -> ParsedAnswer:
    return ParsedAnswer([], 0, None, None, failure.text, failure.kind)


def _status_kind(status: int) -> ErrorKind:
    if status == 429:
        return "rate_limited"
    return "unavailable" if status >= 500 else "refused"


def _transport_failure(answer: Answer) -> Failure | None:
    if answer.error is None:
        return None
    return Failure(answer.error_kind or ("reset" if answer.status is None else "cut_off"), answer.error)


def _read_whole(answer: Answer, reader: Reader) -> None:
    """Read an answer that is not streamed."""
    gathered = reader.gathered
    try:
        reader.take_whole(answer.body)
    except NOT_JSON:
        what = one_line(answer.headers.get("content-type", "")) or "no content type"
        gathered.fail("not_a_stream", f"the answer is neither a stream nor a completion ({what})")
        return
    if gathered.finish_reason is None:
        kind: ErrorKind = "cut_off" if gathered.texts else "not_a_stream"
        gathered.fail(kind, "the answer has no finish reason")


def _parsed(answer: Answer, reader: Reader, keep_message: bool) -> ParsedAnswer:
    gathered = reader.gathered
    total = gathered.total_tokens()
    if not total:
        counted = gathered.usage and gathered.usage.output_tokens
        beside = f", though its usage counts {counted}" if counted else ""
        gathered.fail("empty", f"the answer has no tokens{beside}")
    failure = gathered.failure
    # An endpoint that tells of an error breaks off then; what it told is the reason.
    if failure is None or failure.kind != "error_event":
        failure = _transport_failure(answer) or failure
    if not is_stream(answer):
        arrivals = [Arrival(last_byte_ns(answer), total)] if total else []
    else:
        marks = answer.marks if answer.marks.at_ns else Marks([answer.end_ns], [len(answer.body)])
        arrivals = gathered.arrivals(total, marks)
    return ParsedAnswer(
        arrivals,
        total,
        gathered.usage,
        gathered.timing,
        failure and failure.text,
        failure and failure.kind,
        gathered.finish_reason,
        gathered.message() if keep_message else None,
    )
