"""Sizing: the search, its law on a synthetic engine, and the command."""

from __future__ import annotations

import json
import re
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import a_named_deployment

from agentload import _sweep_measure
from agentload._cli import cli
from agentload._size import Probe, SizeOptions, largest_that_holds, size
from agentload._sweep_points import SweepPoint, Workload
from agentload._sweep_slo import parse_slo
from agentload_simbackend import (
    Arrival,
    Emission,
    EngineRequest,
    Finished,
    FirstToken,
    Phases,
    load_deployment,
)
from agentload_traces import AgentloadError

MS = 1_000_000


class CrowdedEngine:
    """A request waits 1 ms for each that is there, itself included; its tokens then take 2 ms each."""

    def __init__(self, *_: object) -> None:
        self._due: list[tuple[int, int, Emission]] = []
        self._here = 0

    def submit(self, request: EngineRequest, now_ns: int) -> None:
        self._here += 1
        first_ns = now_ns + self._here * MS
        count = request.output_tokens
        end_ns = first_ns + 2 * MS * (count - 1)
        done = Finished(
            request_id=request.request_id,
            at_ns=end_ns,
            first_token_at_ns=first_ns,
            phases=Phases(first_ns - now_ns, 0, 0, end_ns - first_ns),
            cached_tokens=0,
            handoff_tokens=0,
            output_tokens=count,
            steps=count,
            replica=0,
            arrivals=lambda: [Arrival(first_ns + 2 * MS * index, 1) for index in range(count)],
        )
        heappush(self._due, (first_ns, 2 * request.request_id, FirstToken(request.request_id, first_ns)))
        heappush(self._due, (end_ns, 2 * request.request_id + 1, done))

    def advance_to_emission(self, limit_ns: int | None) -> list[Emission]:
        if not self._due or (limit_ns is not None and self._due[0][0] > limit_ns):
            return []
        _, _, emission = heappop(self._due)
        self._here -= isinstance(emission, Finished)
        return [emission]


@given(answer=st.integers(0, 3_000), most=st.integers(1, 2_000))
def test_the_search_finds_the_last_that_holds_with_few_probes(answer: int, most: int) -> None:
    tried: list[int] = []

    def holds(number: int) -> bool:
        tried.append(number)
        return number <= answer

    assert largest_that_holds(holds, most) == min(answer, most)
    assert len(tried) == len(set(tried)) <= 2 * max(answer, 1).bit_length() + 1
    assert all(1 <= number <= most for number in tried)


@given(answer=st.integers(0, 300), first=st.integers(1, 100), more=st.integers(0, 400))
def test_the_search_may_start_anywhere(answer: int, first: int, more: int) -> None:
    assert largest_that_holds(lambda number: number <= answer, first + more, first) == min(
        answer, first + more
    )


@pytest.mark.parametrize("limit_ms", [1, 5, 24, 31])
def test_the_knee_of_an_engine_that_is_known(limit_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sweep_measure, "build_engine", CrowdedEngine)
    shown: list[Probe] = []
    options = SizeOptions(
        target="gemma4-31b/pd",
        slo=parse_slo(f"ttft.max={limit_ms}ms"),
        workload=Workload(turns=5, output_tokens=20, tool_s=0),
        context_tokens=1_000,
        most=100,
    )
    found = size(options, shown.append)
    assert found.largest == limit_ms
    assert not found.at_limit
    assert found.at is not None
    assert found.above is not None
    assert found.above.broken == [f"ttft max {limit_ms + 1} ms > {limit_ms}ms"]
    assert shown == found.probes
    assert (found.at.concurrency, found.above.concurrency) == (limit_ms, limit_ms + 1)
    for name in ("sessions", "turns", "output_tokens"):
        assert found.at.row[name] == found.above.row[name], "both play the same sessions"
    assert {probe.concurrency: probe.holds for probe in shown} == {
        probe.concurrency: probe.concurrency <= limit_ms for probe in shown
    }


def test_the_most_that_was_tried_is_no_knee(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sweep_measure, "build_engine", CrowdedEngine)
    options = SizeOptions(
        target="gemma4-31b/pd",
        slo=parse_slo("ttft=1s"),
        workload=Workload(turns=2, output_tokens=2),
        context_tokens=1_000,
        most=6,
    )
    found = size(options)
    assert (found.largest, found.at_limit, found.above) == (6, True, None)
    assert found.at is not None
    assert re.fullmatch(r"ttft p99 [2-6] ms ± \S+", found.at.values[0])


def test_what_cannot_be_loaded_or_run_is_an_error() -> None:
    options = SizeOptions(
        target="gemma4-31b/no-such-mode",
        slo=parse_slo("ttft=1s"),
        workload=Workload(),
        context_tokens=1_000,
    )
    with pytest.raises(AgentloadError, match="no-such-mode"):
        size(options)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["size", *arguments])


def alone(target: str, metric: str) -> float:
    point = SweepPoint(
        target=target, concurrency=1, places=1, context_tokens=100_000, workload=Workload(turns=4), seed=0
    )
    value = _sweep_measure.measure(point)[metric]
    assert isinstance(value, float)
    return value


def test_the_command_tells_each_probe_what_broke_and_the_conditions() -> None:
    limit = f"{1.03 * alone('gemma4-31b/pd', 'itl_p99_ms'):.4f}ms"
    done = run("--slo", f"itl={limit}", "--context", "100K", "--turns", "4", "--max-concurrency", "64")
    assert done.exit_code == 0, done.output
    probes = [line for line in done.output.splitlines() if line.startswith("concurrency")]
    assert re.fullmatch(r"concurrency +1 of \d+ sessions  holds", probes[0])
    assert any("breaks: itl p99" in line for line in probes)
    assert "gemma4-31b/pd holds itl.p99=" in done.output
    assert "Simulated on gemma4-31b/pd" in done.output
    assert load_deployment("gemma4-31b/pd").headline() in " ".join(done.output.split())
    assert "Assumed:" in done.output
    assert len(re.findall(r"^With \d+: itl p99 \S+ ms ± \S+$", done.output, re.MULTILINE)) == 2


def test_json_agrees_with_itself() -> None:
    limit = f"{1.01 * alone('gemma4-31b/rubin', 'itl_p99_ms'):.4f}ms"
    done = run("--model", "gemma4-31b", "--mode", "rubin", "--slo", f"itl={limit}", "--turns", "4", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    probes = {probe["concurrency"]: probe["row"] for probe in found["probes"]}
    assert probes[found["largest"]]["holds"] is True
    assert found["at"]["row"] == probes[found["largest"]]
    assert probes[found["largest"] + 1]["broken"] == "; ".join(found["above"]["broken"])
    assert found["target"] == "gemma4-31b/rubin"
    assert found["deployment"]["conditions"]


def test_json_of_an_interrupted_search_is_the_probes_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    keep, calls = _sweep_measure.measure, []

    def measure(point: SweepPoint) -> Any:
        calls.append(point)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return keep(point)

    monkeypatch.setattr(_sweep_measure, "measure", measure)
    done = run("--slo", "ttft=100s", "--context", "1K", "--turns", "2", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["interrupted"], found["largest"], found["slo"]) == (True, None, "ttft.p99=100s")
    assert [probe["concurrency"] for probe in found["probes"]] == [1]
    assert found["probes"][0]["row"]["holds"] is True
    assert "interrupted" in done.stderr


def test_a_target_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    target = str(a_named_deployment(tmp_path))
    most = ("--context", "1K", "--turns", "2", "--max-concurrency", "1")
    done = run("--target", target, "--slo", "ttft=100s", *most, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["interrupted"] is False
    assert found["target"] == found["at"]["row"]["target"] == f"{tmp_path}/\ufffd.toml"
    assert run("--target", target, "--slo", "ttft=100s", *most).exit_code == 0


def test_a_context_beyond_the_model_is_told_without_a_hint_that_does_not_help() -> None:
    done = run("--slo", "ttft=1s", "--context", "1M")
    assert isinstance(done.exception, AgentloadError)
    assert "give a shorter --context" in str(done.exception)
    assert "--turns" not in str(done.exception)


def test_what_not_even_one_session_holds_exits_with_1() -> None:
    done = run("--slo", "itl=1us", "--context", "1K", "--turns", "2")
    assert done.exit_code == 1
    assert "does not hold itl.p99=1us with one session: itl p99" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing option '--slo'"),
        (["--slo", "ttft=1s", "--model", "gemma4-31b"], "--model and --mode belong together"),
        (["--slo", "ttft=1s", "--model", "m", "--mode", "pd", "--target", "t"], "give --target, or --model"),
        (["--slo", "ttft=1s", "--model", "nope", "--mode", "pd"], "no model named 'nope'; there are "),
        (["--slo", "ttft=1s", "--seed", str(2**63)], "is not in the range"),
        (["--slo", "ttft=1s", "--context", "10Q"], '"10Q" is no number of tokens'),
        (["--slo", "ttft=1s", "--trace", "TRACE", "--context", "1K"], "leave out --context"),
        (["--slo", "ttft=1s", "--trace", "TRACE", "--output-tokens", "9"], "leave out --output-tokens"),
    ],
)
def test_bad_usage_is_told(arguments: list[str], told: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"session_id":"s","turn_id":"t","input_tokens":1,"output_tokens":1}\n')
    done = run(*(str(trace) if argument == "TRACE" else argument for argument in arguments))
    assert done.exit_code == 2
    assert told in done.output
