"""Sends one answer of the fake endpoint, with the fault it is to have; see `fake_endpoint`."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from fake_reply import Events, Reply
from fake_wire import PINGS, error_body, error_event, stream_events, whole_answer

from agentload._options import Api


class Sending:
    """One answer on its way. stall: waits until the answer is to go on."""

    def __init__(
        self,
        request: web.Request,
        api: Api,
        reply: Reply,
        body: dict[str, Any],
        stall: Callable[[], Awaitable[None]],
    ) -> None:
        self._request, self._api, self._reply, self._body, self._stall = request, api, reply, body, stall

    async def send(self) -> web.StreamResponse:
        reply, api = self._reply, self._api
        if reply.status != 200:
            error = json.dumps(error_body(api, reply.status, reply.message)).encode()
            return self._plain(error if reply.body is None else reply.body)
        if reply.body is not None:
            return self._plain(reply.body)
        match reply.fault:
            case "close":
                return self._hang_up(reset=False)
            case "reset":
                return self._hang_up(reset=True)
            case "not_http":
                self._transport().write(b"SSH-2.0-OpenSSH_9.9\r\n")
                return self._hang_up(reset=False)
            case "html":
                return web.Response(text="<html><body>It works!</body></html>", content_type="text/html")
            case "json":
                return web.json_response(whole_answer(api, reply, self._body))
        if self._body.get("stream") is True:
            return await self._stream(stream_events(api, reply, self._body))
        return await self._whole()

    def _plain(self, body: bytes) -> web.Response:
        headers = {"content-type": "application/json", **self._reply.headers}
        return web.Response(body=body, status=self._reply.status, headers=headers)

    def _transport(self) -> asyncio.Transport:
        transport = self._request.transport
        assert isinstance(transport, asyncio.Transport)
        return transport

    def _hang_up(self, *, reset: bool) -> web.StreamResponse:
        transport = self._transport()
        if reset:
            # Closing a socket that lingers for no time resets the connection.
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()
        return web.Response()

    async def _stream(self, events: Events) -> web.StreamResponse:
        reply = self._reply
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            **reply.headers,
        }
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        before, after = self._parted(events)
        await self._write(response, before)
        transport = self._transport()
        match reply.fault:
            case "no_first_token":
                await self._write(response, [PINGS[self._api]] * 2)
                await self._stall()
            case "stall":
                await self._stall()
            case "reset_in_stream":
                return self._end_abruptly(response, reset=True)
            case "half_event":
                half = after[0][: len(after[0]) // 2]
                transport.write(_chunk(half))
                return self._end_abruptly(response, reset=False)
            case "cut_in_event":
                after = [after[0][: len(after[0]) // 2]]
            case "bad_chunk":
                transport.write(b"this is no size\r\n" + after[0] + b"\r\n")
                return self._end_abruptly(response, reset=False)
            case "invalid_json":
                after = [b"data: {oops\n\n", *after]
            case "error_event":
                after = [error_event(self._api, reply.message)]
        await self._write(response, after)
        await response.write_eof()
        return response

    def _parted(self, events: Events) -> tuple[list[bytes], list[bytes]]:
        """What goes before the fault and what after it."""
        reply = self._reply
        if reply.fault == "missing_finish":
            return [*events.opening, *events.content], []
        if reply.fault == "no_terminal":
            return [*events.opening, *events.content, *events.finish], []
        place = len(events.content) // 2 if reply.fault_after is None else reply.fault_after
        if reply.fault_after is None:
            place = 0 if reply.fault == "no_first_token" else place + len(events.opening)
        every = events.all()
        return every[:place], every[place:]

    async def _write(self, response: web.StreamResponse, events: list[bytes]) -> None:
        """Each event is an HTTP chunk of its own."""
        delay_s = self._reply.chunk_delay_s
        if not events:
            return
        if not delay_s:
            # The first write also sends the head; the others go at once.
            await response.write(events[0])
            if rest := b"".join(_chunk(event) for event in events[1:]):
                self._transport().write(rest)
            return
        for event in events:
            await asyncio.sleep(delay_s)
            await response.write(event)

    def _end_abruptly(self, response: web.StreamResponse, *, reset: bool) -> web.StreamResponse:
        self._hang_up(reset=reset)
        return response

    async def _whole(self) -> web.StreamResponse:
        reply = self._reply
        body = json.dumps(whole_answer(self._api, reply, self._body)).encode()
        half = body[: len(body) // 2]
        headers = {"content-type": "application/json", **reply.headers}
        match reply.fault:
            case "no_first_token" | "stall":
                await self._stall()
            case "missing_finish":
                value = whole_answer(self._api, reply, self._body)
                for choice in value.get("choices", ()):
                    choice["finish_reason"] = None
                for name in ("stop_reason", "status"):
                    value.pop(name, None)
                body = json.dumps(value).encode()
            case "error_event":
                body = json.dumps(error_body(self._api, 500, reply.message)).encode()
            case "invalid_json" | "cut_in_event":
                body = half
            case "reset_in_stream" | "half_event" | "bad_chunk":
                response = web.StreamResponse(headers={**headers, "content-length": str(len(body))})
                await response.prepare(self._request)
                await response.write(half)
                return self._end_abruptly(response, reset=reply.fault == "reset_in_stream")
        if reply.chunk_delay_s:
            await asyncio.sleep(reply.chunk_delay_s)
        return web.Response(body=body, headers=headers)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
