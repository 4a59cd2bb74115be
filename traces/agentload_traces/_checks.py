"""What a turn must satisfy beyond its types.

`TURN_CHECKS` look at one turn; each yields (field, message) for what is wrong. `SessionRules` look at a turn
among those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from agentload_traces._records import UINT64_MAX, Turn

Finding = tuple[str, str]
"""(field, message)"""

MAX_COUNT = 2**53
"""The most tokens that a count may tell; exact as a float, too."""

MAX_WAIT_MS = 10_000_000_000
"""The longest delay or duration of a turn or tool call: no agent waits 116 days, a wrong unit looks so."""

MAX_START_MS = 100_000_000_000_000
"""The latest recorded send time; milliseconds since 1970 are 2% of it, microseconds are above it."""

_TURN_COUNTS = ("input_tokens", "output_tokens", "new_input_tokens", "cached_input_tokens")
_CALL_COUNTS = ("arguments_tokens", "result_tokens")
_TURN_WAITS = ("delay_ms", "ttft_ms", "duration_ms")


def _wrong_count(value: int | None) -> str | None:
    if value is None or 0 <= value <= MAX_COUNT:
        return None
    return f"must be 0 or more, is {value}" if value < 0 else f"is {value}, more than 2^53"


def _wrong_wait(value: float | None) -> str | None:
    if value is None or 0 <= value <= MAX_WAIT_MS:  # NaN is not
        return None
    return f"must be 0 to {MAX_WAIT_MS:,} ms (116 days), is {value}"


def _wrong_start(value: float | None) -> str | None:
    if value is None or 0 <= value <= MAX_START_MS:
        return None
    return f"must be 0 to {MAX_START_MS:,} ms, is {value}"


def check_ids(turn: Turn) -> Iterator[Finding]:
    """A session and a turn have a name."""
    if not turn.session_id:
        yield "session_id", "must not be empty"
    if not turn.turn_id:
        yield "turn_id", "must not be empty"


def check_counts(turn: Turn) -> Iterator[Finding]:
    """Token counts are not negative and at most 2^53."""
    for field in _TURN_COUNTS:
        if message := _wrong_count(getattr(turn, field)):
            yield field, message


def check_parts(turn: Turn) -> Iterator[Finding]:
    """New and cached tokens are part of the prompt."""
    for field in ("new_input_tokens", "cached_input_tokens"):
        value = getattr(turn, field)
        if value is not None and value > turn.input_tokens:
            yield field, f"is {value}, more than input_tokens ({turn.input_tokens})"


def check_times(turn: Turn) -> Iterator[Finding]:
    """Times and durations are numbers of milliseconds that can be."""
    if message := _wrong_start(turn.start_ms):
        yield "start_ms", message
    for field in _TURN_WAITS:
        if message := _wrong_wait(getattr(turn, field)):
            yield field, message


def check_blocks(turn: Turn) -> Iterator[Finding]:
    """Block ids are unsigned 64-bit, and no more of them than the prompt has blocks."""
    blocks = turn.blocks
    if blocks is None:
        return
    if message := wrong_block_size(blocks.block_tokens):
        yield "blocks.block_tokens", message
    elif message := wrong_block_ids(blocks.ids, turn.input_tokens, blocks.block_tokens):
        yield "blocks.ids", message


def wrong_block_size(block_tokens: int) -> str | None:
    """Return what is wrong with a number of tokens as the size of a block."""
    if 1 <= block_tokens <= MAX_COUNT:
        return None
    return f"must be 1 to 2^53, is {block_tokens}"


def wrong_block_ids(
    ids: Sequence[int],
    input_tokens: int,
    block_tokens: int,
    *,
    length_field: str = "input_tokens",
    all_blocks: bool = False,
) -> str | None:
    """Return what is wrong with the block ids of a prompt, whose length the file calls `length_field`.

    all_blocks: each block has an id, but for a partial last one, which may or may not have one.
    """
    if ids and (min(ids) < 0 or max(ids) > UINT64_MAX):
        wrong = next(i for i in ids if not 0 <= i <= UINT64_MAX)
        return f"must be 0 to 2^64 - 1, one is {wrong}"
    whole, rest = divmod(input_tokens, block_tokens)
    most = whole + (rest > 0)
    if len(ids) <= most and not (all_blocks and len(ids) < whole):
        return None
    blocks = f"{whole} or {most}" if all_blocks and rest else f"{most}"
    makes = f"{length_field} {input_tokens} makes {blocks} blocks of {block_tokens} tokens"
    return f"has {len(ids)} ids, but {makes}"


def check_tool_calls(turn: Turn) -> Iterator[Finding]:
    """The counts and durations of tool calls are as those of turns."""
    for index, call in enumerate(turn.tool_calls):
        if message := _wrong_wait(call.duration_ms):
            yield f"tool_calls[{index}].duration_ms", message
        for field in _CALL_COUNTS:
            if message := _wrong_count(getattr(call, field)):
                yield f"tool_calls[{index}].{field}", message


TURN_CHECKS: tuple[Callable[[Turn], Iterator[Finding]], ...] = (
    check_ids,
    check_counts,
    check_parts,
    check_times,
    check_blocks,
    check_tool_calls,
)


def findings(turn: Turn) -> Iterator[Finding]:
    """Yield all that `TURN_CHECKS` find wrong with a turn."""
    for check in TURN_CHECKS:
        yield from check(turn)


class SessionRules:
    """What a turn must satisfy among the turns before it, fed one by one in the order of the trace.

    The turns of a session stand together, their ids differ, and `wait_for` and `parent_turn_id` name earlier
    ones.
    """

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._session_id: str | None = None
        self._turn_ids: set[str] = set()
        self._last_of_agent: dict[str | None, str] = {}
        self._last: str | None = None

    def refuse(self, turn: Turn) -> Finding | None:
        """Return why a turn cannot be part of the trace, or `None`."""
        if turn.session_id == self._session_id:
            if turn.turn_id in self._turn_ids:
                return "turn_id", f"{turn.turn_id!r} was already used in session {turn.session_id!r}"
        elif turn.session_id in self._ended:
            return (
                "session_id",
                f"session {turn.session_id!r} ended on an earlier line; its turns must stand together",
            )
        return None

    def admit(self, turn: Turn) -> tuple[Turn, list[Finding]]:
        """Take a turn in; return it with every reference resolved, and what was wrong with its references.

        A reference to a turn that is not there, for instance because its line was bad, is replaced by the
        turn before it: of the same agent for `wait_for`, of the session for `parent_turn_id`.
        """
        if turn.session_id != self._session_id:
            if self._session_id is not None:
                self._ended.add(self._session_id)
            self._session_id = turn.session_id
            self._turn_ids = set()
            self._last_of_agent = {}
            self._last = None
        found: list[Finding] = []
        if turn.wait_for and not self._turn_ids.issuperset(turn.wait_for):
            turn = self._with_known_waits(turn, found)
        if turn.parent_turn_id is not None and turn.parent_turn_id not in self._turn_ids:
            found.append(_unknown("parent_turn_id", turn.parent_turn_id, self._last))
            turn = msgspec.structs.replace(turn, parent_turn_id=self._last)
        self._turn_ids.add(turn.turn_id)
        self._last_of_agent[turn.agent_id] = self._last = turn.turn_id
        return turn, found

    def _with_known_waits(self, turn: Turn, found: list[Finding]) -> Turn:
        stand_in = self._last_of_agent.get(turn.agent_id)
        waits: list[str] = []
        for turn_id in turn.wait_for:
            if turn_id in self._turn_ids:
                waits.append(turn_id)
                continue
            found.append(_unknown("wait_for", turn_id, stand_in))
            if stand_in is not None:
                waits.append(stand_in)
        return msgspec.structs.replace(turn, wait_for=tuple(dict.fromkeys(waits)))


def _unknown(field: str, turn_id: str, stand_in: str | None) -> Finding:
    instead = "nothing" if stand_in is None else repr(stand_in)
    return field, f"{turn_id!r} is no earlier turn of this session; {instead} is taken instead"
