"""Keeps a run directory while a run is played into it: opened or resumed, ended in order whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from agentload._launches import Planned
from agentload._options import ReplayOptions
from agentload._replay_result import ReplayResult
from agentload._run_manifest import check_same_run, utc_now
from agentload._undisturbed import undisturbed
from agentload_traces import AgentloadError, Manifest, RunReader, RunWriter, TraceReader


def keep_run(
    play: Callable[[RunWriter], Callable[[], None] | None],
    options: ReplayOptions,
    manifest: Manifest,
    reader: TraceReader,
    result: ReplayResult,
    planned: Planned,
) -> None:
    """Play into the run directory; whatever ends it, what was recorded is kept.

    play: returns what is still to be done with a run that was played to its end, if anything. From then on
    nothing disturbs it any more, for it is a matter of moments.
    Ctrl-C ends it quietly from when there is a run that can be resumed.
    """
    try:
        with _open_writer(options, manifest) as writer:
            judge: Callable[[], None] | None = None
            try:
                judge = play(writer)
            except KeyboardInterrupt:
                result.interrupted = True
            except BaseException as failure:
                with suppress(AgentloadError):
                    _finish(writer, reader, "interrupted")
                raise _cause(failure) from None
            with undisturbed():
                result.trace = reader.report
                _note_planned(planned, writer.manifest, result)
                if judge is not None:
                    judge()
                _finish(writer, reader, "interrupted" if result.interrupted else "complete")
    except KeyboardInterrupt:
        if not (options.out / "manifest.json").is_file():
            raise
        result.interrupted = True


def _finish(writer: RunWriter, reader: TraceReader, status: Literal["complete", "interrupted"]) -> None:
    manifest, report = writer.manifest, reader.report
    manifest.ended_at = utc_now()
    manifest.trace_lines_read, manifest.trace_lines_skipped = report.lines_read, report.lines_skipped
    writer.finish(status)


def _cause(failure: BaseException) -> BaseException:
    """What a user can mend, out of the groups that concurrent tasks wrap it in."""
    if isinstance(failure, BaseExceptionGroup) and (group := failure.subgroup(AgentloadError)):
        return _cause(group.exceptions[0])
    return failure


def _open_writer(options: ReplayOptions, manifest: Manifest) -> RunWriter:
    if not options.resume:
        return RunWriter(options.out, manifest)
    check_same_run(options.out, RunReader(options.out).manifest, manifest)
    return RunWriter.resume(options.out)


def _note_planned(planned: Planned, manifest: Manifest, result: ReplayResult) -> None:
    """How much the run was to play is known once all of the trace has been read."""
    if planned.whole:
        manifest.sessions_planned, manifest.turns_planned = planned.sessions, planned.turns
        result.turns_planned = planned.turns
