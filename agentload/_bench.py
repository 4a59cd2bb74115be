"""Benchmarks of output speed by single requests, one after the other: each case is a replay of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from agentload._bench_figures import RequestFigures, request_figures
from agentload._bench_words import COMPARED, BenchKind, Compared, Published, published
from agentload._options import EndpointOptions, LoadOptions, ReplayOptions, ToolOptions
from agentload_traces import (
    AgentloadError,
    Baseline,
    RunReader,
    Turn,
    counted,
    decodable,
    write_trace,
    write_whole,
)

_CODING = "coding"
_RESULTS = "bench.json"


class BenchCase(msgspec.Struct, frozen=True):
    """Requests with prompts and answers of these lengths."""

    input_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """Such as 100K, or 251."""
        return f"{self.input_tokens // 1000}K" if not self.input_tokens % 1000 else str(self.input_tokens)


class BenchOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to measure. out: directory that the runs are written to and kept in; `None` keeps nothing."""

    kind: BenchKind
    target: str
    cases: tuple[BenchCase, ...]
    requests: int
    clock: Literal["virtual", "wall"] = "virtual"
    seed: int = 0
    endpoint: EndpointOptions = EndpointOptions()
    out: Path | None = None


class CaseResult(msgspec.Struct, kw_only=True):
    """What a case gave. error: why it could not be run; then there are no figures.

    valid: whether the client kept up; `None` is not judged. run: its run directory, if it was kept.
    """

    name: str
    input_tokens: int
    output_tokens: int
    figures: RequestFigures | None = None
    published: list[Published]
    error: str | None = None
    valid: bool | None = None
    invalid_reasons: tuple[str, ...] = ()
    run: str | None = None


class BenchResult(msgspec.Struct, kw_only=True):
    """The outcome. cases: those that were finished. interrupted: the others were not.

    conditions: what the numbers hold for, a sentence each.
    """

    benchmark: BenchKind
    target: str
    mode: str | None = None
    model: str | None = None
    clock: Literal["virtual", "wall"]
    seed: int
    requests: int
    concurrency: int = 1
    content: str | None = None
    conditions: list[str]
    compared: tuple[Compared, ...]
    baseline: Baseline | None = None
    cases: list[CaseResult]
    interrupted: bool = False

    @property
    def whole(self) -> bool:
        """Whether every request of every case was answered."""
        return not self.interrupted and all(
            case.figures is not None and not case.figures.failed for case in self.cases
        )


def run_bench(
    options: BenchOptions,
    started: Callable[[BenchCase], None] = lambda case: None,
    progress: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda warning: None,
) -> BenchResult:
    """Measure all cases, one after the other.

    started: called with each case. progress: after each request. tell: with what a user must know.
    Failed requests are counted, and a case that cannot be run says why. Ctrl-C ends the benchmark; what was
    finished is there. Raises `AgentloadError` if no case can be run, or `out` holds something.
    """
    content = _content(options)
    result = BenchResult(
        benchmark=options.kind,
        target=decodable(options.target),
        clock=options.clock,
        seed=options.seed,
        requests=options.requests,
        content=content,
        conditions=[],
        compared=COMPARED[options.kind],
        cases=[],
    )
    with _directory(options.out) as directory:
        try:
            for number, case in enumerate(options.cases):
                started(case)
                if not _measure(options, case, number == 0, content, directory, result, progress, tell):
                    result.interrupted = True
                    break
        except KeyboardInterrupt:
            result.interrupted = True
        errors = [case.error for case in result.cases if case.error is not None]
        if errors and len(errors) == len(options.cases):
            raise AgentloadError(errors[0])
        if options.out is not None and result.cases:
            write_whole(options.out / _RESULTS, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def _measure(
    options: BenchOptions,
    case: BenchCase,
    first: bool,
    content: str | None,
    directory: Path,
    result: BenchResult,
    progress: Callable[[], None],
    tell: Callable[[str], None],
) -> bool:
    """Run a case and add it to the result; False if it was interrupted."""
    from agentload._replay import is_url, replay

    trace, out = directory / f"{case.name}.jsonl", directory / case.name
    done = CaseResult(
        name=case.name,
        input_tokens=case.input_tokens,
        output_tokens=case.output_tokens,
        published=published(options.kind, options.target, case.input_tokens),
        run=decodable(out) if options.out is not None else None,
    )
    try:
        write_trace(trace, _turns(case, options.requests))
        replayed = replay(_replay_options(options, trace, out, content, baseline=first), progress, tell)
    except AgentloadError as error:
        done.error, done.run = str(error), None
        result.cases.append(done)
        return True
    if replayed.interrupted:
        return False
    reader = RunReader(out)
    manifest = reader.manifest
    done.figures = request_figures(reader.requests())
    done.valid, done.invalid_reasons = manifest.valid, manifest.invalid_reasons
    result.cases.append(done)
    if result.mode is None:
        result.mode = manifest.mode
        if is_url(options.target):
            result.model = str(manifest.options["model"])
        result.baseline = manifest.baseline
        result.conditions += _conditions(options, manifest.conditions, manifest.mode == "endpoint")
    return not replayed.told_to_stop


def _replay_options(
    options: BenchOptions, trace: Path, out: Path, content: str | None, *, baseline: bool
) -> ReplayOptions:
    """One session of one turn at a time. What others may have sent before is not to be in any cache."""
    from agentload._replay import is_url

    return ReplayOptions(
        trace=trace,
        out=out,
        target=options.target,
        clock=options.clock,
        seed=options.seed,
        content=content,
        baseline=baseline and options.clock == "wall",
        load=LoadOptions(concurrency=1, salt="random" if is_url(options.target) else None),
        endpoint=options.endpoint,
        tooling=ToolOptions(tool_slots=0),  # there are no tools, and none is to be spoken of
    )


def _turns(case: BenchCase, requests: int) -> Iterator[Turn]:
    for number in range(requests):
        yield Turn(
            session_id=f"{case.name}-{number:04d}",
            turn_id="0",
            input_tokens=case.input_tokens,
            new_input_tokens=case.input_tokens,
            output_tokens=case.output_tokens,
            trigger="user",
        )


def _content(options: BenchOptions) -> str | None:
    """The content class to ask for: that of code, where there are any."""
    from agentload._replay import is_url
    from agentload_simbackend import load_deployment

    if options.kind != "coding":
        return None
    if is_url(options.target):
        from agentload._endpoint import probe_endpoint

        simulated = probe_endpoint(options.endpoint, options.target).simulated
        return _CODING if simulated is not None else None
    speculation = load_deployment(options.target).spec.speculation
    if speculation is None:
        return None
    if _CODING not in speculation.acceptance_length:
        known = ", ".join(sorted(speculation.acceptance_length))
        raise AgentloadError(
            f"{options.target} speculates, and has no acceptance length of the content class coding (it has"
            f" {known}): what it would do on code is not known"
        )
    return _CODING


def _conditions(options: BenchOptions, of_run: tuple[str, ...], endpoint: bool) -> list[str]:
    found = [
        f"{counted(options.requests, 'request')} for each length of prompt, one after the other (concurrency"
        f" 1), each with a prompt of its own; {options.clock} clock."
    ]
    if endpoint:
        found.append("Prompts are made-up words: what a model answers to them, and how long, is its own.")
        return [*found, *of_run]
    return [
        *found,
        *of_run,
        "The simulator counts the model's own tokens and takes them for o200k_base tokens, of which there may"
        " be 5 % more or fewer.",
    ]


@contextmanager
def _directory(out: Path | None) -> Iterator[Path]:
    """Where the runs go: `out`, which must not hold anything, or one that is removed afterwards."""
    if out is None:
        with TemporaryDirectory(prefix="agentload-bench-") as temporary:
            yield Path(temporary)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = next(out.iterdir(), None)
    except OSError as error:
        raise AgentloadError(f"{decodable(out)}: {error.strerror or error}") from None
    if taken is not None:
        raise AgentloadError(f"{decodable(out)} is not empty: name a new directory with --out")
    yield out
