"""The prose of a recorded turn, for traces that are made with it."""

from __future__ import annotations

import msgspec

from agentload._answers_gathered import clean
from agentload._record._answer import Answered
from agentload._record._prompt import Prompt, message
from agentload._record._sessions import Place
from agentload_traces import Message


def kept_messages(prompt: Prompt, place: Place, answered: Answered) -> tuple[Message, ...]:
    """What is new in a prompt, after the agent's previous one and the answer to it; and the answer, last.

    So an agent's turns one after the other are its conversation. An answer with tool calls is JSON.
    """
    if prompt.text is not None:
        new = [Message(role="user", content=prompt.text)]
    else:
        first = place.shared + place.follows
        new = [message(raw) for raw in prompt.raw[first:]]
        if place.how == "opened":
            new = [Message(role="system", content=_system(raw)) for raw in prompt.system] + new
    return (*new, Message(role="assistant", content=_answer(answered)))


def _system(raw: bytes) -> str | None:
    content = message(raw).content if raw[:1] in (b"{", b'"') else raw.decode("utf-8", "replace")
    return None if content is None else clean(content)


def _answer(answered: Answered) -> str:
    if not answered.calls:
        return clean(answered.text)
    calls = [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in answered.calls]
    return msgspec.json.encode({"text": clean(answered.text), "tool_calls": calls}).decode()
