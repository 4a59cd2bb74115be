"""Workers: their rows arrive whole and in order, and none of them outlives the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, monotonic_ns, sleep

import pytest

from agentload._workers import LEAD_NS, run_workers
from agentload_traces import AgentloadError, ClientRow, RequestRow, ToolCallRow


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


class Sink:
    """Keeps rows in the order in which they come; `on_row` is called with how many turns there are."""

    def __init__(self, on_row: Callable[[int], None] = lambda count: None) -> None:
        self.order: list[RequestRow | ToolCallRow] = []
        self.requests: list[RequestRow] = []
        self.clients: list[ClientRow] = []
        self.ticks = 0
        self._on_row = on_row

    def add_request(self, row: RequestRow) -> None:
        self.order.append(row)
        self.requests.append(row)
        self._on_row(len(self.requests))

    def add_tool_call(self, row: ToolCallRow) -> None:
        self.order.append(row)

    def add_client(self, row: ClientRow) -> None:
        self.clients.append(row)

    def tick(self, now_ns: int) -> None:
        self.ticks += 1


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _wait_until(holds: Callable[[], bool]) -> None:
    end = monotonic() + 30
    while not holds():
        assert monotonic() < end, "waited for nothing"
        sleep(0.01)


def test_rows_of_all_workers_arrive_whole_and_each_worker_s_in_order() -> None:
    sink, origins, turns = Sink(), list[int](), list[int]()
    began_ns = monotonic_ns()
    argument = {"turns": 500}
    ended = run_workers(
        "worker_entries:rows",
        argument,
        3,
        sink,
        clock_start_ns=5_000_000_000,
        on_start=origins.append,
        progress=lambda: turns.append(1),
    )
    assert not ended.interrupted
    expected = [{"origin_ns": origins[0], "share": [n, 3], "argument": argument} for n in range(3)]
    assert ended.results == expected
    assert began_ns <= origins[0] + 5_000_000_000 - LEAD_NS <= monotonic_ns()
    sent_and_ended = [row for row in sink.requests if row.status == "ok"]
    assert len(turns) == len(sent_and_ended) == 1_470
    assert sorted(row.worker for row in sink.clients) == [0, 1, 2]
    for number in range(3):
        own = [row for row in sink.order if row.session_id == f"s{number}"]
        names = [(type(row), row.turn_id) for row in own]
        assert names == [(kind, f"t{n}") for n in range(500) for kind in (ToolCallRow, RequestRow)]
    texts = [row.error for row in sink.requests if row.error is not None]
    assert sorted(texts) == sorted(f"line\n{n} \u00e9" for n in (7, 107, 207, 307, 407) for _ in range(3))


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_drains_the_workers_and_twice_stops_them(stubborn: bool) -> None:
    told: list[bool] = []

    def press(count: int) -> None:
        if count == 2:
            signal.raise_signal(signal.SIGINT)

    def interrupted(again: bool) -> None:
        told.append(again)
        if stubborn and not again:
            signal.raise_signal(signal.SIGINT)

    sink = Sink(press)
    ended = run_workers("worker_entries:until_told", {"stubborn": stubborn}, 2, sink, interrupted=interrupted)
    assert ended.interrupted
    said = ["drain", "stop"] if stubborn else ["drain"]
    assert ended.results == [said, said]
    assert told == [False, True][: len(said)]
    assert len(sink.requests) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert all(_gone(row.turn_index) for row in sink.requests)


@pytest.mark.parametrize("when", ["starting", "running"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("exit", "worker 2 of 3 ended with exit code 3"),
        ("told", "^the trace is gone$"),
        ("defect", "^worker 2: RuntimeError: a defect of two lines$"),
    ],
)
def test_the_end_of_a_worker_is_told_and_ends_the_others(how: str, says: str, when: str) -> None:
    sink = Sink()
    with pytest.raises(AgentloadError, match=says):
        run_workers("worker_entries:one_dies", {"how": how, "when": when}, 3, sink)
    if when == "running" and how != "exit":
        assert "s1" in {row.session_id for row in sink.requests}
    assert all(_gone(row.turn_index) for row in sink.requests)


def test_a_worker_that_is_killed_is_named_and_its_rows_are_kept() -> None:
    def kill(count: int) -> None:
        if count == 3:
            os.kill(next(row.turn_index for row in sink.requests if row.session_id == "s1"), signal.SIGKILL)

    sink = Sink(kill)
    with pytest.raises(AgentloadError, match="worker 2 of 3 was killed by SIGKILL"):
        run_workers("worker_entries:one_dies", {"how": "waits"}, 3, sink)
    assert {row.session_id for row in sink.requests} == {"s0", "s1", "s2"}
    assert all(_gone(row.turn_index) for row in sink.requests)


def test_a_sink_that_fails_ends_all_workers() -> None:
    def full(count: int) -> None:
        if count == 2:
            raise OSError("disk full")

    sink = Sink(full)
    with pytest.raises(OSError, match="disk full"):
        run_workers("worker_entries:until_told", {}, 2, sink)
    assert all(_gone(row.turn_index) for row in sink.requests)


def test_ctrl_c_before_all_are_ready_begins_nothing() -> None:
    started: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_workers("worker_entries:never_ready", None, 2, Sink(), on_start=started.append)
    assert started == []


_KILLED_PARENT = """
import sys
from agentload._workers import LEAD_NS, run_workers
from test_workers import Sink
sink = Sink(lambda count: print(sink.requests[-1].turn_index, flush=True))
run_workers("worker_entries:until_told", {}, 2, sink)
"""


def test_no_worker_outlives_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED_PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert not any(map(_gone, workers))
        parent.kill()
        parent.wait()
        _wait_until(lambda: all(map(_gone, workers)))
