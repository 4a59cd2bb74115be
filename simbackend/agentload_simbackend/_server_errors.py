"""Errors of the HTTP API, in OpenAI's shape."""

from __future__ import annotations

import math
import re

import msgspec

from agentload_simbackend._api import Failed, Rejected
from agentload_simbackend._error_codes import CONTEXT_LENGTH_EXCEEDED

_TYPES = {429: "rate_limit_error", 503: "service_unavailable_error", 500: "server_error"}
_PATH = re.compile(r" - at `\$\.?(.*)`$")


class ApiError(Exception):
    """A request is answered with an error.

    status: HTTP status. param: the field of the request that is wrong. code: OpenAI's error code.
    retry_after_s: when to try again, for the header `Retry-After`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ):
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers: dict[str, str] = {}
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(math.ceil(retry_after_s))  # RFC 9110 has whole seconds only

    def body(self) -> bytes:
        """The JSON body of the answer."""
        return error_body(self.message, self.status, self.param, self.code)


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error in OpenAI's shape."""
    kind = _TYPES.get(status, "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def bad_json(error: Exception) -> ApiError:
    """The body is no JSON."""
    return ApiError(f"We could not parse the JSON body of your request. ({error})")


def bad_field(error: msgspec.ValidationError, prefix: str = "") -> ApiError:
    """A field has the wrong type or value; `prefix` is the path of the part that was decoded."""
    text = str(error)
    match = _PATH.search(text)
    param = prefix
    if match:
        text = text[: match.start()]
        param = f"{prefix}.{match[1]}" if prefix and not match[1].startswith("[") else prefix + match[1]
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return ApiError(f"Missing required parameter: '{param}'.", param=param)
    return ApiError(f"Invalid value for '{param}': {text}." if param else f"{text}.", param=param or None)


def rejection(rejected: Rejected, input_tokens: int, output_tokens: int, limit: int | None) -> ApiError:
    """What the engine's refusal of a request looks like on the wire."""
    if rejected.code == CONTEXT_LENGTH_EXCEEDED and limit is not None:
        return ApiError(_too_long(input_tokens, output_tokens, limit), param="messages", code=rejected.code)
    return ApiError(
        rejected.message, status=rejected.status, code=rejected.code, retry_after_s=rejected.retry_after_s
    )


def failure(failed: Failed) -> ApiError:
    """What a request that a fault ended looks like where nothing of its answer was sent."""
    return ApiError(failed.message, status=503, code=failed.code)


def _too_long(input_tokens: int, output_tokens: int, limit: int) -> str:
    """OpenAI's two wordings; agent frameworks look for them."""
    if input_tokens > limit:
        return (
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{input_tokens} tokens. Please reduce the length of the messages."
        )
    return (
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{input_tokens + output_tokens} tokens ({input_tokens} in the messages, {output_tokens} in the "
        "completion). Please reduce the length of the messages or completion."
    )
