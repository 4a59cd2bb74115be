"""What the events of an answer add up to, whichever API they are of."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from agentload._answers_types import Failure, LiveMessage, LiveToolCall, Usage
from agentload._answers_usage import times_of
from agentload._http_client import Marks
from agentload._one_line import one_line
from agentload_simbackend import Arrival, ServerTimes
from agentload_traces import ErrorKind, count_tokens

TEXT, REASONING, UNKEPT = 0, 1, -1
"""Slots of a message. UNKEPT: generated, and so counted, but no part of the message's texts."""

_FIRST_CALL = 2


class Call:
    """A tool call as far as it has come. slot: where its arguments go."""

    __slots__ = ("call_id", "name", "slot")

    def __init__(self, call_id: str, slot: int) -> None:
        self.call_id, self.slot = call_id, slot
        self.name = ""


class Gathered:
    """Generated texts in the order in which they came, and what the endpoint said beside.

    texts, counts, ends, slots: of each piece its text, its tokens, where in the body its event ends, and
    which part of the message it belongs to.
    """

    __slots__ = (
        "calls",
        "counts",
        "ends",
        "failure",
        "finish_reason",
        "slots",
        "texts",
        "timing",
        "usage",
    )

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.counts: list[int] = []
        self.ends: list[int] = []
        self.slots: list[int] = []
        self.calls: list[Call] = []
        self.usage: Usage | None = None
        self.timing: ServerTimes | None = None
        self.finish_reason: str | None = None
        self.failure: Failure | None = None

    def add(self, text: str, end: int, slot: int) -> None:
        """Note text that the model generated."""
        if text:
            self.texts.append(text)
            self.counts.append(piece_tokens(text))
            self.ends.append(end)
            self.slots.append(slot)

    def start_call(self, call_id: str | None) -> Call:
        """Begin a tool call; one without an id gets one."""
        number = len(self.calls)
        call = Call(call_id or f"call_{number}", _FIRST_CALL + number)
        self.calls.append(call)
        return call

    def name_call(self, call: Call, name: str | None, end: int) -> None:
        """Note a call's name, or a further part of it; some endpoints repeat it with every delta."""
        if name and name != call.name:
            call.name += name
            self.add(name, end, UNKEPT)

    def finish(self, reason: str) -> None:
        """Note why the answer ended; some endpoints say so where they failed."""
        self.finish_reason = one_line(reason)
        if reason in _FAILED:
            self.fail("error_event", f"the answer ended with finish reason {reason!r}")

    def take_times(self, told: Any) -> None:
        """Note the times that a simulated endpoint tells; what makes no sense changes nothing."""
        if told is not None:
            self.timing = times_of(told) or self.timing

    def fail(self, kind: ErrorKind, text: str) -> None:
        """Note what is wrong; the first thing is what counts."""
        self.failure = self.failure or Failure(kind, text)

    def total_tokens(self) -> int:
        """Tokens of the whole text."""
        return text_tokens("".join(self.texts))

    def message(self) -> LiveMessage:
        """Put the pieces together."""
        parts: list[list[str]] = [[] for _ in range(_FIRST_CALL + len(self.calls))]
        for slot, text in zip(self.slots, self.texts, strict=True):
            if slot != UNKEPT:
                parts[slot].append(text)
        whole = [clean("".join(part)) for part in parts]
        calls = tuple(
            LiveToolCall(clean(call.call_id), clean(call.name), whole[call.slot] or "{}")
            for call in self.calls
        )
        return LiveMessage(whole[TEXT], whole[REASONING], calls)

    def arrivals(self, total: int, marks: Marks) -> list[Arrival]:
        """Tokens by the read that completed their event.

        Deltas are counted one by one and scaled to the count of the whole text, since a token may be split
        between two deltas.
        """
        whole = sum(self.counts)
        times, sizes = marks
        if not whole or not times:
            return []
        arrivals = []
        read, last = 0, len(times) - 1
        seen = given = 0
        for count, end in zip(self.counts, self.ends, strict=True):
            if sizes[read] < end:
                if (arrived := seen * total // whole) > given:
                    arrivals.append(Arrival(times[read], arrived - given))
                    given = arrived
                while read < last and sizes[read] < end:
                    read += 1
            seen += count
        if total > given:
            arrivals.append(Arrival(times[read], total - given))
        return arrivals


class Reader(Protocol):
    """Reads the events of one API into `gathered`. noun: what an event of the API is."""

    gathered: Gathered
    noun: str

    def take(self, data: bytes, end: int) -> None:
        """Read the data of an event that ends at `end` in the body; raises one of `NOT_JSON`."""
        ...

    def take_whole(self, data: bytes) -> None:
        """Read an answer that is not streamed; raises one of `NOT_JSON`."""
        ...

    def plain(self, data: bytes) -> tuple[int, str] | None:
        """Say slot and text of an event that holds one piece of text and nothing else; changes nothing.

        Raises one of `NOT_JSON`.
        """
        ...


_FAILED = frozenset({"error", "abort", "network_error"})
"""Finish reasons of endpoints that failed: OpenRouter and vLLM, vLLM, Zhipu."""


def piece_tokens(text: str) -> int:
    """Tokens of a delta. They repeat: words at one token an event, and the same phrases of tools."""
    return _short_tokens(text) if len(text) <= SHORT else text_tokens(text)


SHORT = 64
"""Characters of a text that is remembered: what is longer seldom comes again, and would fill the memory."""


@lru_cache(maxsize=65536)
def _short_tokens(text: str) -> int:
    return text_tokens(text)


def text_tokens(text: str) -> int:
    """Tokens of any text that JSON can hold."""
    try:
        return count_tokens(text)
    except UnicodeEncodeError:
        return count_tokens(clean(text))


def clean(text: str) -> str:
    """Text that can be encoded: lone surrogates replaced, and pairs that came in two parts joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
