"""One client's connection: what is not HTTP is answered in OpenAI's shape and told in one line of the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, PayloadEncodingError

from agentload_simbackend._server_errors import error_body

_log = logging.getLogger(__name__)

_REASON_CHARS = 200


class Connection(web.RequestHandler):
    """aiohttp's protocol, with the API's errors.

    A client that closes its sending side has gone, even after a whole request: TCP tells this apart from a
    closed connection only once something is written, and the engine must not work for who has gone.
    """

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what went wrong outside the handlers. Raises `ConnectionError` if nobody can be told."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has gone
        self.log_exception("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        if isinstance(exc, HttpProcessingError):
            body = error_body(protocol_message(exc), status)
        else:
            body = error_body("The server had an error; its log tells which.", status)
        answer = json_answer(body, status)
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; aiohttp's own errors (404, 405, 417) in OpenAI's shape."""
        if isinstance(resp, web.HTTPException):
            resp = _from_aiohttp(request, resp)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a failure; of one that is the client's, only what it was."""
        error = kw.get("exc_info")
        if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
            _log.warning(
                "refused a client: %s", protocol_message(error), extra={"kind": _kind(_cause(error))}
            )
        else:
            _log.error(*args, **kw)


def protocol_message(error: BaseException) -> str:
    """Say in one line which rule of HTTP a client broke."""
    cause = _cause(error)
    reason = " ".join((cause.message if isinstance(cause, HttpProcessingError) else str(cause)).split())
    reason = reason.removesuffix(" ^")  # it pointed at a character of the line before
    if len(reason) > _REASON_CHARS:
        reason = reason[:_REASON_CHARS] + "..."
    about_body = isinstance(cause, (PayloadEncodingError, web.RequestPayloadError))
    what = "The body of the request cannot be read" if about_body else "The request is not valid HTTP"
    return f"{what} ({type(cause).__name__}: {reason})."


def json_answer(body: bytes, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with a JSON body."""
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _cause(error: BaseException) -> BaseException:
    """What is wrong with a body comes wrapped, with a message of two lines."""
    return error.__cause__ if isinstance(error.__cause__, HttpProcessingError) else error


def _kind(error: BaseException) -> str:
    """What a log may count as the same: aiohttp's class and, where that is of no help, its words."""
    words = str(error.args[0]).partition(":")[0] if type(error) is BadHttpMessage and error.args else ""
    return f"{type(error).__name__} {words}"


def _from_aiohttp(request: web.BaseRequest, error: web.HTTPException) -> web.Response:
    message = f"{error.reason}: {request.method} {request.path}"
    # Of the headers only the one that 405 must have: the others are of aiohttp's own body.
    allow = error.headers.get("Allow")
    headers = None if allow is None else {"Allow": allow}
    return json_answer(error_body(message, error.status), error.status, headers)
