"""`POST /v1/chat/completions`: from the request to the engine and back."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count

from aiohttp import web
from aiohttp.http import StreamWriter

from agentload_simbackend._api import EngineRequest, Failed, Finished, Rejected
from agentload_simbackend._chat import ChatRequest, message_texts, parse_chat
from agentload_simbackend._chat_class import content_class, latency_class
from agentload_simbackend._chat_wire import ChatHeader, ChatStream, chat_body
from agentload_simbackend._pacing import PacedAnswer, Pacer
from agentload_simbackend._scripted import Answer, ModelCall, ScriptedModel
from agentload_simbackend._server_errors import ApiError, failure, rejection
from agentload_simbackend._server_sessions import Conversation, Conversations, header_id
from agentload_simbackend._wire import TURN_HEADER

_SLICE_NS = 300_000
"""A request's prompt is read in slices of about this long, so that streams can be written between them."""


_PHASE_STEP = 37
"""Odd, so that requests that follow each other differ in phase; see `RenderedAhead`."""


class ChatApi:
    """Handles chat completions; keeps the conversations that it has seen."""

    def __init__(
        self,
        pacer: Pacer,
        script: ScriptedModel,
        clock: Callable[[], int],
        *,
        max_model_len: int | None,
        block_tokens: int,
        contents: Collection[str] | None,
    ) -> None:
        self._pacer = pacer
        self._script = script
        self._clock = clock
        self._max_model_len = max_model_len
        self._contents = contents
        self._conversations = Conversations(message_texts, block_tokens)
        self._request_ids = count(1)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        arrived_ns = self._clock()
        chat = parse_chat(await request.read())
        version = request.version
        if chat.stream and version < (1, 1):
            raise ApiError(
                f"A streamed answer needs HTTP/1.1, and this request is HTTP/{version.major}.{version.minor}."
                ' Use HTTP/1.1, or "stream": false.',
                param="stream",
            )
        asked = latency_class(request.headers, chat), content_class(request.headers, self._contents)
        messages = bytes(chat.messages)
        conversation = self._conversations.find(request.headers, messages)
        conversation.running += 1
        try:
            turn_id = header_id(request.headers, TURN_HEADER) or conversation.next_turn_id()
            async with conversation.lock:
                await self._read_prompt(conversation, messages)
                runs = conversation.index.runs()
            if not runs:
                raise ApiError("Invalid 'messages': they hold no text.", param="messages")
            call = ModelCall(
                session_id=conversation.session_id, turn_id=turn_id, max_output_tokens=chat.max_output_tokens
            )
            answer = self._script.answer(call)
            wanted, content = asked
            engine_request = EngineRequest(
                request_id=next(self._request_ids),
                session_id=conversation.session_id,
                turn_id=turn_id,
                context_id=conversation.context_id,
                prompt_runs=runs,
                input_tokens=sum(run.tokens for run in runs),
                output_tokens=answer.output_tokens,
                content=content,
                latency_class=wanted,
            )
            return await self._answer(request, chat, engine_request, answer, arrived_ns)
        finally:
            conversation.running -= 1

    async def _read_prompt(self, conversation: Conversation, messages: bytes) -> None:
        """Bring the conversation's index up to `messages`, letting streams be written in between."""
        slice_end_ns = self._clock() + _SLICE_NS
        try:
            for _ in conversation.index.update(messages):
                if self._clock() >= slice_end_ns:
                    await asyncio.sleep(0)
                    slice_end_ns = self._clock() + _SLICE_NS
        finally:
            self._conversations.updated(conversation)

    async def _answer(
        self,
        request: web.Request,
        chat: ChatRequest,
        engine_request: EngineRequest,
        answer: Answer,
        arrived_ns: int,
    ) -> web.StreamResponse:
        header = ChatHeader(
            id=f"chatcmpl-{engine_request.request_id}",
            created=int(time.time()),
            model=chat.model,
            prompt_tokens=engine_request.input_tokens,
        )
        stream = None
        if chat.stream:
            phase = _PHASE_STEP * engine_request.request_id
            stream = ChatStream(header, answer, include_usage=chat.include_usage, phase=phase)
        paced = self._pacer.submit(engine_request, arrived_ns, stream)
        try:
            self._raise_if_ended(paced)
            if stream is None:
                return await self._whole(paced, header, answer)
            return await self._streamed(request, paced)
        finally:
            self._pacer.cancel(paced)

    async def _whole(self, paced: PacedAnswer, header: ChatHeader, answer: Answer) -> web.Response:
        outcome = await paced.outcome
        self._raise_if_ended(paced)
        assert isinstance(outcome, Finished)
        body = chat_body(header, answer, outcome, self._clock() - paced.arrived_ns)
        return web.Response(body=body, content_type="application/json", headers=_request_id(paced))

    async def _streamed(self, request: web.Request, paced: PacedAnswer) -> web.StreamResponse:
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            **_request_id(paced),
        }
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        writer = await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        assert isinstance(writer, StreamWriter)
        self._pacer.attach(paced, transport, writer.set_eof)
        try:
            await paced.written
        except ConnectionResetError:
            if paced.failed:
                _reset(transport)
            else:
                transport.abort()
        return response

    def _raise_if_ended(self, paced: PacedAnswer) -> None:
        """Raise what the engine ended a request with, before a part of its answer was sent."""
        outcome = paced.outcome.result() if paced.outcome.done() else None
        if isinstance(outcome, Rejected):
            request = paced.request
            raise rejection(outcome, request.input_tokens, request.output_tokens, self._max_model_len)
        if isinstance(outcome, Failed):
            raise failure(outcome)


def _reset(transport: asyncio.WriteTransport) -> None:
    """Break a connection off as a machine that dies does: with RST, the stream just stops."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


_NO_LINGER = struct.pack("ii", 1, 0)


def _request_id(paced: PacedAnswer) -> dict[str, str]:
    return {"x-request-id": f"req_{paced.request.request_id}"}
