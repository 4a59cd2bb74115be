"""What a run is made of besides its trace and target: faults, slots for tools, content, and what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from agentload._context_limit import ContextPlan, context_limit, look_through
from agentload._run_manifest import ReplayOptions
from agentload_simbackend import CLASS_HEADER, CONTENT_HEADER, Deployment, Fault, faults_sentence, load_faults
from agentload_traces import AgentloadError, Session, TraceReader, Turn


class RunSetup(NamedTuple):
    """tool_slots: `None` is without limit. context: `None` for an endpoint. conditions: a sentence each."""

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
    options: ReplayOptions, reader: TraceReader, deployment: Deployment | None, tell: Callable[[str], None]
) -> RunSetup:
    """Look through the trace and work out what the run needs; nothing is written yet.

    deployment: `None` for an endpoint. tell: called with what a user must know before the run starts.
    Raises `AgentloadError` if an option does not fit the target, the faults are wrong, the trace has turns
    that do not fit and are to be refused, or (when strict) for its first bad line.
    """
    if deployment is None:
        return _for_endpoint(options, reader)
    faults = load_faults(options.faults) if options.faults else ()
    _check_content(options.content, deployment)
    slots = options.tool_slots
    if slots is None and deployment.spec.tool_slots is not None:
        slots = deployment.spec.tool_slots.whole
    context = look_through(reader, context_limit(deployment), options.on_overflow, options.max_turns)
    if refusal := context.refusal():
        raise AgentloadError(f"{reader.name}: {refusal}")
    if warning := context.warning():
        tell(warning)
    conditions = [*_conditions(options, slots or None, deployment), *context.conditions()]
    if options.faults:
        conditions.append(faults_sentence(options.faults, faults))
    return RunSetup(faults, slots or None, context, tuple(conditions))


def _for_endpoint(options: ReplayOptions, reader: TraceReader) -> RunSetup:
    if options.faults:
        raise AgentloadError(
            f"--faults: {options.target} is an endpoint, and its faults are its own; a simulated one takes"
            " them with `agentload serve --faults`"
        )
    if options.content is not None and not (options.content.isascii() and options.content.isprintable()):
        raise AgentloadError(f"--content {options.content!r}: holds characters that cannot stand in a header")
    if options.strict:
        # A run must not end at a bad line halfway, so all lines are read before it starts.
        for _ in reader.turns():
            pass
    slots = options.tool_slots or None
    return RunSetup((), slots, None, tuple(_conditions(options, slots, None)))


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
    if slots is not None:
        sentences.append(f"Tools run in {slots:,} {'slot' if slots == 1 else 'slots'}; further calls wait.")
    return sentences


def class_headers(options: ReplayOptions) -> dict[str, str]:
    """The headers by which every request tells its classes."""
    told = {CLASS_HEADER: options.latency_class, CONTENT_HEADER: options.content}
    return {name: value for name, value in told.items() if value is not None}
