"""The ways to an endpoint: names, TLS, proxies, sockets, and how long opening a connection took."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from http_peers import (
    Certificates,
    answer_whole,
    asks,
    connect_proxy,
    make_certificates,
    on_both_loops,
    serve,
    turns,
)

from agentload._http_client import Answer, Connection, StampingClient, Timeouts
from agentload._http_open import Proxy, Tls


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def _ask(url: str, connection: Connection, times: int = 2) -> list[Answer]:
    async with StampingClient(connection=connection, timeouts=Timeouts(connect_s=5.0)) as client:
        return [await client.post(asks(url)) for _ in range(times)]


def _whole(answers: list[Answer]) -> None:
    assert [(answer.status, answer.error, answer.body) for answer in answers] == [
        (200, None, b"data: x\n\n")
    ] * len(answers)
    assert answers[0].opened is not None
    assert answers[1].opened is None


@on_both_loops
async def test_a_name_is_looked_up_once() -> None:
    async with serve(answer_whole) as url, StampingClient() as client:
        named = url.replace("127.0.0.1", "localhost")
        answers = await asyncio.gather(*(client.post(asks(named)) for _ in range(3)))
        numeric = await client.post(asks(url))
        # Another name of the same kind opens a connection of its own, but knows the name.
        await turns()
        again = await asyncio.gather(*(client.post(asks(named)) for _ in range(4)))
    assert {answer.error for answer in (*answers, *again)} == {None}
    assert all(answer.opened is not None and answer.opened.dns_ns is not None for answer in answers)
    assert numeric.opened is not None
    assert (numeric.opened.dns_ns, numeric.opened.tls_ns) == (None, None)
    assert numeric.opened.connect_ns is not None
    opened = [answer.opened for answer in again if answer.opened is not None]
    assert [each.dns_ns for each in opened] == [None]


@on_both_loops
async def test_tls(certificates: Certificates) -> None:
    trusting = Connection(tls=Tls(ca_file=certificates.authority))
    async with serve(answer_whole, tls=certificates.server()) as url:
        answers = await _ask(url, trusting)
        named = await _ask(url.replace("127.0.0.1", "localhost"), trusting)
        unverified = await _ask(url, Connection(tls=Tls(insecure=True)))
        (refused,) = await _ask(url, Connection(), times=1)
        (plain,) = await _ask(url.replace("https", "http"), Connection(), times=1)
    for each in (answers, named, unverified):
        _whole(each)
    opened = answers[0].opened
    assert opened is not None
    assert opened.tls_ns is not None
    assert opened.connect_ns is not None
    assert answers[0].written_ns is not None
    assert answers[0].written_ns - answers[0].sent_ns >= opened.tls_ns + opened.connect_ns
    assert (refused.status, refused.error_kind) == (None, "tls")
    assert "its certificate is not trusted" in str(refused.error)
    assert plain.error_kind in ("reset", "bad_stream")


@on_both_loops
async def test_a_certificate_for_another_name_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "s"
    trusting = Connection(tls=Tls(ca_file=certificates.authority), unix_socket=path)
    async with serve(answer_whole, tls=certificates.server(), unix=path):
        (answer,) = await _ask("https://another.name.invalid/", trusting, times=1)
    assert answer.error_kind == "tls"
    assert "another.name.invalid" in str(answer.error)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
@on_both_loops
async def test_no_tls_where_it_was_asked_for(said: bytes) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (answer,) = await _ask(f"https://127.0.0.1:{port}/", Connection(), times=1)
    assert (answer.status, answer.error_kind) == (None, "tls")
    assert str(answer.error).startswith(f"no TLS with 127.0.0.1:{port}: ")
    assert len(str(answer.error).splitlines()) == 1


@on_both_loops
async def test_tls_that_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with StampingClient(timeouts=Timeouts(connect_s=1.0)) as client:
            answer = await client.post(asks(url))
            task = asyncio.create_task(client.post(asks(url)))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await turns()
    assert answer.error_kind == "connect_timeout"
    assert caplog.text == ""


@on_both_loops
async def test_the_endpoint_may_ask_for_a_certificate(certificates: Certificates) -> None:
    shown = Tls(certificates.authority, certificates.cert, certificates.key)
    async with serve(answer_whole, tls=certificates.server(ask=True)) as url:
        _whole(await _ask(url, Connection(tls=shown)))
        (answer,) = await _ask(url, Connection(tls=Tls(certificates.authority)), times=1)
    # With TLS 1.3 the client has been let in by the time that it is sent away.
    assert answer.error_kind in ("tls", "reset")


@pytest.mark.parametrize("with_tls", [False, True])
@on_both_loops
async def test_a_unix_socket(with_tls: bool, certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "s"
    tls = certificates.server() if with_tls else None
    heads: list[bytes] = []
    connection = Connection(tls=Tls(ca_file=certificates.authority), unix_socket=path)
    async with serve(answer_whole, tls=tls, unix=path, heads=heads) as url:
        answers = await _ask(url, connection)
    _whole(answers)
    assert b"\r\nHost: localhost\r\n" in heads[0]
    (gone,) = await _ask(url, connection, times=1)
    assert gone.error_kind == "connect"
    assert str(path) in str(gone.error)


@on_both_loops
async def test_a_proxy_is_asked_for_the_whole_url() -> None:
    heads: list[bytes] = []
    async with serve(answer_whole, heads=heads) as url:
        proxy = Proxy("127.0.0.1", int(url.rsplit(":", 1)[1].strip("/")), "Basic secret")
        answers = await _ask("http://far.away.invalid:81/v1/x?q=1", Connection(proxy=proxy))
    _whole(answers)
    assert heads[0].startswith(b"POST http://far.away.invalid:81/v1/x?q=1 HTTP/1.1\r\n")
    assert b"\r\nHost: far.away.invalid:81\r\n" in heads[0]
    assert b"\r\nProxy-Authorization: Basic secret\r\n" in heads[0]


@on_both_loops
async def test_tls_goes_through_a_proxy(certificates: Certificates) -> None:
    heads: list[bytes] = []
    async with (
        serve(answer_whole, tls=certificates.server(), heads=heads) as url,
        connect_proxy() as (port, seen),
    ):
        proxy = Proxy("127.0.0.1", port, "Basic secret")
        answers = await _ask(url, Connection(tls=Tls(ca_file=certificates.authority), proxy=proxy))
    _whole(answers)
    (head,) = seen
    assert head.startswith(b"CONNECT " + url[8:-1].encode() + b" HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic secret" in head
    assert all(b"Proxy-Authorization" not in each for each in heads)


@on_both_loops
async def test_a_proxy_that_refuses() -> None:
    async with connect_proxy(b"407 Proxy Authentication Required") as (port, _):
        proxy = Proxy("127.0.0.1", port)
        (answer,) = await _ask("https://127.0.0.1:9/", Connection(proxy=proxy), times=1)
        assert answer.error_kind == "connect"
        assert str(answer.error).endswith(f"the proxy 127.0.0.1:{port} opens no way to 127.0.0.1:9: HTTP 407")
    for scheme in ("http", "https"):
        (answer,) = await _ask(f"{scheme}://127.0.0.1:9/", Connection(proxy=proxy), times=1)
        assert (answer.error_kind, f"the proxy 127.0.0.1:{port}" in str(answer.error)) == ("connect", True)


@on_both_loops
async def test_headers_of_the_connection_and_of_the_request() -> None:
    heads: list[bytes] = []
    connection = Connection(headers={"authorization": "Bearer key", "content-type": "a/b"})
    async with serve(answer_whole, heads=heads) as url, StampingClient(connection=connection) as client:
        answer = await client.post(asks(url, headers={"x-turn": "1"}))
    assert answer.error is None
    lines = heads[0].decode().lower().split("\r\n")
    assert lines[0] == "post / http/1.1"
    for line in (
        "authorization: bearer key",
        "x-turn: 1",
        "content-type: a/b",
        "accept-encoding: identity",
    ):
        assert lines.count(line) == 1


def test_secrets_are_in_no_repr() -> None:
    connection = Connection(headers={"authorization": "hidden"}, proxy=Proxy("h", 1, "hidden"))
    assert "hidden" not in repr(connection)
