"""Tools of an MCP server that is started for the run and spoken to over its standard streams: `mcp:COMMAND`.

The Model Context Protocol as of 2025-11-25 (https://modelcontextprotocol.io/specification/2025-11-25), of
which tools alone are used: `initialize`, `tools/list`, `tools/call`.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from importlib.metadata import version
from typing import Any, Self

import msgspec

from agentload._endpoint_options import API_KEY_VARIABLE, PROXY_VARIABLE
from agentload._one_line import one_line
from agentload._tools._executor import ToolContext, ToolOutcome, failed
from agentload._tools._json_rpc import ChildRpc, RpcError
from agentload_traces import AgentloadError

PROTOCOL = "2025-11-25"

_START_S = 60.0
"""How long the server may take until it has told its tools; it may have to be installed first."""

_MOST_PAGES = 1_000
_NAMED = 20
"""How many of the server's tools are named to one who asked for another."""


def server_command(command: str) -> list[str]:
    """The words of a server's command. Raises `AgentloadError` if there is no such program."""
    where = f"--tools mcp:{one_line(command)}"
    if "://" in command.split()[0]:
        raise AgentloadError(f"{where}: must be a command, for MCP is spoken over its standard streams")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise AgentloadError(f"{where}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise AgentloadError(f"{where}: there is no program {words[0] if words else ''!r}")
    return words


class McpServer:
    """A running server; see `ToolExecutor`. An async context manager.

    key_env: environment variable that holds the endpoint's key. Neither it nor what else the replayer keeps
    its secrets in reaches the server.
    """

    def __init__(self, command: str, key_env: str = API_KEY_VARIABLE) -> None:
        self._where = f"--tools mcp:{one_line(command)}"
        self._command = server_command(command)
        self._hidden = {key_env, API_KEY_VARIABLE, PROXY_VARIABLE}
        self._rpc: ChildRpc | None = None
        self.tools: tuple[str, ...] = ()
        """Names of the tools that it has."""

    async def __aenter__(self) -> Self:
        try:
            self._rpc = await ChildRpc.start(self._command, self._hidden)
        except OSError as error:
            raise AgentloadError(f"{self._where}: cannot be started: {error.strerror or error}") from None
        try:
            async with asyncio.timeout(_START_S):
                self.tools = await self._begin(self._rpc)
        except BaseException as failure:
            await self._rpc.end()
            if isinstance(failure, TimeoutError):
                raise AgentloadError(f"{self._where}: not ready within {_START_S:g} s") from None
            if isinstance(failure, RpcError):
                raise AgentloadError(f"{self._where}: {failure}") from None
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._rpc is not None
        await self._rpc.end()

    async def _begin(self, rpc: ChildRpc) -> tuple[str, ...]:
        """Shake hands and learn the names of the tools."""
        await rpc.request(
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "capabilities": {},
                "clientInfo": {"name": "agentload", "version": version("agentload")},
            },
        )
        await rpc.notify("notifications/initialized")
        names: list[str] = []
        cursor: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            page = await rpc.request("tools/list", cursor)
            tools = page.get("tools") if isinstance(page, dict) else None
            if not isinstance(tools, list):
                raise RpcError("the MCP server answers tools/list with no list of tools")
            names += [str(tool.get("name")) for tool in tools if isinstance(tool, dict)]
            if not page.get("nextCursor"):
                break
            cursor = {"cursor": page["nextCursor"]}
        return tuple(names)

    async def call(self, name: str, arguments: str | None, context: ToolContext) -> ToolOutcome:
        """See `ToolExecutor`. Arguments that are not known are an empty object."""
        assert self._rpc is not None
        if name not in self.tools:
            return failed(f"there is no tool {name!r}; the MCP server has {_listed(self.tools)}")
        try:
            given = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            return failed(f"the arguments of {name} are no JSON: {error}")
        if not isinstance(given, dict):
            return failed(f"the arguments of {name} are no JSON object")
        try:
            result = await self._rpc.request("tools/call", {"name": name, "arguments": given})
        except RpcError as refusal:
            return failed(str(refusal))
        return _outcome(name, result)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) or "none") + more


def _outcome(name: str, result: Any) -> ToolOutcome:
    if not isinstance(result, dict):
        return failed(f"the MCP server answers the call of {name} with no result")
    content = result.get("content")
    parts = [_text(each) for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    if not parts and result.get("structuredContent") is not None:
        parts = [msgspec.json.encode(result["structuredContent"]).decode()]
    text = "\n".join(parts)
    if result.get("isError") is True:
        return ToolOutcome(text, one_line(text) or f"{name} failed and did not say why")
    return ToolOutcome(text)


def _text(content: dict[str, Any]) -> str:
    """A part of a result as text; what is none is named."""
    if isinstance(text := content.get("text"), str):
        return text
    resource = content.get("resource")
    if isinstance(resource, dict) and isinstance(text := resource.get("text"), str):
        return text
    about = content.get("uri") or content.get("mimeType") or (resource or {}).get("uri", "")
    return f"[{content.get('type', 'content')} {about}]"
