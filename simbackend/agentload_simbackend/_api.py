"""What goes into the simulator's engine and what comes out of it.

The engine is sans-IO: it is told the time (integer nanoseconds on any clock that never goes back) and
answers with emissions. Both drivers, virtual time and wall clock, use only `Engine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from agentload_simbackend._faults import Fault

LatencyClass = Literal["interactive", "standard", "batch"]
"""Whom the router serves first; see `RouterSpec.allowance`."""


class PromptRun(NamedTuple):
    """A piece of a prompt: the first `tokens` tokens of the text named `key`.

    Equal keys are equal text. A prompt is a sequence of runs; two prompts share their leading runs, the
    last of them up to the smaller token count.
    """

    key: str | int
    tokens: int


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the engine.

    session_id, turn_id: with the engine's seed they determine every random draw of the request.
    context_id: the agent context (session and agent) that this request continues; KV of an earlier
        request with the same context may still be resident.
    prompt_runs: content of the prompt; their tokens sum to `input_tokens`.
    output_tokens: how many tokens the answer has, at least 1.
    content: content class, which decides the acceptance length (`None`: the deployment's default).
    latency_class: how the router ranks it.
    """

    request_id: int
    session_id: str
    turn_id: str
    context_id: str
    prompt_runs: Sequence[PromptRun]
    input_tokens: int
    output_tokens: int
    content: str | None = None
    latency_class: LatencyClass = "standard"


class Phases(msgspec.Struct, frozen=True):
    """Where the time of a request went; sums to (finished - submitted) exactly."""

    queue_ns: int
    prefill_ns: int
    handoff_ns: int
    decode_ns: int


class Arrival(NamedTuple):
    """`tokens` tokens that left the engine at `at_ns`."""

    at_ns: int
    tokens: int


class FirstToken(msgspec.Struct, frozen=True):
    """The first decode step of a request ended."""

    request_id: int
    at_ns: int


class Finished(msgspec.Struct, frozen=True):
    """A request was answered whole.

    arrivals: works out the token timeline when called (O(steps)); its tokens sum to `output_tokens`,
    its last time is `at_ns`.
    """

    request_id: int
    at_ns: int
    first_token_at_ns: int
    phases: Phases
    cached_tokens: int
    handoff_tokens: int
    output_tokens: int
    steps: int
    replica: int
    arrivals: ArrivalsFunction


class Rejected(msgspec.Struct, frozen=True):
    """A request was refused; `code` is a provider's error code, `message` one line with the arithmetic.

    status: what a server answers with (400, 429, 503). retry_after_s: when to try again, where that helps.
    """

    request_id: int
    at_ns: int
    code: str
    message: str
    status: int = 400
    retry_after_s: float | None = None


class Failed(msgspec.Struct, frozen=True):
    """A request that was under way ended by a fault, before its answer was whole.

    phases: where its time went until then; they sum to `at_ns` less its submission.
    first_token_at_ns: `None` if nothing had come. output_tokens: how many had come, as `arrivals` gives them.
    """

    request_id: int
    at_ns: int
    code: str
    message: str
    phases: Phases
    first_token_at_ns: int | None
    output_tokens: int
    replica: int | None
    arrivals: ArrivalsFunction


Emission = FirstToken | Finished | Rejected | Failed


class ArrivalsFunction(Protocol):
    """Works out the token timeline of one finished request."""

    def __call__(self) -> list[Arrival]:
        """Return the arrivals in order of time."""
        ...


class Engine(Protocol):
    """A simulated deployment. Times given to `submit`, `cancel` and `advance` never decrease.

    An engine may raise `ValueError` if one does.
    """

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        """Take a request at `now_ns`; its fate comes out of `advance`."""
        ...

    def cancel(self, request_id: int, now_ns: int) -> None:
        """Forget a request and free what it holds; unknown or finished ids are ignored."""
        ...

    def inject(self, fault: Fault, now_ns: int) -> None:
        """Let a fault or limit begin at `now_ns`, for as long as it says.

        Raises `SpecError` if it cannot apply.
        """
        ...

    def next_event_ns(self) -> int | None:
        """Time of the next state change, `None` when idle. O(1) events per request, not per token."""
        ...

    def advance(self, now_ns: int) -> list[Emission]:
        """Let time pass up to and including `now_ns`; return what happened, in order of time."""
        ...

    def advance_to_emission(self, limit_ns: int | None) -> list[Emission]:
        """Let time pass until something is emitted, at the most up to `limit_ns` (`None`: without end).

        Returns what is emitted at that one time; nothing if nothing is until `limit_ns`, the time of the
        engine then standing anywhere up to there. The same as `advance` from event to event, in one call.
        """
        ...

    def next_step_ns(self) -> int | None:
        """End of the next decode step that any replica finishes, `None` when nothing decodes."""
        ...

    def progress(self, now_ns: int) -> Iterator[tuple[int, int, int]]:
        """For each request in decode: (request_id, tokens out so far, end of its latest step in ns)."""
        ...
