"""Tools of an MCP server: handshake, calls, failures, and how the server is ended."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from agentload._answers import LiveMessage, LiveToolCall
from agentload._options import ToolOptions
from agentload._tools import live_tools
from agentload._tools._executor import ToolContext
from agentload._tools._mcp import PROTOCOL, McpServer, server_command
from agentload._wall_clock import RunClock
from agentload_traces import AgentloadError, Turn

CONTEXT = ToolContext("s", "t", "c")


def command(log: Path) -> str:
    return shlex.join([sys.executable, str(Path(__file__).with_name("mcp_server.py")), str(log)])


def told(log: Path) -> list[Any]:
    lines = log.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # the child of one that was killed may not have been reaped yet


async def test_handshake_then_all_pages_of_tools_and_calls_with_arguments(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with McpServer(command(log)) as server:
        assert len(server.tools) == 8
        outcome = await server.call("echo", '{"path": "a b"}', CONTEXT)
        assert json.loads(outcome.text) == {"path": "a b"}
        assert outcome.error is None
        assert (await server.call("echo", None, CONTEXT)).text == "{}"
    messages = told(log)
    assert [each["method"] for each in messages if "method" in each] == [
        *("initialize", "notifications/initialized", "tools/list", "tools/list"),
        *("tools/call", "tools/call"),
    ]
    assert messages[0]["params"]["protocolVersion"] == PROTOCOL
    assert {"jsonrpc": "2.0", "id": "ask", "result": {}} in messages
    assert log.read_text(encoding="utf-8").endswith("end\n"), "its input was closed, and it ended by itself"


@pytest.mark.parametrize(
    ("name", "arguments", "text", "error"),
    [
        ("broken", None, "it is\nbroken", "it is broken"),
        ("structured", None, '{"a":1}', None),
        ("image", None, "[image image/png]", None),
        ("echo", "[1]", None, "the arguments of echo are no JSON object"),
        ("echo", '{"a', None, "the arguments of echo are no JSON: Input data was truncated"),
    ],
)
async def test_what_a_call_gives(
    tmp_path: Path, name: str, arguments: str | None, text: str | None, error: str | None
) -> None:
    async with McpServer(command(tmp_path / "log")) as server:
        outcome = await server.call(name, arguments, CONTEXT)
    assert outcome.error == error
    assert outcome.text == (f"error: {error}" if text is None else text)


async def test_an_unknown_tool_fails_and_names_those_there_are(tmp_path: Path) -> None:
    async with McpServer(command(tmp_path / "log")) as server:
        outcome = await server.call("bash", "{}", CONTEXT)
    assert outcome.error is not None
    assert outcome.error.startswith("there is no tool 'bash'; the MCP server has echo, broken, ")


async def test_calls_run_at_the_same_time(tmp_path: Path) -> None:
    async with McpServer(command(tmp_path / "log")) as server:
        waiting = asyncio.create_task(server.call("wait", None, CONTEXT))
        assert (await server.call("release", None, CONTEXT)).text == "released"
        assert (await waiting).text == "waited"


async def test_a_server_that_dies_fails_the_calls_on_their_way_and_all_later_ones(tmp_path: Path) -> None:
    async with McpServer(command(tmp_path / "log")) as server:
        waiting = asyncio.create_task(server.call("wait", None, CONTEXT))
        outcomes = [
            await server.call("die", None, CONTEXT),
            await waiting,
            await server.call("echo", None, CONTEXT),
        ]
    assert {each.error for each in outcomes} == {"the MCP server ended (exit code 3): out of luck"}


async def test_a_cancelled_call_is_told_to_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with McpServer(command(log)) as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await server.call("wait", None, CONTEXT)
        assert (await server.call("echo", None, CONTEXT)).text == "{}"
    cancelled = [each for each in told(log) if each.get("method") == "notifications/cancelled"]
    call = next(each for each in told(log) if each.get("params", {}).get("name") == "wait")
    assert [each["params"]["requestId"] for each in cancelled] == [call["id"]]


async def test_secrets_of_the_replayer_are_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = {"AGENTLOAD_API_KEY", "AGENTLOAD_PROXY_AUTH", "MY_KEY"}
    for name in (*secret, "OTHER_KEY"):
        monkeypatch.setenv(name, "secret")
    options = ToolOptions(tools=f"mcp:{command(tmp_path / 'log')}")
    call = LiveMessage("", "", (LiveToolCall("c", "environment", "{}"),))
    turn = Turn(session_id="s", turn_id="t", input_tokens=1)
    async with live_tools(options, None, "MY_KEY") as tools:
        assert tools is not None
        _, (result,) = await tools.run(turn, call, RunClock())
    assert "OTHER_KEY" in result.text
    assert not secret & set(json.loads(result.text))


async def test_one_that_does_not_end_by_itself_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    server = shlex.quote(str(Path(__file__).with_name("mcp_server.py")))
    script = (
        f"trap '' TERM; sleep 600 & echo $! $$ > {shlex.quote(str(pids))};"
        f" {sys.executable} {server} {shlex.quote(str(tmp_path / 'log'))}; sleep 600"
    )
    async with McpServer(shlex.join(["sh", "-c", script])):
        pass
    assert not any(map(runs, pids.read_text(encoding="utf-8").split()))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; print('no luck', file=sys.stderr); sys.exit(4)", r"ended \(exit code 4\): no luck"),
        ("", r"ended \(exit code 0\): it said nothing"),
        (
            "import json; n = json.loads(input())['id'];"
            " print(json.dumps({'id': n, 'error': {'code': 1, 'message': 'too old'}})); input()",
            "too old",
        ),
        (
            "import json\nfor _ in range(3):\n m = json.loads(input())\n"
            " if 'id' in m: print(json.dumps({'id': m['id'], 'result': {}}), flush=True)",
            "no list of tools",
        ),
    ],
)
async def test_a_server_that_cannot_be_used_is_told_before_the_run(script: str, why: str) -> None:
    server = McpServer(shlex.join([sys.executable, "-c", script]))
    with pytest.raises(AgentloadError, match=why) as failure:
        await server.__aenter__()
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("no-such-program --x", "there is no program 'no-such-program'"),
        ("'open", "No closing quotation"),
        ("http://127.0.0.1:1/mcp", "must be a command"),
    ],
)
def test_commands_that_there_are_not(given: str, why: str) -> None:
    with pytest.raises(AgentloadError, match=why):
        server_command(given)


def test_a_command_is_split_as_a_shell_would() -> None:
    assert server_command("sh -c 'exit 0'") == ["sh", "-c", "exit 0"]
