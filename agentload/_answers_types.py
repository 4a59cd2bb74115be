"""What an answer says, in the same words for all four APIs."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend import Arrival, ServerTimes
from agentload_traces import ErrorKind


class Usage(NamedTuple):
    """The endpoint's own token counts; `None` where it tells none, or none that can be.

    input_tokens: all of the prompt, with what was read from the prefix cache (cached_tokens) and what was
    written to it (cache_written_tokens), also where the endpoint's own field leaves them out.
    reasoning_tokens: part of output_tokens.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_written_tokens: int | None = None
    reasoning_tokens: int | None = None


class LiveToolCall(NamedTuple):
    """A tool call that a model asked for. arguments: JSON text as it came, valid or not."""

    call_id: str
    name: str
    arguments: str


class LiveMessage(NamedTuple):
    """What a model really said. All text can be encoded as UTF-8."""

    text: str
    reasoning: str
    tool_calls: tuple[LiveToolCall, ...]


class Failure(NamedTuple):
    """What is wrong with an answer. text: one line."""

    kind: ErrorKind
    text: str


class ParsedAnswer(NamedTuple):
    """A finished answer.

    arrivals: o200k tokens by arrival time (perf_counter). output_tokens: their sum, the count of the whole
    text: reasoning, text, names and arguments of calls, in the order in which they came.
    error: one line, with its kind; `None` for a whole answer.
    finish_reason: in the endpoint's words; of the responses API "completed", or why it is incomplete.
    message: what came, whole or not; `None` if it was not to be kept, or no answer with status 200 came.
    """

    arrivals: list[Arrival]
    output_tokens: int
    usage: Usage | None
    timing: ServerTimes | None
    error: str | None
    error_kind: ErrorKind | None = None
    finish_reason: str | None = None
    message: LiveMessage | None = None
