"""Sessions drawn from a profile.

What a turn holds is a function of (seed, session index, turn index): the first n turns of a longer session
are the shorter session, and session k is the same however many are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from agentload._generate._draws import choice_function, quantile_function, split, words
from agentload._generate._profile import Profile
from agentload_traces import Session, ToolCall, Turn

_MS_PER_S = 1000
_WORD_RANGE = 2**32

# Where the words of a turn go; each tool call takes `_WORDS_PER_CALL` of them.
_OUTPUT, _NEW, _CALLS, _THINK, _FIRST_CALL = range(5)
_WORDS_PER_CALL = 3
_CALLS_IN_TURN_WORDS = 4
_CALLS_IN_CALL_WORDS = 5


class _Answer(NamedTuple):
    """What an answer leads to.

    new_tokens: what its tool results, or else the user's next message, add to the next prompt.
    think_ms: 0 when tool calls follow.
    """

    output_tokens: int
    tool_calls: tuple[ToolCall, ...]
    new_tokens: int
    think_ms: int


class _Laws:
    """A profile, made ready to draw from."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.seed = seed
        self.prefix = f"{profile.name}-{seed}-"
        self.fixed_tokens = round(profile.fixed_prefix_tokens.value)
        self.summary = _Answer(round(profile.summary_tokens.value), (), 0, 0)
        self.first_prompt = quantile_function(profile.first_prompt_tokens.points)
        self.output = quantile_function(profile.output_tokens.points)
        self.compaction_at = quantile_function(profile.compaction_at_tokens.points)
        self.compacted = quantile_function(profile.compacted_tokens.points)
        self._new = quantile_function(profile.new_tokens.points)
        self._think_ms = quantile_function(profile.think_time_s.points, _MS_PER_S)
        self._loop_ends_below = round(_WORD_RANGE / profile.turns_per_user_message.value)
        self._calls = choice_function(profile.tool_calls_per_turn.weights)
        self._tool = choice_function({name: tool.share for name, tool in profile.tools.items()})
        self._latency_ms = {
            name: quantile_function(tool.latency_s, _MS_PER_S) for name, tool in profile.tools.items()
        }

    def answer(self, session: int, turn: int) -> _Answer:
        drawn = words(b"turn", self.seed, session, turn)
        output_tokens, new_tokens = self.output(drawn[_OUTPUT]), self._new(drawn[_NEW])
        # One word decides both: below the mark the loop ends, and the rest is stretched over all words again.
        end = self._loop_ends_below
        if drawn[_CALLS] < end:
            return _Answer(output_tokens, (), max(new_tokens, 1), self._think_ms(drawn[_THINK]))
        count = self._calls((drawn[_CALLS] - end) * _WORD_RANGE // (_WORD_RANGE - end))
        new_tokens = max(new_tokens, count)
        return _Answer(
            output_tokens, self._tool_calls(session, turn, count, new_tokens, drawn), new_tokens, 0
        )

    def _tool_calls(
        self, session: int, turn: int, count: int, new_tokens: int, drawn: tuple[int, ...]
    ) -> tuple[ToolCall, ...]:
        call_words = list(drawn[_FIRST_CALL:])
        for more in range(0, count - _CALLS_IN_TURN_WORDS, _CALLS_IN_CALL_WORDS):
            call_words += words(b"calls %d" % more, self.seed, session, turn)[:-1]
        used = call_words[: count * _WORDS_PER_CALL]
        results = split(new_tokens, used[2::_WORDS_PER_CALL])
        calls = []
        for kind, latency, result_tokens in zip(
            used[0::_WORDS_PER_CALL], used[1::_WORDS_PER_CALL], results, strict=True
        ):
            name = self._tool(kind)
            duration_ms = float(self._latency_ms[name](latency))
            calls.append(ToolCall(name=name, duration_ms=duration_ms, result_tokens=result_tokens))
        return tuple(calls)


def generate_sessions(profile: Profile, *, sessions: int, turns: int, seed: int) -> Iterator[Session]:
    """Make `sessions` sessions of `turns` turns each, one at a time.

    profile: from `load_profile`. seed: 0 to 2^64 - 1.

    An answer calls tools, whose results start the next turn, or ends the tool loop; then a user's message
    does, after a think time. A prompt is the previous prompt, the previous answer and what came in between,
    `new_input_tokens`. A prompt above the session's limit is sent with trigger "compaction" and answered by a
    summary; the turn that was due follows on a compacted prompt, of which only the fixed prefix (tools and
    system prompt) stands where it stood, so that all else of it counts as new.

    Raises `ValueError` for a count below 0 or a seed out of range.
    """
    if sessions < 0 or turns < 0:
        raise ValueError(f"sessions={sessions} and turns={turns} must be at least 0")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed={seed} must lie in 0 to 2^64 - 1")
    laws = _Laws(profile, seed)
    return (_session(laws, index, turns) for index in range(sessions))


def _session(laws: _Laws, index: int, count: int) -> Session:
    session_id = f"{laws.prefix}{index}"
    session_words = words(b"session", laws.seed, index, 0)
    prompt = new = laws.first_prompt(session_words[0])
    limit = laws.compaction_at(session_words[1])
    fixed = min(laws.fixed_tokens, prompt)
    due: Literal["user", "tool"] = "user"
    compact, delay_ms = False, 0
    wait_for: tuple[str, ...] = ()
    turns = []
    for turn in range(count):
        answer = laws.summary if compact else laws.answer(index, turn)
        turn_id = f"t{turn}"
        turns.append(
            Turn(
                session_id=session_id,
                turn_id=turn_id,
                input_tokens=prompt,
                output_tokens=answer.output_tokens,
                output_quality="estimated",
                wait_for=wait_for,
                delay_ms=float(delay_ms),
                trigger="compaction" if compact else due,
                new_input_tokens=new,
                tool_calls=answer.tool_calls,
            )
        )
        wait_for = (turn_id,)
        if compact:
            compact, delay_ms = False, 0
            prompt = laws.compacted(words(b"compaction", laws.seed, index, turn)[0])
            new = prompt - fixed
        else:
            due, delay_ms = ("tool" if answer.tool_calls else "user"), answer.think_ms
            new = answer.new_tokens
            prompt += answer.output_tokens + new
            compact = prompt > limit
    return Session(session_id, tuple(turns))
