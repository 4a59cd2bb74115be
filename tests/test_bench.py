"""The commands of benchmarks of single requests: nothing is hidden, and what was finished is kept."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_cases import PD, bench, rows_of, run, speed_of
from fake_endpoint import FakeUsage, Reply, fake_endpoint_thread

from agentload._bench import BenchCase, BenchOptions, BenchResult, run_bench
from agentload._bench_words import AA_OUTPUT
from agentload_traces import AgentloadError, Baseline, ErrorFigures, RunReader


@contextmanager
def server() -> Iterator[str]:
    """The URL of `agentload serve`."""
    command = [sys.executable, "-m", "agentload", "serve", PD, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


@pytest.fixture
def quick_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up error of this machine; to measure it takes seconds."""
    errors = ErrorFigures(count=1, p50_ns=1_000, p99_ns=2_000, max_ns=3_000)
    own = Baseline(
        step_ns=291_000,
        streams=1,
        tokens=100,
        ttft=errors,
        gap=errors,
        send_late=errors,
        lost_tokens=0,
        cpu_us_per_token=10.0,
        trusted_streams=1,
    )
    monkeypatch.setattr("agentload._replay_wall.measure_baseline", lambda *shape: own)


def test_aa_asks_for_what_artificial_analysis_asks_for() -> None:
    result = run("aa", "--requests", "1", "--inputs", "1K,10K,100K,2K", "--json")
    assert result.exit_code == 0, result.output
    cases = json.loads(result.output)["cases"]
    assert [(case["input_tokens"], case["output_tokens"]) for case in cases] == [
        *((tokens, AA_OUTPUT[tokens]) for tokens in (1_000, 10_000, 100_000)),
        (2_000, 1_000),
    ]
    shorter = run("aa", "--requests", "1", "--inputs", "1K", "--output-tokens", "7", "--json")
    assert json.loads(shorter.output)["cases"][0]["figures"]["output_tokens"] == 7


def test_text_tells_conditions_definitions_and_what_is_published() -> None:
    result = run("aa", "--requests", "2", "--inputs", "10K")
    assert result.exit_code == 0, result.output
    for part in (
        "gemma4-31b/pd, virtual clock",
        "3,382",
        "fitted to it",
        "Conditions",
        "33 are estimates",
        "concurrency 1",
        "Theirs and here",
        "https://artificialanalysis.ai/methodology",
        "P5-P95",
    ):
        assert part in result.output, part


def test_coding_is_of_the_content_class_coding_and_has_a_p80(tmp_path: Path) -> None:
    out = tmp_path / "b"
    result = run("coding", "--requests", "3", "--json", "--out", str(out))
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["content"] == "coding"
    assert RunReader(out / "251").manifest.options["content"] == "coding"
    assert [each["tokens_per_s"] for each in told["cases"][0]["published"]] == [4767.0, 5520.0]
    text = run("coding", "--requests", "3")
    assert "P80 5,520" in text.output
    assert "content class coding: 5.37 tokens a step" in text.output
    speeds = sorted(filter(None, map(speed_of, rows_of(out / "251"))))
    # Between the second and the third, as of three values.
    expected = speeds[1] + 0.6 * (speeds[2] - speeds[1])
    assert told["cases"][0]["figures"]["speed_tokens_per_s"]["p80"] == pytest.approx(expected)


def test_a_case_that_does_not_fit_is_told_and_the_others_are_kept() -> None:
    result = run("aa", "--inputs", "1K,90M", "--requests", "1")
    assert result.exit_code == 1
    assert "error: 90000K: " in result.stderr
    assert " 1K " in result.stdout
    nothing = run("aa", "--inputs", "90M", "--requests", "1")
    assert nothing.exception is not None
    with pytest.raises(AgentloadError):
        bench(cases=(BenchCase(90_000_000, 10),))


def test_a_directory_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AgentloadError, match="is not empty"):
        bench(cases=(BenchCase(300, 10),), out=tmp_path)
    with pytest.raises(AgentloadError, match=r"File exists|Not a directory"):
        bench(cases=(BenchCase(300, 10),), out=tmp_path / "file")


def test_ctrl_c_keeps_what_was_finished(tmp_path: Path) -> None:
    answered = []

    def progress() -> None:
        answered.append(1)
        if len(answered) == 7:
            raise KeyboardInterrupt

    options = BenchOptions(
        kind="aa",
        target=PD,
        cases=(BenchCase(300, 10), BenchCase(400, 10), BenchCase(500, 10)),
        requests=5,
        out=tmp_path / "b",
    )
    result = run_bench(options, progress=progress)
    assert result.interrupted
    assert not result.whole
    assert [case.name for case in result.cases] == ["300"]
    figures = result.cases[0].figures
    assert figures is not None
    assert figures.answered == 5
    written = json.loads((tmp_path / "b" / "bench.json").read_bytes())
    assert written["interrupted"] is True


def test_an_interrupted_benchmark_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: BenchOptions, *hooks: Any) -> BenchResult:
        first = msgspec.structs.replace(options, cases=options.cases[:count])
        if not count:
            return BenchResult(
                benchmark="aa",
                target=PD,
                clock="virtual",
                seed=0,
                requests=2,
                conditions=[],
                compared=(),
                cases=[],
                interrupted=True,
            )
        return msgspec.structs.replace(run_bench(first), interrupted=True)

    monkeypatch.setattr("agentload._bench.run_bench", interrupted)
    count = 1
    result = run("aa", "--inputs", "300,400,500", "--requests", "2")
    assert result.exit_code == 1
    assert "interrupted: 400, 500 not measured" in result.stderr
    assert "300" in result.stdout
    count = 0
    assert run("aa", "--inputs", "300", "--requests", "2").exit_code == 130


@pytest.mark.usefixtures("quick_baseline")
def test_an_endpoint_that_fails_answers_short_or_counts_otherwise_is_told(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        if number == 1:
            return Reply(status=500, message="out of luck")
        return Reply(text="one two three four", usage=FakeUsage(300, 8))

    with fake_endpoint_thread(script) as endpoint:
        out = tmp_path / "b"
        words = ["--target", endpoint.url, "--inputs", "300", "--output-tokens", "9", "--requests", "4"]
        result = run("aa", *words, "--out", str(out))
        assert result.exit_code == 1
        assert "300: 1 of 4 requests failed; first: HTTP 500" in result.stderr
        flat = " ".join(result.stdout.split())
        assert f"m at {endpoint.url}, wall clock" in flat
        assert "3/4" in flat
        assert "3 of 3 answers have fewer than the 9 tokens asked for; the median has 4" in flat
        assert "the endpoint counts 2.000 output tokens for each one of o200k_base" in flat
        assert "Prompts are made-up words" in flat
        told = json.loads((out / "bench.json").read_bytes())
        assert told["cases"][0]["figures"]["failed"] == 1
        prompts = [seen.body["messages"][0]["content"][:60] for seen in endpoint.requests]
        assert len(set(prompts)) == 4
        assert {seen.body["max_tokens"] for seen in endpoint.requests} == {9}
        assert len({seen.peer for seen in endpoint.requests if seen.peer}) <= 2, (
            "one connection, but for the 500"
        )
        run("aa", *words)
        later = [seen.body["messages"][0]["content"][:60] for seen in endpoint.requests]
        assert len(set(later)) == 8, "no prompt is sent twice, also not by another benchmark"


@pytest.mark.usefixtures("quick_baseline")
def test_coding_on_an_endpoint_claims_no_content_class() -> None:
    with fake_endpoint_thread() as endpoint:
        result = run("coding", "--target", endpoint.url, "--requests", "1", "--output-tokens", "5", "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.output)["content"] is None
        assert not any(
            "content" in name.lower() and "agentload" in name.lower() for name in endpoint.requests[0].headers
        )


@pytest.mark.usefixtures("quick_baseline")
def test_the_options_of_an_endpoint_hold(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n", encoding="utf-8")
    with fake_endpoint_thread() as endpoint:
        result = run(
            *("aa", "--target", endpoint.url, "--inputs", "100", "--requests", "1", "--output-tokens", "5"),
            *("--api", "messages", "--model", "other", "--key-file", str(key), "--json"),
        )
        assert result.exit_code == 0, result.stderr
        (seen,) = endpoint.requests
        assert seen.path.endswith("/messages")
        assert seen.body["model"] == "other"
        assert seen.headers["x-api-key"] == "secret"
        assert json.loads(result.output)["model"] == "other"


@pytest.mark.parametrize("option", [("--history", "live"), ("--tokens", "server")])
def test_options_of_prompts_are_none_of_a_benchmark(option: tuple[str, str]) -> None:
    result = run("aa", *option)
    assert result.exit_code == 2
    assert f"No such option '{option[0]}'" in result.stderr


def test_a_served_deployment_on_the_wall_clock_and_by_its_url(tmp_path: Path) -> None:
    words = ["--inputs", "300", "--output-tokens", "40", "--requests", "3", "--json"]
    served = run("aa", *words, "--clock", "wall", "--out", str(tmp_path / "b"))
    with server() as url:
        by_url = run("aa", *words, "--target", url)
        coding = run("coding", "--target", url, "--requests", "1", "--output-tokens", "5", "--json")
    for result in (served, by_url):
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)
        assert told["clock"] == "wall"
        assert told["mode"] == "pd"
        assert told["baseline"] is not None
        figures = told["cases"][0]["figures"]
        assert (figures["answered"], figures["shorter"], figures["output_tokens"]) == (3, 0, 40)
        assert any("33 are estimates" in line for line in told["conditions"])
    rows = rows_of(tmp_path / "b" / "300")
    told = json.loads(served.stdout)
    assert told["cases"][0]["figures"]["speed_tokens_per_s"]["median"] == pytest.approx(
        statistics.median(filter(None, map(speed_of, rows)))
    )
    assert json.loads(coding.stdout)["content"] == "coding"
