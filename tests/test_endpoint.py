"""Finding an endpoint before a replay."""

from __future__ import annotations

import json
import pickle
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from http_peers import Certificates, make_certificates
from hypothesis import given
from hypothesis import strategies as st

from agentload._endpoint import Endpoint, pick_url, probe_endpoint
from agentload._endpoint_options import API_KEY_VARIABLE
from agentload._options import EndpointOptions
from agentload_traces import AgentloadError


@contextmanager
def answering(
    data: bytes, tls: ssl.SSLContext | None = None, unix: Path | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every connection with `data`; yields its URL and what it read."""
    heard: list[bytes] = []
    family, where = (socket.AF_INET, ("127.0.0.1", 0)) if unix is None else (socket.AF_UNIX, str(unix))
    with socket.socket(family) as listener:
        listener.bind(where)
        listener.listen()

        def serve() -> None:
            try:
                while True:
                    accepted, _ = listener.accept()
                    wrapped = nullcontext(accepted) if tls is None else tls.wrap_socket(accepted, True, False)
                    with suppress(ssl.SSLError, ConnectionError), accepted, wrapped as link:
                        heard.append(link.recv(65536))
                        link.sendall(data)
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            port = listener.getsockname()[1] if unix is None else 0
            yield f"{'https' if tls else 'http'}://127.0.0.1:{port}", heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def http(status: str, body: object) -> bytes:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status.encode(),
        len(data),
        data,
    )


LISTING = http("200 OK", {"object": "list", "data": [{"id": "first"}, {"id": "second"}]})


def probe(url: str, model: str | None = None, **options: object) -> Endpoint:
    return probe_endpoint(EndpointOptions(model=model, **options), url)  # type: ignore[arg-type]


SUFFIXES = [
    "",
    "/",
    "/v1",
    "/v1/",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/completions",
    "/v1/messages",
]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_first_model_is_taken(suffix: str) -> None:
    with answering(LISTING) as (url, heard):
        endpoint = probe(url + suffix)
    assert (endpoint.base_url, endpoint.model) == (url, "first")
    assert heard[0].startswith(b"GET /v1/models ")


@pytest.mark.parametrize(
    "data",
    [
        http("404 Not Found", b"<html>"),
        http("301 Moved", b""),
        http("200 OK", b"not json"),
        http("200 OK", {"data": []}),
        http("200 OK", {"data": [{"id": 3}]}),
        http("200 OK", [1]),
        http("200 OK", b"[" * 100_000),
    ],
)
def test_a_named_model_needs_no_list(data: bytes) -> None:
    with answering(data) as (url, _):
        assert probe(url, "mine").model == "mine"
        with pytest.raises(AgentloadError, match="--model"):
            probe(url)


@pytest.mark.parametrize(
    "url", ["http://user:secret@127.0.0.1:9", "http://127.0.0.1:9?key=secret", "secret@x"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    for options in (EndpointOptions(), EndpointOptions(more_urls=(url,))):
        with pytest.raises(AgentloadError) as caught:
            probe_endpoint(options, "http://127.0.0.1:9" if options.more_urls else url)
        assert "secret" not in str(caught.value)


def test_what_does_not_speak_http_is_said() -> None:
    with (
        answering(b"SSH-2.0-OpenSSH_9.2\r\n") as (url, _),
        pytest.raises(AgentloadError, match="not speak HTTP"),
    ):
        probe(url, "m")


def test_what_cannot_be_reached_is_said() -> None:
    with pytest.raises(AgentloadError, match=r"cannot reach http://127.0.0.1:9: .*refused"):
        probe("http://127.0.0.1:9", "m")
    with answering(b"") as (url, _), pytest.raises(AgentloadError, match=f"cannot reach {url}: .*closed"):
        probe(url, "m")


def test_a_simulator_says_what_its_numbers_rest_on() -> None:
    about = {"mode": "pd", "spec_sha256": "ab", "conditions": ["Simulated."]}
    with answering(http("200 OK", {"data": [{"id": "m", "agentload": about}]})) as (url, _):
        simulated = probe(url).simulated
    assert simulated is not None
    assert (simulated.mode, simulated.conditions) == ("pd", ("Simulated.",))
    for odd in (None, 3, {"mode": 1}):
        with answering(http("200 OK", {"data": [{"id": "m", "agentload": odd}]})) as (url, _):
            assert probe(url) == Endpoint((url,), "m")


def test_the_key_is_sent_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-1\n")
    with answering(LISTING) as (url, heard):
        endpoint = probe(url)
        assert endpoint.connection.headers == {"authorization": "Bearer sk-1"}
        assert "sk-1" not in repr(endpoint)
        assert b"\r\nauthorization: Bearer sk-1\r\n" in heard[0]
        assert probe(url, api="messages").connection.headers == {
            "x-api-key": "sk-1",
            "anthropic-version": "2023-06-01",
        }
        monkeypatch.setenv(API_KEY_VARIABLE, "sk\n1")
        with pytest.raises(AgentloadError, match=API_KEY_VARIABLE) as caught:
            probe(url)
    assert "sk" not in str(caught.value)


def _limits(url: str) -> list[int | None]:
    return [probe(url, model).max_model_len for model in (None, "a", "b", "alias")]


def test_the_length_of_a_context_is_that_of_the_model_asked_for() -> None:
    models = [{"id": "a", "max_model_len": 1_000}, {"id": "b", "max_model_len": 2_000}]
    with answering(http("200 OK", {"data": models})) as (url, _):
        assert _limits(url) == [1_000, 1_000, 2_000, None]
    about = {"mode": "pd", "spec_sha256": "ab", "conditions": []}
    with answering(http("200 OK", {"data": [{**models[0], "agentload": about}]})) as (url, _):
        assert _limits(url) == [1_000] * 4  # a simulator takes any name
    for odd in (None, True, "1000", -1, 0, 1.5, [1]):
        with answering(http("200 OK", {"data": [{"id": "a", "max_model_len": odd}]})) as (url, _):
            assert _limits(url) == [None] * 4


def test_all_urls_are_probed() -> None:
    shorter = http("200 OK", {"data": [{"id": "other"}, {"id": "first", "max_model_len": 500}]})
    longer = http("200 OK", {"data": [{"id": "first", "max_model_len": 900}]})
    with answering(longer) as (one, heard), answering(shorter) as (two, also):
        endpoint = probe(one, more_urls=(two + "/v1", one), query=("a=1 2&", "b="))
        assert endpoint.urls == (one, two)
        assert endpoint.max_model_len == 500
        assert heard[0].startswith(b"GET /v1/models?a=1%202%26&b= ")
        assert len(heard) == len(also) == 1
        assert endpoint.url_for("chat", 1) == f"{two}/v1/chat/completions?a=1%202%26&b="
        assert endpoint.url_for("messages") == f"{one}/v1/messages?a=1%202%26&b="
        with pytest.raises(AgentloadError, match=r"cannot reach http://127.0.0.1:9"):
            probe(one, more_urls=(two, "http://127.0.0.1:9"))
        with answering(LISTING.replace(b"first", b"fir2t")) as (three, _):
            with pytest.raises(AgentloadError, match=f"{three} lists no model 'first'"):
                probe(one, more_urls=(three,))
            assert probe(one, "first", more_urls=(three,)).urls == (one, three)


@given(st.text(), st.integers(1, 20), st.integers(0, 1000))
def test_a_session_stays_at_its_url_and_turns_go_round(session_id: str, urls: int, sent: int) -> None:
    home = pick_url("session", urls, session_id, sent)
    assert 0 <= home < urls
    assert home == pick_url("session", urls, session_id, 0)
    assert pick_url("turn", urls, session_id, sent) == sent % urls


def test_sessions_are_spread_and_known_from_one_run_to_the_next() -> None:
    homes = [pick_url("session", 3, f"s{number}", 0) for number in range(300)]
    assert all(70 < homes.count(url) < 130 for url in range(3))
    assert homes[:8] == [2, 2, 2, 0, 2, 2, 2, 2]
    endpoint = Endpoint(("a", "b"), "m", balance="turn")
    assert [endpoint.pick("s") for _ in range(4)] == [0, 1, 0, 1]


def test_an_endpoint_can_be_handed_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-1")
    with answering(LISTING) as (url, _):
        endpoint = probe(url)
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_the_probe_goes_the_way_of_the_run(certificates: Certificates, tmp_path: Path) -> None:
    with answering(LISTING, certificates.server()) as (url, _):
        assert probe(url, ca_file=certificates.authority).model == "first"
        assert probe(url, insecure=True).model == "first"
        with pytest.raises(AgentloadError, match=r"cannot reach .* certificate is not trusted"):
            probe(url)
    with answering(LISTING) as (proxy, heard):
        assert (
            probe("http://no.such.host.invalid/v1", proxy=proxy, headers=(("X-Tenant", "blue"),)).model
            == "first"
        )
    assert heard[0].startswith(b"GET http://no.such.host.invalid/v1/models HTTP/1.1\r\n")
    assert b"\r\nx-tenant: blue\r\n" in heard[0]
    path = tmp_path / "s"
    with answering(LISTING, unix=path):
        assert probe("http://localhost", unix_socket=path).model == "first"
