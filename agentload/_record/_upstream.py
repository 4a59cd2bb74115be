"""The endpoint behind the proxy: where it is, how it is reached, and what of a request's head changes."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from agentload._endpoint_options import API_KEY_VARIABLE, checked_tls, read_key, without_secrets
from agentload._http_open import Tls, tls_context
from agentload._record._http import Head
from agentload_traces import AgentloadError

_LINE = re.compile(rb"[^\n]*\n")
_NOT_PASSED = frozenset({b"host", b"proxy-connection", b"proxy-authorization"})
_KEYS = frozenset({b"authorization", b"x-api-key", b"api-key"})


class UpstreamOptions(msgspec.Struct, kw_only=True, frozen=True):
    """url: of the endpoint, with or without `/v1`. key_env, key_file: of a key to be sent in place of the
    client's; `None` for both leaves the client's own. ca_file, client_cert, client_key, insecure: TLS.
    """

    url: str
    key_env: str | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    insecure: bool = False


class Upstream:
    """Opens connections and rewrites heads; raises `AgentloadError` for options that cannot be."""

    def __init__(self, options: UpstreamOptions) -> None:
        parts = _checked(options.url)
        self.url = options.url
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1").encode()
        self._authority = parts.netloc.encode()
        self._tls = _tls(options, parts.scheme)
        self._key = _key(options)

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Connect `protocol`; raises `OSError` where that fails."""
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol,
            self._host,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
            happy_eyeballs_delay=0.25,
        )
        return transport

    def rewritten(self, head: Head) -> bytes:
        """A request's head for the endpoint: as it came, but for the host, the path's prefix and a key."""
        first, *lines = _LINE.findall(head.raw)
        target = head.start[1]
        if self._prefix and target.startswith(b"/"):
            first = first.replace(b" " + target + b" ", b" " + self._prefix + target + b" ", 1)
        out = [first, b"host: " + self._authority + b"\r\n"]
        left_out = _NOT_PASSED | _KEYS if self._key else _NOT_PASSED
        out += [line for line in lines if line.partition(b":")[0].lower() not in left_out]
        if self._key:
            messages = head.field(b"anthropic-version") is not None
            name = b"x-api-key: " if messages else b"authorization: Bearer "
            out.insert(2, name + self._key + b"\r\n")
        return b"".join(out)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.query or parts.fragment) and url.isascii() and url.isprintable()
    except ValueError:
        usable = False
    if not usable or " " in url:
        raise AgentloadError(f"--upstream {without_secrets(url)!r}: must be http(s)://HOST[:PORT][/PATH]")
    if "@" in parts.netloc:
        raise AgentloadError("--upstream: the URL holds a password; the client's own key is passed on")
    return parts


def _key(options: UpstreamOptions) -> bytes:
    """The key to add; empty for none."""
    if options.key_file is None and options.key_env is None:
        return b""
    key = read_key(options.key_env or API_KEY_VARIABLE, options.key_file)
    if not key:
        raise AgentloadError(
            f"--key-env {options.key_env}: the environment has no such variable, or it is empty"
        )
    return key.encode()


def _tls(options: UpstreamOptions, scheme: str) -> ssl.SSLContext | None:
    tls = checked_tls(Tls(options.ca_file, options.client_cert, options.client_key, options.insecure))
    if scheme == "https":
        return tls_context(tls)
    if tls != Tls():
        raise AgentloadError(f"{options.url} is not https: leave out what is of certificates")
    return None
