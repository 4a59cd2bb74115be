"""How long an endpoint asks to wait before a request is sent again."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agentload._http_client import Answer

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_EPOCH_S = 1e9
_EPOCH_MS = 1e12
"""A number from here on is a time, not a duration: seconds or milliseconds since 1970."""

_LIMITS = [(f"x-ratelimit-reset-{of}", f"x-ratelimit-remaining-{of}") for of in ("requests", "tokens")] + [
    (f"anthropic-ratelimit-{of}-reset", f"anthropic-ratelimit-{of}-remaining")
    for of in ("requests", "tokens", "input-tokens", "output-tokens")
]
"""Headers that say when a limit is lifted, and how much of it is left."""


def retry_after_s(answer: Answer) -> float | None:
    """Seconds that an answer asks to wait, at least 0; `None` if it does not, or not in a readable way.

    Read are `retry-after-ms` (Azure), `retry-after` in seconds or as a date, and, of an answer with status
    429, when the limits are lifted that have nothing left: the latest of `x-ratelimit-reset-*` (OpenAI:
    "6m0s"; others: seconds, or a time) and `anthropic-ratelimit-*-reset`. Times count from the answer's own
    `date`.
    """
    headers = answer.headers
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    now_s = _date_s(headers.get("date", ""))
    if now_s is None:
        now_s = time.time()
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    if (date_s := _date_s(value)) is not None:
        return max(0.0, date_s - now_s)
    if answer.status != 429:
        return None
    waits = [
        wait_s
        for reset, remaining in _LIMITS
        if _number(headers.get(remaining, "0")) == 0 and (wait_s := _wait_s(headers.get(reset, ""), now_s))
    ]
    return max(waits, default=None)


def _number(text: str) -> float | None:
    """A finite number that is not negative."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _wait_s(value: str, now_s: float) -> float | None:
    """What a reset header says: a duration, seconds, or a time."""
    value = value.strip()
    number = _number(value)
    if number is not None:
        if number >= _EPOCH_MS:
            number /= 1000
        return max(0.0, number - now_s) if number >= _EPOCH_S else number
    if _DURATION.fullmatch(value):
        return sum(float(part) * _UNIT_S[unit] for part, unit in _PART.findall(value))
    date_s = _date_s(value)
    return None if date_s is None else max(0.0, date_s - now_s)


def _date_s(text: str) -> float | None:
    """An HTTP date or an RFC 3339 time, in seconds since 1970."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text.strip())
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    return None
