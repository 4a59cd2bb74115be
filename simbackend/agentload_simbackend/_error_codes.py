"""Why a request has no answer: the codes that engines give and the API tells, one for each reason."""

from __future__ import annotations

from typing import Literal

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
INSUFFICIENT_MEMORY = "insufficient_memory"
RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
SERVICE_UNAVAILABLE = "service_unavailable"
REPLICA_FAILED = "replica_failed"
CONNECTION_RESET = "connection_reset"
LINK_FAILED = "link_failed"

REFUSED: dict[Literal[429, 503], str] = {429: RATE_LIMIT_EXCEEDED, 503: SERVICE_UNAVAILABLE}
"""The code of a refusal by its HTTP status."""
