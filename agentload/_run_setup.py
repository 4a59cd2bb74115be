"""What a run is made of besides its trace and target: faults, slots for tools, content, and what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from agentload._context_limit import ContextLimit, ContextPlan, context_limit, look_through
from agentload._endpoint import Endpoint
from agentload._options import ReplayOptions
from agentload._tools import tool_conditions
from agentload_simbackend import (
    CLASS_HEADER,
    CONTENT_HEADER,
    Deployment,
    Fault,
    build_engine,
    faults_sentence,
    load_faults,
)
from agentload_traces import AgentloadError, Session, SpecError, TraceReader, Turn, counted, decodable


class RunSetup(NamedTuple):
    """What a run is made of besides its trace and target.

    tool_slots: `None` is without limit. conditions: a sentence each.
    context: `None` for an endpoint that does not tell how long one may be.
    """

    faults: tuple[Fault, ...]
    tool_slots: int | None
    context: ContextPlan | None
    conditions: tuple[str, ...]

    def sessions(self, sessions: Iterable[Session]) -> Iterable[Session]:
        """The sessions as they are to be played."""
        return self.context.sessions(sessions) if self.context else sessions

    @property
    def unfit(self) -> Callable[[Turn], str | None] | None:
        """See `SessionPlayer`."""
        return self.context.limit.reason if self.context and self.context.left else None


def prepare_run(
    options: ReplayOptions, reader: TraceReader, deployment: Deployment, tell: Callable[[str], None]
) -> RunSetup:
    """Look through the trace and work out what a run on a deployment needs; nothing is written yet.

    tell: called with what a user must know before the run starts.
    Raises `AgentloadError` if an option does not fit the target, the faults are wrong, the trace has turns
    that do not fit and are to be refused, or (when strict) for its first bad line.
    """
    faults = load_faults(options.faults) if options.faults else ()
    if options.faults:
        check_faults(options.faults, faults, deployment)
    _check_content(options.content, deployment)
    slots = options.tooling.tool_slots if options.tooling.tool_slots is not None else deployment.tool_slots
    context = _fitted(options, reader, context_limit(deployment), tell)
    conditions = [*_conditions(options, slots or None, deployment), *context.conditions()]
    if options.faults:
        conditions.append(faults_sentence(options.faults, faults))
    return RunSetup(faults, slots or None, context, tuple(conditions))


def prepare_endpoint_run(
    options: ReplayOptions, reader: TraceReader, endpoint: Endpoint, tell: Callable[[str], None]
) -> RunSetup:
    """As `prepare_run`, for an endpoint."""
    slots = options.tooling.tool_slots or None
    conditions = _conditions(options, slots, None)
    if endpoint.max_model_len is not None:
        limit = ContextLimit(
            endpoint.max_model_len, f"the context of {endpoint.model} at {endpoint.base_url}"
        )
        context = _fitted(options, reader, limit, tell)
        return RunSetup((), slots, context, (*conditions, *context.conditions()))
    if options.on_overflow != "refuse":
        raise AgentloadError(
            f"--on-overflow {options.on_overflow}: {endpoint.base_url} tells no max_model_len of"
            f" {endpoint.model}, so which turns outgrow its context is unknown; leave the option out"
        )
    if options.strict:
        # A run must not end at a bad line halfway, so all lines are read before it starts.
        for _ in reader.turns():
            pass
    return RunSetup((), slots, None, tuple(conditions))


def check_faults(path: Path, faults: Sequence[Fault], deployment: Deployment) -> None:
    """Raise `SpecError`, with the file and the fault, for one that cannot befall a deployment."""
    for fault in faults:
        try:
            build_engine(deployment, 0, faults=(fault,))
        except SpecError as error:
            what = f"{decodable(path)}: at {fault.at_s:g} s, on {deployment.name}"
            raise SpecError(f"{what}: {error}") from None


def _fitted(
    options: ReplayOptions, reader: TraceReader, limit: ContextLimit, tell: Callable[[str], None]
) -> ContextPlan:
    context = look_through(reader, limit, options.on_overflow, _turns_looked_at(options))
    if refusal := context.refusal():
        raise AgentloadError(f"{reader.name}: {refusal}")
    if warning := context.warning():
        tell(warning)
    return context


def _turns_looked_at(options: ReplayOptions) -> int | None:
    """How many turns of a session may be sent, counted from its first; `None` is all."""
    load = options.load
    if load.start_turn == "random" or load.max_turns is None:
        return None
    return int(load.start_turn) + load.max_turns


def _check_content(content: str | None, deployment: Deployment) -> None:
    if content is None:
        return
    speculation = deployment.spec.speculation
    if speculation is None:
        raise AgentloadError(
            f"--content {content}: {deployment.name} does not speculate, so it changes nothing; leave it out"
        )
    if content not in speculation.acceptance_length:
        known = ", ".join(sorted(speculation.acceptance_length))
        raise AgentloadError(f"--content {content}: {deployment.name} knows {known}")


def _conditions(options: ReplayOptions, slots: int | None, deployment: Deployment | None) -> list[str]:
    sentences = []
    if options.content is not None:
        speculation = deployment.spec.speculation if deployment else None
        length = speculation.acceptance_length[options.content] if speculation else None
        rest = "" if length is None else f": {length.value:g} tokens a step, {length.kind.replace('_', ' ')}"
        sentences.append(f"All requests are of the content class {options.content}{rest}.")
    if options.latency_class is not None:
        sentences.append(f"All requests are of the latency class {options.latency_class}.")
    sentences += tool_conditions(options.tooling)
    if slots is not None:
        sentences.append(f"Tools run in {counted(slots, 'slot')}; further calls wait.")
    return sentences


def class_headers(options: ReplayOptions) -> dict[str, str]:
    """The headers by which every request tells its classes."""
    told = {CLASS_HEADER: options.latency_class, CONTENT_HEADER: options.content}
    return {name: value for name, value in told.items() if value is not None}
