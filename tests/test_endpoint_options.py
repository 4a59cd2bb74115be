"""Options of an endpoint: what they come to, and the one line for each that is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from http_peers import Certificates, make_certificates

from agentload._endpoint_options import (
    API_KEY_VARIABLE,
    PROXY_VARIABLE,
    check_endpoint,
    check_target,
    extra_body_of,
    query_of,
)
from agentload._options import EndpointOptions
from agentload_traces import AgentloadError

SECRET = "s3cr3t"


def _headers(**options: object) -> dict[str, str]:
    return dict(check_endpoint(EndpointOptions(**options)).headers)  # type: ignore[arg-type]


def _refusal(**options: object) -> str:
    with pytest.raises(AgentloadError) as caught:
        check_endpoint(EndpointOptions(**options))  # type: ignore[arg-type]
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert SECRET not in text
    return text


def test_the_key_comes_from_a_variable_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert _headers() == {}
    monkeypatch.setenv("MINE", f" {SECRET}\n")
    assert _headers(key_env="MINE") == {"authorization": f"Bearer {SECRET}"}
    file = tmp_path / "key"
    file.write_text(f"{SECRET}2\n")
    assert _headers(key_env="MINE", key_file=file) == {"authorization": f"Bearer {SECRET}2"}
    monkeypatch.setenv(API_KEY_VARIABLE, SECRET)
    assert _headers() == {"authorization": f"Bearer {SECRET}"}
    assert _headers(headers=(("Authorization", "Basic x"),)) == {"authorization": "Basic x"}


def test_a_key_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NONE", raising=False)
    assert _refusal(key_env="NONE") == "--key-env NONE: the environment has no such variable, or it is empty"
    assert "must be the name" in _refusal(key_env=f"sk-{SECRET}")
    monkeypatch.setenv("ODD", f"{SECRET}\N{SNOWMAN}")
    assert _refusal(key_env="ODD") == "ODD: holds characters that cannot stand in a header"
    file = tmp_path / "key"
    assert _refusal(key_file=file) == f"--key-file {file}: No such file or directory"
    file.write_text(" \n")
    assert _refusal(key_file=file) == f"--key-file {file}: is empty; it must hold the key"
    for odd in (f"{SECRET}\n{SECRET}".encode(), f"{SECRET}\xff".encode("latin-1"), f"{SECRET}\0".encode()):
        file.write_bytes(odd)
        assert _refusal(key_file=file) == f"--key-file {file}: holds characters that cannot stand in a header"
    file.write_bytes(b"x" * 100_000)
    assert "too long" in _refusal(key_file=file)
    assert "directory" in _refusal(key_file=tmp_path)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ((("x y", "1"),), "is no name of a header"),
        ((("", "1"),), "is no name of a header"),
        ((("X-A", "1"), ("x-a", "2")), "x-a: is given twice"),
        ((("X-A", f"{SECRET}\r\nb: c"),), "X-A: its value"),
        ((("X-A", f"{SECRET}\N{SNOWMAN}"),), "X-A: its value"),
        ((("Content-Length", "5"),), "is set by the client itself"),
        ((("X-Session-Id", "5"),), "is set by the client itself"),
    ],
)
def test_a_header_that_cannot_be_sent(headers: tuple[tuple[str, str], ...], said: str) -> None:
    assert said in _refusal(headers=headers)


def test_a_query_is_encoded() -> None:
    assert query_of(()) == ""
    assert (
        query_of(("api-version=2024-10-21", "a b=ü&=", "empty="))
        == "?api-version=2024-10-21&a%20b=%C3%BC%26%3D&empty="
    )
    for wrong in ("novalue", "=x", "a=\n"):
        assert "must be NAME=VALUE" in _refusal(query=(wrong,))


def test_an_extra_body_is_an_object() -> None:
    assert extra_body_of(EndpointOptions()) == {}
    assert extra_body_of(EndpointOptions(extra_body='{"temperature": 0}')) == {"temperature": 0}
    for wrong in ("[1]", "3", "null", "{", "", "[" * 100_000):
        assert _refusal(extra_body=wrong).startswith("--extra-body: ")


def test_a_model_has_a_name() -> None:
    for wrong in ("", "a\nb"):
        assert _refusal(model=wrong).startswith("--model ")


def test_a_proxy_and_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROXY_VARIABLE, f"user:{SECRET}")
    proxy = check_endpoint(EndpointOptions(proxy="http://p:3128/")).proxy
    assert proxy is not None
    assert (proxy.host, proxy.port, proxy.authorization) == ("p", 3128, "Basic dXNlcjpzM2NyM3Q=")
    assert "Basic" not in repr(proxy)
    for wrong in ("https://p", "p:3128", "http://", "http://p/x", "http://p:x", "socks5://p", "http://p?q"):
        assert "must be http://HOST[:PORT]" in _refusal(proxy=wrong)
    assert PROXY_VARIABLE in _refusal(proxy=f"http://user:{SECRET}@p")
    monkeypatch.setenv(PROXY_VARIABLE, SECRET)
    assert _refusal(proxy="http://p") == f"{PROXY_VARIABLE}: must be user:password"
    monkeypatch.delenv(PROXY_VARIABLE)
    bare = check_endpoint(EndpointOptions(proxy="http://p")).proxy
    assert bare is not None
    assert (bare.port, bare.authorization) == (80, None)


def test_a_unix_socket_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert _refusal(unix_socket=path).endswith("does not exist")
    path.write_text("")
    assert _refusal(unix_socket=path).endswith("is no socket")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        assert check_endpoint(EndpointOptions(unix_socket=path)).unix_socket == path
        assert "one of them" in _refusal(unix_socket=path, proxy="http://p")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_files_of_tls(certificates: Certificates, tmp_path: Path) -> None:
    good = EndpointOptions(
        ca_file=certificates.authority, client_cert=certificates.cert, client_key=certificates.key
    )
    assert check_endpoint(good).tls.client_key == certificates.key
    missing, text = tmp_path / "none", tmp_path / "text"
    text.write_text("no certificate\n")
    for options in ({"ca_file": missing}, {"client_cert": missing}):
        assert _refusal(**options).endswith(f"{missing}: No such file or directory")
    for options in ({"ca_file": text}, {"client_cert": text}, {"client_cert": certificates.cert}):
        assert "no PEM file" in _refusal(**options)
    assert "No such file" in _refusal(client_cert=certificates.cert, client_key=missing)
    assert "no PEM file" in _refusal(client_cert=certificates.cert, client_key=certificates.authority)
    assert "--client-cert" in _refusal(client_key=certificates.key)
    assert "--insecure" in _refusal(insecure=True, ca_file=certificates.authority)
    locked = tmp_path / "locked.pem"
    words = [
        "openssl",
        "pkey",
        "-in",
        str(certificates.key),
        "-aes256",
        "-passout",
        "pass:x",
        "-out",
        str(locked),
    ]
    subprocess.run(words, check=True, capture_output=True)
    assert "needs no password" in _refusal(client_cert=certificates.cert, client_key=locked)


def test_tls_needs_https() -> None:
    options = EndpointOptions(insecure=True)
    check_target(options, "https://h")
    check_target(EndpointOptions(insecure=True, more_urls=("https://h",)), "http://h")
    with pytest.raises(AgentloadError, match="--insecure: http://h is not https"):
        check_target(options, "http://h")
