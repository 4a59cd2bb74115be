"""OpenAI chat completions: what a request asks for, and which of its text counts.

Fields that change nothing here (temperature, tools, ...) are accepted and ignored, as are unknown ones.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from agentload_simbackend._server_errors import ApiError, bad_field, bad_json

OutputLimit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
OneChoice = Annotated[int, msgspec.Meta(ge=1, le=1)]


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of a request."""

    include_usage: bool | None = None


class AgentHints(msgspec.Struct, frozen=True):
    """`nvext.agent_hints` of a request to Dynamo; see `_chat_class`.

    priority: higher is sooner. strict_priority: tiers, the higher first. latency_sensitivity: seconds by
    which a request counts as come earlier, in releases before `priority` took its place.
    """

    priority: int | None = None
    strict_priority: Annotated[int, msgspec.Meta(ge=0)] | None = None
    latency_sensitivity: float | None = None


class NvExt(msgspec.Struct, frozen=True):
    """`nvext` of a request: NVIDIA's extensions."""

    agent_hints: AgentHints | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """The body of `POST /v1/chat/completions`. `messages` stays serialised; see `message_texts`.

    priority: vLLM's, lower is sooner.
    """

    messages: msgspec.Raw
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: OutputLimit | None = None
    max_tokens: OutputLimit | None = None
    n: OneChoice | None = None
    priority: int | None = None
    nvext: NvExt | None = None

    @property
    def max_output_tokens(self) -> int | None:
        """How long the answer may be, `None` if not said."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream is to end with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_ToolCall] | None = None


_requests = msgspec.json.Decoder(ChatRequest)
_messages = msgspec.json.Decoder(_Message)

_Decoded = TypeVar("_Decoded")

_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair of surrogates: one character
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # one without the other
    rb"|\\."
)


def _decode(decoder: msgspec.json.Decoder[_Decoded], data: bytes | msgspec.Raw) -> _Decoded:
    """Decode JSON, with U+FFFD for each lone surrogate: models' answers are cut within a character at times,
    and clients send them back so."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], bytes(data))
        return decoder.decode(mended)


def parse_chat(body: bytes) -> ChatRequest:
    """Read a request. Raises `ApiError` (400), naming the field that is wrong."""
    try:
        request = _decode(_requests, body)
    except msgspec.ValidationError as error:
        raise bad_field(error) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_json(error) from error
    start = memoryview(request.messages)[:64].tobytes()
    if not start.startswith(b"["):
        raise ApiError("Invalid type for 'messages': expected an array of objects.", param="messages")
    if start[1:].strip() == b"]":
        raise ApiError("Invalid 'messages': expected at least one message, got none.", param="messages")
    return request


def message_texts(message: bytes | msgspec.Raw, index: int) -> list[str]:
    """Return the texts of message `index` that count as prompt tokens.

    They are the content (a string or the text parts of a list) and the name and arguments of each tool
    call. No chat template is counted, nor images and sounds. Raises `ApiError` (400) naming the field.
    """
    try:
        parsed = _decode(_messages, message)
    except msgspec.ValidationError as error:
        raise bad_field(error, f"messages[{index}]") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_json(error) from error
    texts: list[str] = []
    if isinstance(parsed.content, str):
        texts.append(parsed.content)
    elif parsed.content is not None:
        texts.extend(part.text for part in parsed.content if part.text is not None)
    for call in parsed.tool_calls or ():
        if call.function is not None:
            texts += (call.function.name or "", call.function.arguments or "")
    return texts
