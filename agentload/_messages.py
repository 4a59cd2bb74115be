"""The request bodies of a session: chat messages whose token counts and shared prefixes are the trace's.

Each message is a stretch of the prompt's token sequence: a system and a user message at first, then for
every turn the previous answer (with its tool calls) and what came back (tool results or a user message).
Text is `filler` of the prompt's runs, so equal runs are equal text and every count is exact in o200k_base.
The tokens that a tool call's name and arguments take replace as many tokens of the run's text.

The history stays serialised and is extended: a turn costs its new text and one copy of the bytes.
"""

from __future__ import annotations

import json
from collections import deque
from typing import NamedTuple

from agentload._prompts import Prompt, PromptPlanner, shared_tokens
from agentload_simbackend import PromptRun
from agentload_traces import Session, ToolCall, Turn, count_tokens, filler

SYSTEM_SHARE = 0.75
"""Part of the first prompt that becomes the system message (tools and system are most of it:
trace statistics of agent sessions put 15k of about 19k tokens there)."""

_LEFT_CONVERSATIONS = 32
"""How many contexts that its agents have left a session remembers, to find them again."""

_ARGUMENTS_OPEN, _ARGUMENTS_CLOSE = '{"input":"', '"}'


def asked_tokens(turn: Turn) -> int:
    """Output tokens to ask for: the recorded count, but at least 1, since nobody can ask for none."""
    return max(1, turn.output_tokens or 0)


class _Piece(NamedTuple):
    """A message in the history.

    token_start, text_end, token_end: the prompt tokens at which it starts, at which its text ends and
    those of its tool calls begin, and at which it ends. byte_end: where it ends in the history.
    calls: ids of the tool calls that it makes. answers: the call that it is the result of.
    """

    role: str
    token_start: int
    text_end: int
    token_end: int
    byte_end: int
    calls: tuple[str, ...] = ()
    answers: str | None = None


class BuiltRequest(NamedTuple):
    """A request ready to be sent. sent_tokens: o200k tokens of all its messages."""

    body: bytes
    sent_tokens: int
    output_tokens: int


class _Conversation:
    """The serialised messages of one agent."""

    def __init__(self) -> None:
        self.history = bytearray()
        self.pieces: list[_Piece] = []
        self.runs: tuple[PromptRun, ...] = ()
        self.previous: Turn | None = None

    def copy(self) -> _Conversation:
        """The same messages, to be gone on with apart."""
        other = _Conversation()
        other.history, other.pieces, other.runs = self.history.copy(), self.pieces.copy(), self.runs
        return other

    @property
    def tokens(self) -> int:
        return self.pieces[-1].token_end if self.pieces else 0

    def append(self, message: str, piece: _Piece) -> None:
        if self.history:
            self.history += b","
        self.history += message.encode()
        self.pieces.append(piece._replace(byte_end=len(self.history)))

    def text(self, role: str, text: str, end: int, answers: str | None = None) -> None:
        """Append a message of text only that ends at token `end`."""
        # Filler is lower-case words and spaces: nothing in it needs JSON escapes.
        call = f'"tool_call_id":{json.dumps(answers)},' if answers else ""
        piece = _Piece(role, self.tokens, end, end, 0, answers=answers)
        self.append(f'{{"role":"{role}",{call}"content":"{text}"}}', piece)

    def cut(self, tokens: int) -> _Piece | None:
        """Keep the leading messages within `tokens`; return the first that goes beyond, if one does."""
        beyond = None
        while self.pieces and self.pieces[-1].token_end > tokens:
            beyond = self.pieces.pop()
        del self.history[self.pieces[-1].byte_end if self.pieces else 0 :]
        return beyond

    def unanswered(self) -> list[str]:
        """Ids of the last message's tool calls that have no result yet."""
        answered = set()
        for piece in reversed(self.pieces):
            if piece.answers is None:
                return [call for call in piece.calls if call not in answered]
            answered.add(piece.answers)
        return []


class RequestBuilder:
    """Builds the chat requests of one session; call `build` for an agent's turns in their order."""

    def __init__(self, session: Session, *, seed: int, model: str) -> None:
        self._planner = PromptPlanner(session)
        self._seed = seed
        self._head = b'{"model":%s,"messages":[' % json.dumps(model).encode()
        self._conversations: dict[str | None, _Conversation] = {}
        self._left: deque[_Conversation] = deque(maxlen=_LEFT_CONVERSATIONS)

    def build(self, turn: Turn) -> BuiltRequest:
        """The request of `turn`: exactly `turn.input_tokens` tokens of messages, streamed, with usage."""
        prompt = self._planner.plan(turn)
        conversation = self._conversations.setdefault(turn.agent_id, _Conversation())
        held = conversation.tokens
        if held and prompt.shared_tokens >= held:
            self._append(conversation, prompt, turn)
        else:
            conversation = self._begin(conversation, prompt, turn)
        conversation.previous, conversation.runs = turn, prompt.runs
        output_tokens = asked_tokens(turn)
        tail = b'],"max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}' % output_tokens
        return BuiltRequest(self._head + conversation.history + tail, conversation.tokens, output_tokens)

    def _append(self, conversation: _Conversation, prompt: Prompt, turn: Turn) -> None:
        """The agent goes on: its previous answer, and what came back."""
        total, held, previous = turn.input_tokens, conversation.tokens, conversation.previous
        if total == held:
            return
        assert previous is not None
        answer = min(previous.output_tokens or 0, total - held - 1)
        self._answer(conversation, prompt, previous, held + answer)
        self._results(conversation, prompt, turn)
        if conversation.tokens < total or turn.trigger == "user":
            conversation.text("user", self._text(prompt, conversation.tokens, total), total)

    def _begin(self, conversation: _Conversation, prompt: Prompt, turn: Turn) -> _Conversation:
        """The agent goes back in its context, or starts one: go on from whatever shares most with it.

        That may be a context which the agent has left, or another agent's. Messages taken over keep equal
        tokens equal text, tool calls included.
        """
        if conversation.pieces:
            self._left.append(conversation)
        known = [*self._left, *self._conversations.values()]
        shared, closest = max(
            ((shared_tokens(one.runs, prompt.runs), one) for one in known), key=lambda pair: pair[0]
        )
        conversation = self._conversations[turn.agent_id] = closest.copy() if shared else _Conversation()
        if shared:
            self._go_back(conversation, prompt, shared)
        else:
            system = int(turn.input_tokens * SYSTEM_SHARE)
            conversation.text("system", self._text(prompt, 0, system), system)
        total = turn.input_tokens
        if conversation.tokens < total or conversation.pieces[-1].role not in ("user", "tool"):
            conversation.text("user", self._text(prompt, conversation.tokens, total), total)
        return conversation

    def _go_back(self, conversation: _Conversation, prompt: Prompt, shared: int) -> None:
        """Cut the history back to the tokens that the prompt shares with it.

        A message that is shared in part keeps that part. Only the tokens of a half-shared message's tool
        calls become plain text.
        """
        beyond = conversation.cut(shared)
        if beyond is not None and conversation.tokens < min(shared, beyond.text_end):
            end = min(shared, beyond.text_end)
            text = self._text(prompt, beyond.token_start, end)
            conversation.text(beyond.role, text, end, beyond.answers)
        for call_id in conversation.unanswered():
            conversation.text("tool", "", conversation.tokens, call_id)

    def _text(self, prompt: Prompt, start: int, end: int) -> str:
        """Text of the prompt's tokens [start, end)."""
        parts = []
        offset = 0
        for run in prompt.runs:
            if offset >= end:
                break
            stop = offset + run.tokens
            if stop > start:
                first = max(0, start - offset)
                parts.append(filler(self._seed, run.key, first, min(run.tokens, end - offset) - first))
            offset = stop
        return "".join(parts)

    def _answer(self, conversation: _Conversation, prompt: Prompt, previous: Turn, end: int) -> None:
        """Append the previous answer as an assistant message that ends at token `end`."""
        start = conversation.tokens
        calls = _fitting(previous.tool_calls, end - start)
        spare = (end - start) - sum(_overhead(call) for call in calls)
        words_each = spare // 2 // len(calls) if calls else 0
        text_end = end - sum(_overhead(call) + words_each for call in calls)
        fields = ['"role":"assistant"', f'"content":"{self._text(prompt, start, text_end)}"']
        ids = []
        rendered = []
        position = text_end
        for number, call in enumerate(calls):
            position += _overhead(call)
            words = self._text(prompt, position, position + words_each)
            position += words_each
            ids.append(f"call_{previous.turn_id}_{number}")
            arguments = json.dumps(f"{_ARGUMENTS_OPEN}{words}{_ARGUMENTS_CLOSE}")
            name = json.dumps(_function_name(call))
            rendered.append(
                f'{{"id":{json.dumps(ids[-1])},"type":"function",'
                f'"function":{{"name":{name},"arguments":{arguments}}}}}'
            )
        if rendered:
            fields.append(f'"tool_calls":[{",".join(rendered)}]')
        piece = _Piece("assistant", start, text_end, end, 0, calls=tuple(ids))
        conversation.append("{" + ",".join(fields) + "}", piece)

    def _results(self, conversation: _Conversation, prompt: Prompt, turn: Turn) -> None:
        """Append a result for each call of the last message; unless a user speaks, they share what is new."""
        ids = conversation.unanswered()
        start, total = conversation.tokens, turn.input_tokens
        share = 0 if turn.trigger == "user" or not ids else (total - start) // len(ids)
        for number, call_id in enumerate(ids):
            last = number == len(ids) - 1
            end = total if last and share else start + share
            conversation.text("tool", self._text(prompt, start, end), end, call_id)
            start = end


def _function_name(call: ToolCall) -> str:
    return call.name or "tool"


def _overhead(call: ToolCall) -> int:
    """Tokens of a call's name and of the JSON around its words."""
    return _name_tokens(_function_name(call)) + _frame_tokens()


def _name_tokens(name: str) -> int:
    if name not in _NAME_TOKENS:
        _NAME_TOKENS[name] = count_tokens(name)
    return _NAME_TOKENS[name]


def _frame_tokens() -> int:
    return _name_tokens(f"{_ARGUMENTS_OPEN} a{_ARGUMENTS_CLOSE}") - 1


_NAME_TOKENS: dict[str, int] = {}


def _fitting(calls: tuple[ToolCall, ...], tokens: int) -> tuple[ToolCall, ...]:
    """As many leading calls as an answer of `tokens` tokens can hold, each with at least one word."""
    needed = 0
    for count, call in enumerate(calls):
        needed += _overhead(call) + 2
        if needed > tokens:
            return calls[:count]
    return calls
