"""Finding an endpoint before a replay."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentload._endpoint import API_KEY_VARIABLE, probe_endpoint
from agentload_traces import AgentloadError


@contextmanager
def answering(data: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every connection with `data`; yields its URL and what it read."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        heard.append(connection.recv(65536))
                        connection.sendall(data)
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
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


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_the_first_model_is_taken(suffix: str) -> None:
    with answering(LISTING) as (url, heard):
        endpoint = probe_endpoint(url + suffix, None)
    assert (endpoint.base_url, endpoint.model) == (url, "first")
    assert heard[0].startswith(b"GET /v1/models ")


@pytest.mark.parametrize(
    "data",
    [
        http("404 Not Found", b"<html>"),
        http("200 OK", b"not json"),
        http("200 OK", {"data": []}),
        http("200 OK", {"data": [{"id": 3}]}),
        http("200 OK", [1]),
        http("200 OK", b"[" * 100_000),
    ],
)
def test_a_named_model_needs_no_list(data: bytes) -> None:
    with answering(data) as (url, _):
        assert probe_endpoint(url, "mine").model == "mine"
        with pytest.raises(AgentloadError, match="--model"):
            probe_endpoint(url, None)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(AgentloadError, match=API_KEY_VARIABLE) as caught:
        probe_endpoint("http://user:secret@127.0.0.1:9", None)
    assert "secret" not in str(caught.value)


def test_what_does_not_speak_http_is_said() -> None:
    with (
        answering(b"SSH-2.0-OpenSSH_9.2\r\n") as (url, _),
        pytest.raises(AgentloadError, match="not speak HTTP"),
    ):
        probe_endpoint(url, "m")


def test_a_simulator_says_what_its_numbers_rest_on() -> None:
    about = {"mode": "pd", "spec_sha256": "ab", "conditions": ["Simulated."]}
    with answering(http("200 OK", {"data": [{"id": "m", "agentload": about}]})) as (url, _):
        simulated = probe_endpoint(url, None).simulated
    assert simulated is not None
    assert (simulated.mode, simulated.conditions) == ("pd", ("Simulated.",))
    for odd in (None, 3, {"mode": 1}):
        with answering(http("200 OK", {"data": [{"id": "m", "agentload": odd}]})) as (url, _):
            assert probe_endpoint(url, None) == (url, "m", {}, None, None)


def test_the_key_is_sent_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-1\n")
    with answering(LISTING) as (url, heard):
        assert probe_endpoint(url, None).headers == {"authorization": "Bearer sk-1"}
        assert b"Authorization: Bearer sk-1\r\n" in heard[0]
        monkeypatch.setenv(API_KEY_VARIABLE, "sk\n1")
        with pytest.raises(AgentloadError, match=API_KEY_VARIABLE) as caught:
            probe_endpoint(url, None)
    assert "sk" not in str(caught.value)


def _limits(url: str) -> list[int | None]:
    return [probe_endpoint(url, model).max_model_len for model in (None, "a", "b", "alias")]


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
