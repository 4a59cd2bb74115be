"""Runs points on all cores: a process for each, and results that do not depend on how many there are.

Nothing heavy is imported here, for `_start_worker` must run before Polars is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from agentload._sweep_points import SweepPoint
from agentload._sweep_results import Row
from agentload_traces import AgentloadError


class WorkerDiedError(AgentloadError):
    """A process that ran points is gone; no more points come."""


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_points(points: Sequence[SweepPoint], jobs: int, done: Callable[[int, Row], None]) -> None:
    """Run all points and tell of each by its index, as they end.

    With one job they are run here, in their order. A `KeyboardInterrupt` ends it at once, with the workers.
    Raises `WorkerDiedError` if a worker dies.
    """
    jobs = min(jobs, len(points))
    if jobs <= 1:
        for index, point in enumerate(points):
            done(index, _measure(point))
        return
    with _pool(jobs) as pool:
        # The longest first, so that no core is left with one of them at the end.
        order = sorted(range(len(points)), key=lambda index: -points[index].concurrency)
        indices = {pool.submit(_measure, points[index]): index for index in order}
        try:
            for future in as_completed(indices):
                done(indices[future], future.result())
        except BrokenProcessPool:
            raise WorkerDiedError(
                "a worker process died, perhaps for want of memory; try fewer --jobs"
            ) from None


def _measure(point: SweepPoint) -> Row:
    from agentload._sweep_measure import measure

    return measure(point)


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a fork would copy the locks of this process's threads in whatever state they are.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The workers are as many as the cores already.
    os.environ["POLARS_MAX_THREADS"] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed ends no workers, and they would wait for it for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
