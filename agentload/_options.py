"""The options of a replay, in groups: load, endpoint, failure, tools, and what holds for the whole run.

Every field name is unique over all groups, for the manifest and the command line know them by name alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from agentload_simbackend import LatencyClass

Api = Literal["chat", "responses", "completions", "messages"]
"""OpenAI chat completions, responses and legacy completions; Anthropic messages."""

ArrivalLaw = Literal["recorded", "constant", "poisson", "gamma"]
History = Literal["recorded", "live"]

OverflowPolicy = Literal["refuse", "cut", "compact"]
"""What to do with turns that do not fit.

refuse: do not start. cut: a session ends before its first such turn; what waits for it is not sent either.
compact: the context of the agent is compacted, by the rule of `_compaction`.
"""


class LoadOptions(msgspec.Struct, kw_only=True, frozen=True):
    """When sessions start and how much of them is played.

    concurrency: closed loop with this many sessions active; `None` is open loop.
    arrival: open loop: at recorded start times, or drawn at `rate_per_s` sessions a second.
    burstiness: shape of the gamma law of gaps between arrivals: 1 is Poisson, less is burstier.
    stages: "4x60s,4-16x2m": in a closed loop sessions at a time, in an open one sessions a second, each for a
        time; "a-b" is a ramp. Replaces `concurrency` or `rate_per_s`. After the last no session starts.
    warmup_s: turns that were due before this time of the run are marked as warm-up.
    max_duration_s, max_requests, max_sessions: where the run ends. What is on its way is finished. A trace
        that has fewer sessions ends it before.
    max_turns: turns of each session to play, from its first (or from `start_turn`).
    speed: how much faster than recorded everything passes; arrival_speed, tool_speed, think_speed: one of
        them alone, `None` is as `speed`.
    max_gap_s: no think time, tool call or gap between recorded arrivals is played longer than this.
    start_turn: "0", "12" or "random": from which turn on sessions are played, its history sent as prefix.
    repeat: how many times the trace is played, each time with prefixes of its own.
    salt: makes all prompts differ from those of other runs, so that no prefix cache knows them.
    """

    concurrency: int | None = None
    arrival: ArrivalLaw = "recorded"
    rate_per_s: float | None = None
    burstiness: float = 1.0
    stages: str | None = None
    warmup_s: float = 0.0
    max_duration_s: float | None = None
    max_requests: int | None = None
    max_sessions: int | None = None
    max_turns: int | None = None
    speed: float = 1.0
    arrival_speed: float | None = None
    tool_speed: float | None = None
    think_speed: float | None = None
    max_gap_s: float | None = None
    start_turn: str = "0"
    repeat: int = 1
    salt: str | None = None


class EndpointOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How an endpoint is spoken to.

    api: see `Api`. model: to ask for; `None` is the first that the endpoint lists.
    history: "recorded": the next turn's history is the trace's; "live": it holds what really came.
    tokens: "o200k": prompts have the trace's counts in o200k_base; "server": by the endpoint's own usage,
        to which prompts are fitted as its answers tell how it counts.
    force_output: also send `min_tokens` and `ignore_eos` (vLLM, SGLang, Dynamo), so that answers are as long
        as recorded. Others refuse or ignore these fields.
    more_urls: further URLs of the same service. balance: whose turn it is: "session" keeps all turns of a
        session at one URL, "turn" goes round robin.
    headers: sent with every request; a value may be a secret, so only names are recorded.
    query: "name=value" added to the URL. extra_body: a JSON object merged into every request.
    key_env, key_file: where the key is; sent as `authorization: Bearer`, or `x-api-key` with "messages".
    ca_file, client_cert, client_key, insecure: TLS. proxy: URL of an HTTP proxy. unix_socket: instead of TCP.
    """

    api: Api = "chat"
    model: str | None = None
    history: History = "recorded"
    tokens: Literal["o200k", "server"] = "o200k"
    force_output: bool = False
    more_urls: tuple[str, ...] = ()
    balance: Literal["session", "turn"] = "session"
    headers: tuple[tuple[str, str], ...] = ()
    query: tuple[str, ...] = ()
    extra_body: str | None = None
    key_env: str = "AGENTLOAD_API_KEY"
    key_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    insecure: bool = False
    proxy: str | None = None
    unix_socket: Path | None = None


class FailureOptions(msgspec.Struct, kw_only=True, frozen=True):
    """When a turn has failed and what then.

    *_timeout_s: to open a connection; from the request to the first token; between two reads; in all.
    retries: how often a turn is sent again. retry_on: kinds of failure that are (see `ErrorKind`), comma
        separated. retry_wait_s: before the first retry, doubled for each further one, of which half to all is
        waited; a `Retry-After` of the endpoint counts instead; one beyond retry_max_wait_s ends the turn.
    on_failure: "end": a session ends with its first failed turn; "continue": what waited for it is sent as
        if it had been answered with no tokens and no tool calls.
    """

    connect_timeout_s: float = 30.0
    first_token_timeout_s: float | None = None
    stall_timeout_s: float = 600.0
    total_timeout_s: float | None = None
    retries: int = 0
    retry_on: str = "connect,connect_timeout,reset,rate_limited,unavailable"
    retry_wait_s: float = 0.5
    retry_max_wait_s: float = 60.0
    on_failure: Literal["end", "continue"] = "end"


class ToolOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What tool calls do.

    tools: "recorded": they take the recorded time; "law:FILE": a time drawn from the laws in a TOML file;
        "python:MODULE:FUNCTION" and "mcp:COMMAND": they are really executed.
    tool_slots: tools that run at a time, 0 for any number; `None` is as the deployment says.
    tool_timeout_s: a really executed call that takes longer has failed.
    """

    tools: str = "recorded"
    tool_slots: int | None = None
    tool_timeout_s: float = 600.0


class ReplayOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How to replay a trace.

    trace: path of the trace; trace_format: its format, `None` to recognise it.
    target: name or file of a deployment, or the URL of an endpoint.
    clock: "virtual" simulates in process; "wall" goes over HTTP, to a server of its own for a deployment.
    faults: file of the faults that befall the deployment, see `agentload_simbackend.load_faults`.
    content, latency_class: of all requests; `None` is the deployment's default.
    on_overflow: what to do with turns that outgrow the context of the deployment, or of the endpoint if it
    tells its length.
    arrivals: record each answer's token timeline.
    workers: processes that send (wall clock). baseline: measure this machine's own error before the run.
    resume: `out` is an interrupted run to be finished.
    """

    trace: Path
    out: Path
    target: str = "gemma4-31b/pd"
    clock: Literal["virtual", "wall"] = "virtual"
    seed: int = 0
    trace_format: str | None = None
    strict: bool = False
    arrivals: bool = True
    faults: Path | None = None
    content: str | None = None
    latency_class: LatencyClass | None = None
    on_overflow: OverflowPolicy = "refuse"
    workers: int = 1
    baseline: bool = False
    resume: bool = False
    load: LoadOptions = LoadOptions()
    endpoint: EndpointOptions = EndpointOptions()
    failure: FailureOptions = FailureOptions()
    tooling: ToolOptions = ToolOptions()

    @property
    def target_is_url(self) -> bool:
        """Whether the target is an endpoint's URL."""
        return "://" in self.target


GROUPS: dict[str, type[msgspec.Struct]] = {
    "load": LoadOptions,
    "endpoint": EndpointOptions,
    "failure": FailureOptions,
    "tooling": ToolOptions,
}
"""Field of `ReplayOptions` → its type, for those that are groups."""
