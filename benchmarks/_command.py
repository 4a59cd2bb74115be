"""Runs a command and measures what its whole tree of processes takes (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SAMPLE_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_CPU_OF_PROCESS = 2
"""The clock of a process's CPU time is named by its pid and this, see clock_getcpuclockid(3)."""


class Spent(NamedTuple):
    """What a command took. cpu_s: of all its processes, ended ones too, to the last.

    at_ns, cpu_ns: samples of that, by `time.monotonic_ns`. peak_rss_bytes: the sum over its processes.
    foreign_cores: how many cores were busy with something else meanwhile.
    """

    exit_code: int
    output: str
    wall_s: float
    cpu_s: float
    at_ns: list[int]
    cpu_ns: list[int]
    peak_rss_bytes: int
    foreign_cores: float

    def cpu_until_ns(self, at_ns: int) -> float:
        """CPU time by then, between two samples in proportion."""
        right = bisect_right(self.at_ns, at_ns)
        if right in (0, len(self.at_ns)):
            return self.cpu_ns[0] if right == 0 else self.cpu_s * 1e9
        (t0, t1), (c0, c1) = self.at_ns[right - 1 : right + 1], self.cpu_ns[right - 1 : right + 1]
        return c0 + (c1 - c0) * (at_ns - t0) / (t1 - t0)


def run_measured(
    command: Sequence[str | Path], *, apart: Sequence[int] = (), timeout_s: float = 600
) -> Spent:
    """Run a command to its end. apart: further processes whose CPU time is not foreign."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    busy_s, apart_ns, began = _busy_s(), sum(map(_cpu_ns, apart)), time.monotonic()
    with tempfile.TemporaryFile() as output_file:
        # Compiled once and kept, as everybody's programs are.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(command, stdout=output_file, stderr=subprocess.STDOUT, env=environment)
        sampler = _Sampler(process.pid)
        sampler.start()
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        # Not `process.wait`: this way tells what the process and those it has waited for took.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        timer.cancel()
        sampler.done.set()
        sampler.join()
        output_file.seek(0)
        output = output_file.read().decode(errors="replace")
    cpu_s = usage.ru_utime + usage.ru_stime + _end_orphans(apart)
    foreign_s = _busy_s() - busy_s - cpu_s - (sum(map(_cpu_ns, apart)) - apart_ns) / 1e9
    return Spent(
        process.returncode,
        output,
        wall_s,
        cpu_s,
        sampler.at_ns,
        sampler.cpu_ns,
        sampler.peak_rss_bytes,
        max(0.0, foreign_s / wall_s),
    )


class _Sampler(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._by_process: dict[int, int] = {}
        self.done = threading.Event()
        self.at_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.peak_rss_bytes = 0

    def run(self) -> None:
        while not self.done.wait(_SAMPLE_S):
            rss = 0
            for pid in [self._pid, *_descendants(self._pid)]:
                with suppress(OSError):
                    self._by_process[pid] = _cpu_ns(pid)
                    rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            self.at_ns.append(time.monotonic_ns())
            self.cpu_ns.append(sum(self._by_process.values()))
            self.peak_rss_bytes = max(self.peak_rss_bytes, rss * os.sysconf("SC_PAGE_SIZE"))


def _end_orphans(apart: Sequence[int]) -> float:
    """End what a command has left behind; returns the CPU seconds of that."""
    cpu_s = 0.0
    for pid in _children(os.getpid()):
        if pid not in apart:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                usage = os.wait4(pid, 0)[2]
                cpu_s += usage.ru_utime + usage.ru_stime
    return cpu_s


def _descendants(pid: int) -> list[int]:
    found = []
    for child in _children(pid):
        found += [child, *_descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns((~pid << 3) | _CPU_OF_PROCESS)


def _busy_s() -> float:
    """CPU seconds of the whole machine so far, waiting apart."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")
