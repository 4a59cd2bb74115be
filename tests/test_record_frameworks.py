"""`agentload record` under real clients: pydantic-ai's agent loop, and the SDKs of OpenAI and Anthropic.

They are no dependencies of agentload, but of its development.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fake_endpoint import Reply, ToolUse, fake_endpoint_thread

from agentload_traces import RunReader, Turn, open_trace, trace_info

TURNS = 30

PYDANTIC_AI = """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

model = OpenAIChatModel("m", provider=OpenAIProvider(api_key="sk-secret"))
agent = Agent(model, instructions="You fix bugs.")

@agent.tool_plain
async def run_tests(path: str) -> str:
    await asyncio.sleep(0.02)
    return f"{path}: 3 failed, 12 passed"

async def streamed(context, events):
    async for event in events:
        pass

limits = UsageLimits(request_limit=None)
asyncio.run(agent.run("Fix it.", usage_limits=limits, event_stream_handler=streamed))
"""

PYDANTIC_AI_CHAT = """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("m", provider=OpenAIProvider(api_key="sk-secret"))
agent = Agent(model, instructions="You fix bugs.", model_settings={"max_tokens": 40})
history = None
for number in range(30):
    history = agent.run_sync(f"Fix bug {number}.", message_history=history).all_messages()
"""

OPENAI_RESPONSES = """
import openai

client = openai.OpenAI(api_key="sk-secret")
tool = {"type": "function", "name": "run_tests", "parameters": {"type": "object"}}
previous, given = openai.omit, "Fix it."
while True:
    request = {"model": "m", "input": given, "tools": [tool], "previous_response_id": previous}
    with client.responses.stream(**request) as stream:
        response = stream.get_final_response()
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    previous = response.id
    output = {"type": "function_call_output", "output": "3 failed"}
    given = [{**output, "call_id": call.call_id} for call in calls]
"""

ANTHROPIC = """
import anthropic

client = anthropic.Anthropic(api_key="sk-secret")
tool = {"name": "run_tests", "input_schema": {"type": "object"}}
messages = [{"role": "user", "content": "Fix it."}]
while True:
    request = {"model": "m", "max_tokens": 99, "system": "You fix bugs.", "tools": [tool]}
    with client.messages.stream(**request, messages=messages) as stream:
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        break
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "3 failed"} for call in calls]
    messages.append({"role": "user", "content": results})
"""


def script(number: int, body: dict[str, Any]) -> Reply:
    """Tool calls, in some turns two at a time, until the last turn."""
    if number % TURNS == TURNS - 1:
        return Reply(text="All is fixed.")
    calls = [
        ToolUse("run_tests", json.dumps({"path": f"tests/test_{number}_{at}.py"}), f"call_{number}_{at}")
        for at in range(1 + (number % 5 == 0))
    ]
    return Reply(text=f"I run tests {number}.", tool_calls=calls)


CALLS = TURNS - 1 + 6


def recorded(tmp_path: Path, program: str) -> list[Turn]:
    """Record a program, replay its trace, compare the totals; return what was recorded."""
    out, run_path = tmp_path / "t.jsonl", tmp_path / "run"
    agentload = [sys.executable, "-m", "agentload"]
    with fake_endpoint_thread(script) as endpoint:
        command = [*agentload, "record", "--upstream", endpoint.url, "--out", str(out)]
        command += ["--", sys.executable, "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env=_environment()
        )
        assert done.returncode == 0, done.stderr
        asked = len(endpoint.requests)
        command = [*agentload, "replay", str(out), "--target", endpoint.url, "--out", str(run_path)]
        subprocess.run(
            [*command, "--clock", "wall", "--speed", "100"], check=True, capture_output=True, timeout=120
        )
        assert len(endpoint.requests) == 2 * asked == 2 * TURNS
    info = trace_info(out)
    rows = RunReader(run_path).requests().collect()
    assert (info.sessions, info.turns, info.tool_calls) == (1, TURNS, CALLS)
    assert rows.height == TURNS
    assert rows["input_tokens"].sum() == info.input_tokens
    assert RunReader(run_path).tool_calls().collect().height == CALLS
    (session,) = open_trace(out, strict=True).sessions()
    for before, turn in zip(session.turns, session.turns[1:], strict=False):
        assert (turn.trigger, turn.wait_for, turn.delay_ms) == ("tool", (before.turn_id,), 0.0)
        assert all(call.result_tokens and call.duration_ms is not None for call in before.tool_calls)
        assert turn.new_input_tokens is not None
        assert 0 < turn.new_input_tokens <= turn.input_tokens
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"sk-secret" in path.read_bytes()]
    return list(session.turns)


def new_share(turns: list[Turn]) -> float:
    return sum(turn.new_input_tokens or 0 for turn in turns) / sum(turn.input_tokens for turn in turns)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}


def test_pydantic_ai(tmp_path: Path) -> None:
    assert new_share(recorded(tmp_path, PYDANTIC_AI)) < 0.2


def test_pydantic_ai_before_the_simulated_server(tmp_path: Path) -> None:
    out, run_path = tmp_path / "t.jsonl", tmp_path / "run"
    agentload = [sys.executable, "-m", "agentload"]
    serve = [*agentload, "serve", "gemma4-31b/pd", "--port", "0", "--json"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        try:
            command = [*agentload, "record", "--upstream", url, "--out", str(out), "--"]
            command += [sys.executable, "-c", PYDANTIC_AI_CHAT]
            subprocess.run(command, check=True, capture_output=True, timeout=120, env=_environment())
            command = [*agentload, "replay", str(out), "--target", url, "--out", str(run_path)]
            command += ["--clock", "wall", "--speed", "100"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        finally:
            server.terminate()
    (session,) = open_trace(out, strict=True).sessions()
    rows = RunReader(run_path).requests().collect()
    assert len(session.turns) == rows.height == 30
    assert [turn.trigger for turn in session.turns] == ["user"] * 30
    for column, recorded_tokens in (
        ("input_tokens", [turn.input_tokens for turn in session.turns]),
        ("output_tokens", [turn.output_tokens for turn in session.turns]),
    ):
        assert rows[column].sum() == sum(number or 0 for number in recorded_tokens)
    assert new_share(list(session.turns)) < 0.2


def test_openai_responses_with_previous_response_ids(tmp_path: Path) -> None:
    recorded(tmp_path, OPENAI_RESPONSES)


def test_anthropic_messages(tmp_path: Path) -> None:
    assert new_share(recorded(tmp_path, ANTHROPIC)) < 0.2
