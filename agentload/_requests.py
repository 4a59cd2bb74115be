"""The request bodies of a session, in four APIs: token counts and shared prefixes are the trace's.

Each message is a stretch of the prompt's token sequence: a system and a user message at first, then for
every turn the previous answer (with its tool calls) and what came back (tool results or a user message).
Text is `filler` of the prompt's runs, so equal runs are equal text and every count is exact in o200k_base.
The tokens that a tool call's name and arguments take replace as many tokens of the run's text.

With a live history the answer that really came stands in the place of the recorded one, and real results
of tools in the place of recorded ones. New text then fills up what a turn adds, if they leave room for it.

The history stays serialised and is extended: a turn costs its new text and one copy of the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agentload._options import Api
from agentload._options import History as HistoryKind
from agentload._prompts import Prompt, PromptPlanner, shared_tokens
from agentload._requests_calls import RecordedCall, recorded_calls
from agentload._requests_fields import DESCRIPTION_WORDS, BodyFields, DeclaredTools, asked_tokens
from agentload._requests_history import History, Reported
from agentload._requests_live import NOTHING, Came, LiveText, ToolResult, prepare
from agentload._requests_text import render, scaled_words, segments
from agentload._requests_wire import WIRES, Call, Role
from agentload._token_fit import TokenFit
from agentload_traces import Session, Turn

if TYPE_CHECKING:
    from agentload._answers_types import LiveMessage

__all__ = ["BuiltRequest", "RequestBuilder", "ToolResult", "asked_tokens"]

SYSTEM_SHARE = 0.75
"""Part of the first prompt that becomes the system message (tools and system are most of it:
trace statistics of agent sessions put 15k of about 19k tokens there)."""

_LEFT_HISTORIES = 32
"""How many contexts that its agents have left a session remembers, to find them again."""

_LEFT_BYTES = 4 << 20
"""And how much of them: sessions are many."""

Slices = Generator[None, None, None]


class BuiltRequest(NamedTuple):
    """A request ready to be sent.

    sent_tokens: o200k tokens of all that is prompt in it: texts of messages, names and arguments of tool
    calls, declared tools. output_tokens: the most that it asks for.
    """

    body: bytes
    sent_tokens: int
    output_tokens: int


class RequestBuilder:
    """Builds the requests of one session; call `build` or `skip` for an agent's turns in their order.

    salt: see `PromptPlanner`. history: "live" has what `answered` told in the place of recorded answers; an
    answer of which it was not told (a failed turn) is left out. fit: prompts are to have the trace's counts
    by the endpoint's own count, which it learns from `reported`. force_output, extra_body: see `BodyFields`.
    """

    def __init__(
        self,
        session: Session,
        *,
        seed: int,
        model: str,
        api: Api = "chat",
        salt: str = "",
        history: HistoryKind = "recorded",
        fit: TokenFit | None = None,
        force_output: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self._planner = PromptPlanner(session, salt)
        self._seed = seed
        self._wire = WIRES[api]
        self._may_be_empty = api == "chat"
        self._fields = BodyFields(api, model, force_output=force_output, extra_body=extra_body or {})
        declares = api == "messages" and not self._fields.has_tools
        self._tools = DeclaredTools(session) if declares else None
        self._live = history == "live"
        self._fit = fit
        self._came: dict[str, Came] = {}
        self._histories: dict[str | None, History] = {}
        self._left: deque[History] = deque(maxlen=_LEFT_HISTORIES)

    def build(self, turn: Turn) -> BuiltRequest:
        """The request of `turn`: `turn.input_tokens` tokens of messages, streamed, with usage."""
        slices = self.build_in_slices(turn)
        while True:
            try:
                next(slices)
            except StopIteration as built:
                request: BuiltRequest = built.value
                return request

    def build_in_slices(self, turn: Turn) -> Generator[None, None, BuiltRequest]:
        """As `build`; yields after each slice of work, about 0.2 ms."""
        yield from self._advance(turn)
        history = self._histories[turn.agent_id]
        history.skipped = False
        output_tokens = self._fields.output_tokens(turn)
        body = self._fields.body(self._wire.opening, history.data, history.closing(), output_tokens)
        return BuiltRequest(body, history.sent_tokens, output_tokens)

    def skip(self, turn: Turn) -> None:
        """Take a turn that is not sent into the history, with its recorded answer."""
        for _ in self._advance(turn):
            pass
        self._histories[turn.agent_id].skipped = True

    def answered(self, turn: Turn, message: LiveMessage, results: Sequence[ToolResult]) -> None:
        """Tell what came for a turn, and what tools really gave; for a live history only.

        Where tools are declared, calls of others are left out: an endpoint would refuse them in a history.
        """
        history = self._histories[turn.agent_id]
        if self._tools is not None:
            declared = tuple(call for call in message.tool_calls if call.name in self._tools.names)
            message = message._replace(tool_calls=declared)
        has_calls = self._wire.has_calls
        self._came[turn.turn_id] = prepare(turn, message, results, history, has_calls=has_calls)

    def reported(self, turn: Turn, input_tokens: int) -> None:
        """Tell what the endpoint counted for the prompt of a turn."""
        history = self._histories[turn.agent_id]
        sent_tokens, messages = history.sent_tokens, len(history.pieces)
        if self._fit is not None and self._fit.learn(sent_tokens, messages, input_tokens):
            history.reported = Reported(sent_tokens, messages, input_tokens)

    def _advance(self, turn: Turn) -> Slices:
        prompt = self._planner.plan(turn)
        history = self._histories.setdefault(turn.agent_id, History(self._wire))
        held = history.tokens
        if held and prompt.shared_tokens >= held:
            yield from self._append(history, prompt, turn)
        else:
            history = yield from self._begin(history, prompt, turn)
        history.previous, history.runs = turn, prompt.runs

    def _append(self, history: History, prompt: Prompt, turn: Turn) -> Slices:
        """The agent goes on: its previous answer, and what came back."""
        total, held, previous = turn.input_tokens, history.tokens, history.previous
        if total == held:
            return
        assert previous is not None
        answer_end = held + min(previous.output_tokens or 0, total - held - 1)
        results: Mapping[str, LiveText] = {}
        if self._live and not history.skipped:
            if turn.new_input_tokens is not None:
                answer_end = total - max(1, turn.new_input_tokens)
            came = self._came.pop(previous.turn_id, NOTHING)
            self._add_answer(history, came, answer_end)
            results = came.results
        else:
            yield from self._add_recorded(history, prompt, turn, previous, answer_end)
        real_tokens = yield from self._add_results(history, prompt, turn, results)
        room = max(0, total - max(history.tokens, answer_end) - real_tokens)
        if room or turn.trigger == "user" or history.role == "assistant":
            yield from self._add_text(history, prompt, turn, "user", total, words=room, last=True)
        history.stretch(total)

    def _begin(self, history: History, prompt: Prompt, turn: Turn) -> Generator[None, None, History]:
        """The agent goes back in its context, or starts one: go on from whatever shares most with it.

        That may be a context which the agent has left, or another agent's. Messages taken over keep equal
        tokens equal text, tool calls included.
        """
        if history.pieces:
            self._left.append(history)
            while sum(len(left.data) for left in self._left) > _LEFT_BYTES and len(self._left) > 1:
                self._left.popleft()
        known = [*self._left, *self._histories.values()]
        shared, closest = max(
            ((shared_tokens(one.runs, prompt.runs), one) for one in known), key=lambda pair: pair[0]
        )
        total = turn.input_tokens
        begun = History(self._wire)
        if shared > self._declared_end(closest):
            begun = closest.copy()
            begun.go_back(shared)
        if not begun.pieces:
            yield from self._open(begun, prompt, turn)
        self._histories[turn.agent_id] = begun
        if begun.tokens < total or begun.role not in ("user", "tool"):
            room = total - begun.tokens
            yield from self._add_text(begun, prompt, turn, "user", total, words=room, last=True)
        return begun

    @staticmethod
    def _declared_end(history: History) -> int:
        """Where the declaration of tools ends, without which nothing can be gone on with."""
        declared = history.pieces and history.pieces[0].role == "tools"
        return history.pieces[0].token_end if declared else 0

    def _open(self, history: History, prompt: Prompt, turn: Turn) -> Slices:
        """Tools, if they are declared, and the system message."""
        system = int(turn.input_tokens * SYSTEM_SHARE)
        tokens, tools = self._fields.extra_tokens, b""
        if self._tools is not None and self._tools.tokens:
            tokens += self._tools.tokens
            parts = segments(prompt, turn.input_tokens, 0, min(DESCRIPTION_WORDS, turn.input_tokens))
            tools = self._tools.json((yield from render(self._seed, parts, DESCRIPTION_WORDS)))
        if tokens:
            history.declare(tools, tokens, min(tokens, system))
        yield from self._add_text(history, prompt, turn, "system", system, words=system - history.tokens)

    def _add_text(
        self,
        history: History,
        prompt: Prompt,
        turn: Turn,
        role: Role,
        end: int,
        *,
        words: int,
        last: bool = False,
    ) -> Slices:
        """Append a message of filler up to token `end` of the prompt.

        words: how many tokens of text it has, as far as the endpoint's own count does not say otherwise.
        last: it ends the prompt, whose length it has to make right.
        """
        parts = segments(prompt, turn.input_tokens, history.tokens, end)
        ratio = 1.0
        if self._fit is not None:
            ratio = self._fit.words_per_token
            short = turn.input_tokens - history.expected_tokens(self._fit)
            words = self._fit.words(short, 1) if last else scaled_words(parts, ratio)
        if last and not self._may_be_empty and history.role not in ("user", "tool"):
            words = max(1, words)  # a prompt ends with neither an answer nor a system message
        text = yield from render(self._seed, parts, words, ratio)
        history.add(role, text, words, end)

    def _add_answer(self, history: History, came: Came, end: int) -> None:
        """Append what came; an answer of which nothing came is none."""
        if not came.text.json and not came.calls:
            return
        history.add(
            "assistant",
            came.text.json,
            came.text.tokens,
            end,
            calls=came.calls,
            call_tokens=came.call_tokens,
            live=True,
        )

    def _add_recorded(self, history: History, prompt: Prompt, turn: Turn, previous: Turn, end: int) -> Slices:
        """Append the previous answer, with its recorded calls, as a message that ends at token `end`."""
        start, total = history.tokens, turn.input_tokens
        calls: Sequence[RecordedCall] = ()
        if self._wire.has_calls:
            calls = recorded_calls(previous, end - start)
        text_end = end - sum(call.tokens for call in calls)
        parts = segments(prompt, total, start, text_end)
        words, ratio = text_end - start, 1.0
        if self._fit is not None:
            ratio = self._fit.words_per_token
            words = scaled_words(parts, ratio)
        text = yield from render(self._seed, parts, words, ratio)
        rendered = []
        position = text_end
        for call in calls:
            position += call.overhead_tokens
            parts = segments(prompt, total, position, position + call.words)
            inside = yield from render(self._seed, parts, call.words)
            position += call.words
            rendered.append(Call(call.call_id, call.name, call.arguments(inside.decode())))
        call_tokens = sum(call.tokens for call in calls)
        history.add("assistant", text, words, end, calls=rendered, call_tokens=call_tokens, text_end=text_end)

    def _add_results(
        self, history: History, prompt: Prompt, turn: Turn, results: Mapping[str, LiveText]
    ) -> Generator[None, None, int]:
        """Append a result for each call of the last message; returns the tokens of real ones.

        Unless a user speaks, recorded results share what is new. Real ones stand for no tokens of the prompt.
        """
        ids = history.unanswered()
        recorded = [call_id for call_id in ids if call_id not in results]
        start, total = history.tokens, turn.input_tokens
        share = 0 if turn.trigger == "user" or not recorded else (total - start) // len(ids)
        real_tokens = 0
        for call_id in ids:
            if (real := results.get(call_id)) is not None:
                history.add("tool", real.json, real.tokens, history.tokens, answers=call_id, live=True)
                real_tokens += real.tokens
                continue
            last = not results and call_id == recorded[-1] and share > 0
            end = total if last else history.tokens + share
            parts = segments(prompt, total, history.tokens, end)
            words, ratio = end - history.tokens, 1.0
            if self._fit is not None:
                ratio = self._fit.words_per_token
                short = total - history.expected_tokens(self._fit)
                words = self._fit.words(short, 1) if last else scaled_words(parts, ratio)
            text = yield from render(self._seed, parts, words, ratio)
            history.add("tool", text, words, end, answers=call_id)
        return real_tokens
