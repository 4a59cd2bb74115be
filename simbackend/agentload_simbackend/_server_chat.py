"""`POST /v1/chat/completions`: from the request to the engine and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count

from aiohttp import web
from aiohttp.http import StreamWriter

from agentload_simbackend._api import EngineRequest, PromptRun, Rejected
from agentload_simbackend._chat import ChatRequest, message_texts, parse_chat
from agentload_simbackend._chat_wire import ChatHeader, ChatStream, chat_body
from agentload_simbackend._pacing import PacedAnswer, Pacer
from agentload_simbackend._scripted import Answer, ModelCall, ScriptedModel
from agentload_simbackend._server_errors import ApiError, rejection
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
        max_model_len: int | None,
        block_tokens: int,
    ) -> None:
        self._pacer = pacer
        self._script = script
        self._clock = clock
        self._max_model_len = max_model_len
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
            return await self._answer(request, chat, conversation, turn_id, runs, arrived_ns)
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
        conversation: Conversation,
        turn_id: str,
        runs: Sequence[PromptRun],
        arrived_ns: int,
    ) -> web.StreamResponse:
        call = ModelCall(
            session_id=conversation.session_id, turn_id=turn_id, max_output_tokens=chat.max_output_tokens
        )
        answer = self._script.answer(call)
        engine_request = EngineRequest(
            request_id=next(self._request_ids),
            session_id=conversation.session_id,
            turn_id=turn_id,
            context_id=conversation.context_id,
            prompt_runs=runs,
            input_tokens=sum(run.tokens for run in runs),
            output_tokens=answer.output_tokens,
        )
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
            self._raise_if_rejected(paced)
            if stream is None:
                return await self._whole(paced, header, answer)
            return await self._streamed(request, paced)
        finally:
            self._pacer.cancel(paced)

    async def _whole(self, paced: PacedAnswer, header: ChatHeader, answer: Answer) -> web.Response:
        outcome = await paced.outcome
        self._raise_if_rejected(paced)
        assert not isinstance(outcome, Rejected)
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
            transport.abort()
        return response

    def _raise_if_rejected(self, paced: PacedAnswer) -> None:
        if paced.outcome.done() and isinstance(rejected := paced.outcome.result(), Rejected):
            request = paced.request
            raise rejection(rejected, request.input_tokens, request.output_tokens, self._max_model_len)


def _request_id(paced: PacedAnswer) -> dict[str, str]:
    return {"x-request-id": f"req_{paced.request.request_id}"}
