"""What may be a secret is neither printed nor written, and is asked for when a run is resumed."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from fake_endpoint import fake_endpoint_thread

from agentload._endpoint import probe_endpoint
from agentload._option_checks import check_options
from agentload._options import EndpointOptions, ReplayOptions, ToolOptions
from agentload._record._upstream import Upstream, UpstreamOptions
from agentload._replay import is_url, replay
from agentload._run_manifest import new_manifest, resumed_options
from agentload_traces import AgentloadError, RunReader, RunWriter, Turn, write_trace

SECRETS = ("sk-in-a-query", "sk-in-a-body", "sk-in-a-header", "sk-the-key")
ENDPOINT = EndpointOptions(
    query=("api_key=sk-in-a-query",),
    extra_body='{"user":"sk-in-a-body"}',
    headers=(("x-tenant", "sk-in-a-header"),),
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    write_trace(tmp_path / "t.jsonl", [Turn(session_id="s", turn_id="t", input_tokens=9, output_tokens=2)])
    return tmp_path / "t.jsonl"


def interrupted(trace: Path, **options: object) -> Path:
    """A run that was interrupted before its first turn."""
    out = trace.parent / "run"
    asked = ReplayOptions(trace=trace, out=out, target="http://h:1", clock="wall", **options)  # type: ignore[arg-type]
    with RunWriter(out, new_manifest(asked, None)) as writer:
        writer.finish("interrupted")
    return out


def test_a_run_holds_names_only(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTLOAD_API_KEY", "sk-the-key")
    out = trace.parent / "run"
    with fake_endpoint_thread() as endpoint:
        replay(ReplayOptions(trace=trace, out=out, target=endpoint.url, clock="wall", endpoint=ENDPOINT))
        (seen,) = endpoint.requests
    assert (seen.query, seen.body["user"]) == ({"api_key": "sk-in-a-query"}, "sk-in-a-body")
    for path in out.iterdir():
        assert not any(secret.encode() in path.read_bytes() for secret in SECRETS)
    options = RunReader(out).manifest.options
    assert {name: options[name] for name in ("query", "extra_body", "headers", "secrets")} == {
        "query": ("api_key",),
        "extra_body": ("user",),
        "headers": ("x-tenant",),
        "secrets": ("key",),
    }


@pytest.mark.parametrize(
    ("again", "told"),
    [
        ({"query": (), "headers": ENDPOINT.headers}, "--query api_key=VALUE"),
        ({"query": ENDPOINT.query, "headers": ()}, "--header x-tenant:VALUE"),
        (
            {"query": ENDPOINT.query, "headers": ENDPOINT.headers, "extra_body": None},
            "--extra-body with user",
        ),
    ],
)
def test_what_is_not_recorded_is_asked_for_again(trace: Path, again: dict[str, object], told: str) -> None:
    run = interrupted(trace, endpoint=ENDPOINT)
    given = {"extra_body": ENDPOINT.extra_body} | again
    with pytest.raises(AgentloadError, match=told):
        resumed_options(run, None, **given)  # type: ignore[arg-type]
    same = {"query": ENDPOINT.query, "headers": ENDPOINT.headers, "extra_body": ENDPOINT.extra_body}
    assert resumed_options(run, None, **same).endpoint == ENDPOINT  # type: ignore[arg-type]


def test_a_run_that_had_a_key_is_not_resumed_without(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTLOAD_API_KEY", "sk-the-key")
    run = interrupted(trace)
    assert resumed_options(run, None).target == "http://h:1"
    monkeypatch.delenv("AGENTLOAD_API_KEY")
    with pytest.raises(AgentloadError, match="key: set AGENTLOAD_API_KEY or give --key-file"):
        resumed_options(run, None)


def test_laws_of_tools_that_changed_are_told(trace: Path) -> None:
    laws = trace.parent / "laws.toml"
    laws.write_text('[default]\nlaw = "constant"\nvalue_s = 1.0\n')
    run = interrupted(trace, tooling=ToolOptions(tools=f"law:{laws}"))
    assert resumed_options(run, None).tooling.tools == f"law:{laws}"
    laws.write_text('[default]\nlaw = "constant"\nvalue_s = 2.0\n')
    with pytest.raises(AgentloadError, match=r"laws\.toml: .* the laws changed"):
        resumed_options(run, None)


@pytest.mark.parametrize("target", ["http://user:sk-secret@h/v1", "http://h/v1?key=sk-secret"])
@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_url_is_not_printed_with_its_password_or_query(target: str, clock: str) -> None:
    options = ReplayOptions(
        trace=Path("t"),
        out=Path("run"),
        target=target,
        clock=clock,
        faults=Path("f"),  # type: ignore[arg-type]
    )
    with pytest.raises(AgentloadError) as refused:
        check_options(options, url=True)
    assert "sk-secret" not in str(refused.value)
    with pytest.raises(AgentloadError) as refused:
        Upstream(UpstreamOptions(url=target))
    assert "sk-secret" not in str(refused.value)


def test_a_target_without_a_scheme_is_told_without_its_query() -> None:
    with pytest.raises(AgentloadError, match=r"^127\.0\.0\.1:1: .* such as http://127\.0\.0\.1:1$"):
        is_url("127.0.0.1:1/x?key=sk-secret")


def test_an_endpoint_that_wants_a_key_says_so_before_the_run() -> None:
    with fake_endpoint_thread(models=None) as endpoint:
        assert probe_endpoint(EndpointOptions(model="m"), endpoint.url).model == "m"

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(AgentloadError, match="HTTP 401: the key is missing or wrong"):
            probe_endpoint(EndpointOptions(model="m"), url)
