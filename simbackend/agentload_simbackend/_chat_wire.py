"""OpenAI chat completions: the bytes of an answer, whole or as a stream.

Both carry, beside OpenAI's fields, an object `agentload` that splits the server's time: `ServerTimes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentload_simbackend._api import Finished
from agentload_simbackend._scripted import Answer
from agentload_simbackend._server_errors import error_body
from agentload_simbackend._server_sse import (
    LAST_EVENT,
    EventHeads,
    EventParts,
    RenderedAhead,
    framed_event,
    join_events,
)
from agentload_simbackend._wire import ServerTimes


class ChatHeader(msgspec.Struct, frozen=True):
    """What all chunks of an answer have in common, and the size of its prompt."""

    id: str
    created: int
    model: str
    prompt_tokens: int


class ChatStream:
    """Renders the events of one streamed answer; a `StreamRenderer`. phase: see `RenderedAhead`."""

    def __init__(self, header: ChatHeader, answer: Answer, *, include_usage: bool, phase: int) -> None:
        self._header = header
        self._answer = answer
        self._include_usage = include_usage
        fields = {
            "id": header.id,
            "object": "chat.completion.chunk",
            "created": header.created,
            "model": header.model,
        }
        self._start = msgspec.json.encode(fields)[:-1]
        self._usage_null = b',"usage":null}' if include_usage else b"}"
        self._content = self._start + b',"choices":[{"index":0,"delta":{"content":"'
        self._content_end = b'"},"logprobs":null,"finish_reason":null}]' + self._usage_null + b"\n\n\r\n"
        self._heads = EventHeads(self._content, self._content_end)
        self._ahead = RenderedAhead(self._events, answer.output_tokens, phase)

    def steps(self, first: int, ends: list[int]) -> bytes | memoryview:
        """Return the event of each decode step; before the first, the event that gives the role."""
        if first == 0:
            role = self._choice(b'{"role":"assistant","content":""}', b"null")
            return role + join_events(self._events(first, ends))
        if ends[-1] - first == len(ends):
            return self._ahead.slice(first, ends[-1])
        return join_events(self._events(first, ends))

    def _events(self, first: int, ends: Sequence[int]) -> EventParts:
        pieces = self._answer.text.json_pieces(first, ends)
        return list(map(self._heads.__getitem__, map(len, pieces))), pieces, self._content_end

    def closing(self, finished: Finished, server_ns: int) -> bytes:
        """Return the finish chunk, the usage chunk if asked for, and `[DONE]`."""
        parts = [self._choice(b"{}", msgspec.json.encode(self._answer.finish_reason))]
        if self._include_usage:
            usage = msgspec.json.encode(_usage(self._header, finished))
            times = msgspec.json.encode(_times(finished, server_ns))
            data = b'%b,"choices":[],"usage":%b,"agentload":%b}' % (self._start, usage, times)
            parts.append(framed_event(data))
        return b"".join([*parts, LAST_EVENT])

    def error(self, message: str, code: str) -> bytes:
        """Return an error event."""
        return framed_event(error_body(message, 500, code=code))

    def _choice(self, delta: bytes, finish_reason: bytes) -> bytes:
        choice = b',"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]'
        return framed_event(self._start + choice % (delta, finish_reason) + self._usage_null)


def chat_body(header: ChatHeader, answer: Answer, finished: Finished, server_ns: int) -> bytes:
    """Return the body of an answer that is not streamed."""
    content = msgspec.Raw(b'"%b"' % b"".join(answer.text.json_pieces(0, [finished.output_tokens])))
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
    body = {
        "id": header.id,
        "object": "chat.completion",
        "created": header.created,
        "model": header.model,
        "choices": [choice],
        "usage": _usage(header, finished),
        "agentload": _times(finished, server_ns),
    }
    return msgspec.json.encode(body)


def _usage(header: ChatHeader, finished: Finished) -> dict[str, object]:
    return {
        "prompt_tokens": header.prompt_tokens,
        "completion_tokens": finished.output_tokens,
        "total_tokens": header.prompt_tokens + finished.output_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


def _times(finished: Finished, server_ns: int) -> ServerTimes:
    phases = finished.phases
    return ServerTimes(
        queue_ns=phases.queue_ns,
        prefill_ns=phases.prefill_ns,
        handoff_ns=phases.handoff_ns,
        decode_ns=phases.decode_ns,
        cached_tokens=finished.cached_tokens,
        steps=finished.steps,
        replica=finished.replica,
        server_ns=server_ns,
        handoff_tokens=finished.handoff_tokens,
    )
