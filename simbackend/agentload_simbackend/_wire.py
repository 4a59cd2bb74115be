"""What the simulator's server and its clients agree on, beyond OpenAI's API.

Request headers tell a request's place in a session, and each answer carries an object `agentload` that says
where its time went. Cheap to import: both sides use it.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

import msgspec

SESSION_HEADER = "x-session-id"
"""Whose requests are one session. Encoded, as are the other two; see `encode_id`."""

TURN_HEADER = "x-agentload-turn-id"
"""The turn; with seed and session it determines the answer's text and the engine's draws."""

AGENT_HEADER = "x-agentload-agent-id"
"""The sub-agent whose context a request continues; absent for the session's main agent."""


CLASS_HEADER = "x-agentload-class"
"""The latency class: interactive, standard or batch. It goes before what the body says of priority."""

CONTENT_HEADER = "x-agentload-content"
"""The content class, which decides how many tokens a step of speculative decoding yields."""


class ServerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The object `agentload` of an answer.

    The four phases are the engine's and sum to its time for the request; `server_ns` is the clock's, from
    the arrival of the request to its last byte. `cached_tokens`: prompt tokens that needed no prefill.
    `handoff_tokens`: prompt tokens whose KV crossed to the decode replica. `steps`: decode steps. `replica`:
    which decode replica, from 0.
    """

    queue_ns: int
    prefill_ns: int
    handoff_ns: int
    decode_ns: int
    cached_tokens: int
    steps: int
    replica: int
    server_ns: int
    handoff_tokens: int | None = None


class SimulatedModel(msgspec.Struct, frozen=True):
    """The object `agentload` of a model in `/v1/models`: that it is simulated, and what its numbers rest on.

    mode: co-execution mode. spec_sha256: of the specs. conditions: see `Deployment.conditions`.
    """

    mode: str
    spec_sha256: str
    conditions: tuple[str, ...]


def encode_id(text: str) -> str:
    """Put an id into a header's value: percent-encoded UTF-8, all but letters, digits and `-._~`.

    Ids may hold anything, line breaks and non-ASCII text too; a header may not.
    """
    return quote(text, safe="")


def decode_id(value: str) -> str:
    """Take an id out of a header's value.

    A value without a percent sign is the id itself, and so is a `%` that two hexadecimal digits do not
    follow. Bytes that are no UTF-8 are replaced.
    """
    return unquote(value)
