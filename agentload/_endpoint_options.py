"""What the options of an endpoint come to: its URLs, the headers that hold the key, the way to it.

Whatever may be secret (keys, header values, passwords) is in no message.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from agentload._http_open import Connection, Proxy, Tls, tls_context
from agentload._options import EndpointOptions
from agentload_simbackend import AGENT_HEADER, CLASS_HEADER, CONTENT_HEADER, SESSION_HEADER, TURN_HEADER
from agentload_traces import AgentloadError

API_KEY_VARIABLE = "AGENTLOAD_API_KEY"
"""Environment variable that holds the endpoint's key, unless the options name another."""

PROXY_VARIABLE = "AGENTLOAD_PROXY_AUTH"
"""Environment variable that holds "user:password" for the proxy."""

ANTHROPIC_VERSION = "2023-06-01"
"""Of the messages API; sent with it as `anthropic-version`."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OURS = (
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    *(name.lower() for name in (SESSION_HEADER, TURN_HEADER, AGENT_HEADER, CLASS_HEADER, CONTENT_HEADER)),
)

_SUFFIXES = ("/chat/completions", "/completions", "/responses", "/messages")

_MOST_KEY_BYTES = 64 << 10


def check_endpoint(options: EndpointOptions) -> Connection:
    """Look at all options of an endpoint; raises `AgentloadError` of one line for the first that is wrong."""
    if options.model is not None and not (options.model and options.model.isprintable()):
        raise AgentloadError(f"--model {options.model!r}: is empty or holds characters that are no text")
    for url in options.more_urls:
        base_url_of(url)
    query_of(options.query)
    extra_body_of(options)
    return connection_of(options)


def check_target(options: EndpointOptions, target: str) -> None:
    """Raise `AgentloadError` for options that have no meaning for these URLs."""
    schemes = {urlsplit(url).scheme for url in (base_url_of(target), *map(base_url_of, options.more_urls))}
    given = {
        "--ca-file": options.ca_file,
        "--client-cert": options.client_cert,
        "--insecure": options.insecure,
    }
    for option, value in given.items():
        if value and "https" not in schemes:
            raise AgentloadError(f"{option}: {target} is not https, so there is no certificate")


def base_url_of(url: str) -> str:
    """The URL without `/v1` and what may follow it; raises `AgentloadError` for one that is of no use."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.query or parts.fragment) and url.isascii() and url.isprintable()
    except ValueError:
        usable = False
    if usable and "@" in parts.netloc:
        raise AgentloadError(f"the URL of the endpoint holds a password; put the key into {API_KEY_VARIABLE}")
    if not usable or " " in url:
        raise AgentloadError(
            f"{without_secrets(url)!r}: not an endpoint; it must be http(s)://HOST[:PORT][/PATH]"
            + (", with what follows ? in --query" if "?" in url else "")
        )
    base = url.rstrip("/")
    for suffix in _SUFFIXES:
        base = base.removesuffix(f"/v1{suffix}")
    return base.removesuffix("/v1")


def without_secrets(url: str) -> str:
    """A URL, or what was meant for one, without password and query."""
    scheme, mark, rest = url.partition("?")[0].rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def query_of(query: Iterable[str]) -> str:
    """What follows the path of a URL: `?name=value&...`, or nothing."""
    pairs = []
    for each in query:
        name, equals, value = each.partition("=")
        if not equals or not name or not each.isprintable():
            raise AgentloadError("--query: must be NAME=VALUE, such as api-version=2024-10-21")
        pairs.append(f"{quote(name, safe='')}={quote(value, safe='', errors='surrogateescape')}")
    return f"?{'&'.join(pairs)}" if pairs else ""


def extra_body_of(options: EndpointOptions) -> dict[str, Any]:
    """What is merged into every request."""
    if options.extra_body is None:
        return {}
    try:
        value = msgspec.json.decode(options.extra_body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise AgentloadError(f"--extra-body: is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise AgentloadError('--extra-body: must be a JSON object, such as {"temperature":0}')
    return value


def connection_of(options: EndpointOptions) -> Connection:
    """The way to the endpoint, its key read and its certificates loaded once to see that they can be."""
    if options.proxy is not None and options.unix_socket is not None:
        raise AgentloadError("--proxy and --unix-socket: an endpoint is reached by one of them")
    proxy = _proxy(options.proxy) if options.proxy is not None else None
    tls = checked_tls(Tls(options.ca_file, options.client_cert, options.client_key, options.insecure))
    return Connection(_headers(options), tls, proxy, _unix_socket(options.unix_socket))


def checked_tls(tls: Tls) -> Tls:
    """Raise `AgentloadError` for options that contradict each other, or a file that cannot be used."""
    if tls.client_key is not None and tls.client_cert is None:
        raise AgentloadError("--client-key: needs --client-cert, the certificate that it belongs to")
    if tls.insecure and tls.ca_file is not None:
        raise AgentloadError("--insecure and --ca-file: the certificate is verified, or it is not")
    if tls != Tls():
        tls_context(tls)
    return tls


def _unix_socket(path: Path | None) -> Path | None:
    if path is None:
        return None
    if not path.is_socket():
        raise AgentloadError(f"--unix-socket {path}: {'is no socket' if path.exists() else 'does not exist'}")
    return path


def _headers(options: EndpointOptions) -> dict[str, str]:
    """Those of the options, and the key under the name that the API wants it."""
    given: dict[str, str] = {}
    for name, value in options.headers:
        folded = name.lower()
        if not _NAME.fullmatch(name):
            # It may be a whole header, secret and all.
            raise AgentloadError("--header: what stands before the colon is no name of a header")
        if folded in _OURS:
            raise AgentloadError(f"--header {name}: is set by the client itself")
        if folded in given:
            raise AgentloadError(f"--header {name}: is given twice")
        if not _is_header_value(value):
            raise AgentloadError(f"--header {name}: its value holds characters that cannot stand in a header")
        given[folded] = value
    own: dict[str, str] = {}
    if options.api == "messages":
        own["anthropic-version"] = ANTHROPIC_VERSION
    if key := read_key(options.key_env, options.key_file):
        own |= {"x-api-key": key} if options.api == "messages" else {"authorization": f"Bearer {key}"}
    # A header of the user's own counts before what would be made of the key.
    return own | given


def _is_header_value(value: str) -> bool:
    return value.isascii() and value.replace("\t", " ").isprintable()


def secrets_given(options: EndpointOptions) -> tuple[str, ...]:
    """Names of the secrets that are sent beside headers: "key", "proxy password"."""
    given = ["key"] if read_key(options.key_env, options.key_file) else []
    if options.proxy is not None and os.environ.get(PROXY_VARIABLE, "").strip():
        given.append("proxy password")
    return tuple(given)


def read_key(key_env: str, key_file: Path | None) -> str:
    """The key, from the file if there is one; empty where only the usual variable is asked and not set.

    Raises `AgentloadError`, which never repeats what may be a key.
    """
    if key_file is not None:
        where = f"--key-file {key_file}"
        # What comes through a pipe, as from `<(...)` of a shell, can be read only once.
        read = _read_key_once if key_file.is_fifo() else _read_key
        key = read(key_file, where)
        if not key:
            raise AgentloadError(f"{where}: is empty; it must hold the key")
    else:
        where = key_env
        if not _VARIABLE.fullmatch(where):
            # It may well be the key itself.
            raise AgentloadError("--key-env: must be the name of an environment variable that holds the key")
        key = os.environ.get(where, "").strip()
        if not key and where != API_KEY_VARIABLE:
            raise AgentloadError(f"--key-env {where}: the environment has no such variable, or it is empty")
    if not key.isascii() or not key.isprintable():
        raise AgentloadError(f"{where}: holds characters that cannot stand in a header")
    return key


def _read_key(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise AgentloadError(f"{where}: {error.strerror}") from None
    if len(data) > _MOST_KEY_BYTES:
        raise AgentloadError(f"{where}: is too long for a key")
    return data.decode("latin-1").strip()


_read_key_once = lru_cache(maxsize=4)(_read_key)


def _proxy(url: str) -> Proxy:
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        usable = usable and parts.path in ("", "/") and not (parts.query or parts.fragment)
        usable = usable and url.isascii() and url.isprintable() and " " not in url
        host, port = parts.hostname, parts.port
    except ValueError:
        usable = False
    if "@" in url:
        raise AgentloadError(f"--proxy: its URL holds a password; put user:password into {PROXY_VARIABLE}")
    if not usable or host is None:
        raise AgentloadError("--proxy: must be http://HOST[:PORT]")
    credentials = os.environ.get(PROXY_VARIABLE, "").strip()
    if not credentials:
        return Proxy(host, port or 80)
    if ":" not in credentials or not credentials.isprintable():
        raise AgentloadError(f"{PROXY_VARIABLE}: must be user:password")
    encoded = base64.b64encode(credentials.encode(errors="surrogateescape")).decode("ascii")
    return Proxy(host, port or 80, f"Basic {encoded}")
