"""Turns that outgrow the context that an endpoint tells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from test_endpoint import answering, http

from agentload._context_limit import context_limit
from agentload_simbackend import load_deployment
from agentload_traces import RunReader, Turn, write_trace

INPUTS = {"a": (262_000, 262_120, 262_140), "b": (1_000,)}
"""The second turn of session a is the first that does not fit 262,144 tokens."""


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "agentload", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    turns = [
        Turn(
            session_id=session,
            turn_id=f"t{number}",
            wait_for=(f"t{number - 1}",) if number else (),
            input_tokens=tokens,
            output_tokens=40,
        )
        for session, inputs in INPUTS.items()
        for number, tokens in enumerate(inputs)
    ]
    write_trace(tmp_path / "long.jsonl", turns)
    return tmp_path / "long.jsonl"


def replayed(trace: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    out = ("--out", str(trace.parent / "run"))
    words = ["replay", str(trace), "--target", url, *out, "--concurrency", "2", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "agentload", *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_run_that_does_not_fit_is_refused(served: str, trace: Path) -> None:
    refused = replayed(trace, served)
    assert refused.returncode == 2
    (said,) = refused.stderr.splitlines()
    for part in (
        f"the context of gemma4-31b/pd at {served}",
        "2 turns of 1 session",
        "> 262,144",
        "(line 2)",
    ):
        assert part in said
    assert not (trace.parent / "run").exists()
    assert replayed(trace, served, "--max-turns", "1", "--model", "any-name").returncode == 0
    assert RunReader(trace.parent / "run").manifest.options["on_overflow"] == "refuse"


@pytest.mark.parametrize(("policy", "code"), [("cut", 1), ("compact", 0)])
def test_the_policy_is_what_is_sent_and_recorded(policy: str, code: int, served: str, trace: Path) -> None:
    assert replayed(trace, served, "--on-overflow", policy).returncode == code
    reader = RunReader(trace.parent / "run")
    rows = reader.requests().filter(pl.col("session_id") == "a").sort("turn_index").collect()
    assert rows["status"].to_list() == ["ok", *["skipped" if policy == "cut" else "ok"] * 2]
    if policy == "cut":
        assert "262,120 prompt + 40 output = 262,160 tokens > 262,144" in rows["error"][1]
    else:
        assert rows["reported_input_tokens"].to_list()[1] == 65_536
    assert reader.manifest.options["on_overflow"] == policy
    assert any(
        ("Not sent" if policy == "cut" else "compacted") in each for each in reader.manifest.conditions
    )


def test_what_is_told_is_what_the_deployment_can_serve(served: str) -> None:
    from agentload._endpoint import probe_endpoint
    from agentload._options import EndpointOptions

    assert (
        probe_endpoint(EndpointOptions(), served).max_model_len
        == context_limit(load_deployment("gemma4-31b/pd")).tokens
    )


@pytest.mark.parametrize("policy", ["cut", "compact"])
def test_no_policy_holds_where_no_limit_is_told(policy: str, trace: Path) -> None:
    with answering(http("200 OK", {"data": [{"id": "m"}]})) as (url, _):
        refused = replayed(trace, url, "--on-overflow", policy)
        assert refused.returncode == 2
        (said,) = refused.stderr.splitlines()
        assert said.startswith(f"error: --on-overflow {policy}: {url} tells no max_model_len of m, ")
        assert not (trace.parent / "run").exists()
        # What answers is no model.
        write_trace(trace, [Turn(session_id="s", turn_id="t", input_tokens=10, output_tokens=5)])
        assert replayed(trace, url, "--stall-timeout", "5").returncode == 1
    assert RunReader(trace.parent / "run").manifest.options["on_overflow"] is None
