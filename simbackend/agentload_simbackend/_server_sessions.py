"""Which session, context and turn a request belongs to.

Headers say it: `x-session-id`, with `x-agentload-agent-id` for a sub-agent's context and
`x-agentload-turn-id` for the turn; their values are percent-encoded, see `_wire`. Without `x-session-id` it
is worked out from the messages, see `Conversations`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec

from agentload_simbackend._server_prompt import BLOCK_TOKENS, MessageTexts, PromptIndex, split_messages
from agentload_simbackend._wire import AGENT_HEADER, SESSION_HEADER, decode_id

CACHE_BYTES = 512 * 2**20
"""Memory for the prompts of known conversations."""

_MAX_CONVERSATIONS = 100_000


class Conversation:
    """One agent context: a session's main agent, or one of its sub-agents.

    derived: whether no header named it. lock: held while the index is updated and read.
    running: its requests that are not answered yet. opening_messages: messages of its first request.
    """

    def __init__(self, session_id: str, agent_id: str | None, index: PromptIndex, *, derived: bool) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self.context_id = session_id if agent_id is None else f"{session_id}\0{agent_id}"
        self.derived = derived
        self.index = index
        self.lock = asyncio.Lock()
        self.running = 0
        self.opening_messages: int | None = None
        self.filed_under: bytes | None = None
        self.cached_bytes = 0
        self._turns = 0

    def next_turn_id(self) -> str:
        """Name the turn of a request that does not: its number, after the sub-agent's name if it is one's."""
        turn = str(self._turns)
        self._turns += 1
        return turn if self.agent_id is None else f"{self.agent_id}:{turn}"


class Conversations:
    """All contexts known, the least recently used forgotten first.

    A request without a session header continues the conversation, none of whose requests is still being
    answered, with which it shares most leading messages: all messages of that one's latest request, or
    at least more than those of its first request (an edited history). Else it opens a new one, whose id
    is a digest of its messages, so that it is the same in every run.

    block_tokens: see `PromptIndex`. cache_bytes: how much memory the prompts may take.
    """

    def __init__(
        self, message_texts: MessageTexts, block_tokens: int = BLOCK_TOKENS, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._message_texts = message_texts
        self._block_tokens = block_tokens
        self._cache_bytes = cache_bytes
        self._used_bytes = 0
        self._known: OrderedDict[tuple[str, str | None], Conversation] = OrderedDict()
        self._by_opening: dict[bytes, dict[str, Conversation]] = {}

    def find(self, headers: Mapping[str, str], messages: bytes) -> Conversation:
        """Return the conversation of a request; raises `ApiError` if the messages nest too deep."""
        session_id = header_id(headers, SESSION_HEADER)
        if session_id is None:
            conversation = self._by_messages(messages)
        else:
            conversation = self._named(session_id, header_id(headers, AGENT_HEADER))
        self._known.move_to_end((conversation.session_id, conversation.agent_id))
        return conversation

    def updated(self, conversation: Conversation) -> None:
        """Note that the prompt of `conversation` has changed, and forget others if memory is short."""
        size = conversation.index.size_bytes
        self._used_bytes += size - conversation.cached_bytes
        conversation.cached_bytes = size
        if conversation.opening_messages is None:
            conversation.opening_messages = conversation.index.message_count
        if conversation.derived:
            self._file(conversation)
        if self._used_bytes > self._cache_bytes or len(self._known) > _MAX_CONVERSATIONS:
            self._shrink()

    def _named(self, session_id: str, agent_id: str | None) -> Conversation:
        conversation = self._known.get((session_id, agent_id))
        return conversation or self._open(session_id, agent_id, derived=False)

    def _open(self, session_id: str, agent_id: str | None, *, derived: bool) -> Conversation:
        index = PromptIndex(self._message_texts, self._block_tokens)
        conversation = Conversation(session_id, agent_id, index, derived=derived)
        self._known[session_id, agent_id] = conversation
        return conversation

    def _by_messages(self, messages: bytes) -> Conversation:
        best, most = None, 0
        for conversation in self._candidates(messages):
            shared = conversation.index.shared_messages(messages)
            whole = shared == conversation.index.message_count
            if shared > most and (whole or shared > (conversation.opening_messages or 0)):
                best, most = conversation, shared
        return best or self._open(self._new_id(messages), None, derived=True)

    def _candidates(self, messages: bytes) -> Iterator[Conversation]:
        opening = split_messages(messages)[:2]
        for length in range(len(opening), 0, -1):
            for conversation in self._by_opening.get(_opening_key(opening[:length]), {}).values():
                if not conversation.running:
                    yield conversation

    def _new_id(self, messages: bytes) -> str:
        name = session_id = "derived-" + blake2b(messages, digest_size=8).hexdigest()
        copy = 1
        while (session_id, None) in self._known:
            copy += 1
            session_id = f"{name}-{copy}"
        return session_id

    def _file(self, conversation: Conversation) -> None:
        """File a conversation under its first two messages, or the first if it has but one."""
        key = _opening_key(conversation.index.leading(2))
        if key != conversation.filed_under:
            self._unfile(conversation)
            self._by_opening.setdefault(key, {})[conversation.session_id] = conversation
            conversation.filed_under = key

    def _unfile(self, conversation: Conversation) -> None:
        if conversation.filed_under is not None:
            filed = self._by_opening[conversation.filed_under]
            del filed[conversation.session_id]
            if not filed:
                del self._by_opening[conversation.filed_under]

    def _shrink(self) -> None:
        for key, conversation in list(self._known.items()):
            if self._used_bytes <= self._cache_bytes and len(self._known) <= _MAX_CONVERSATIONS:
                return
            if not conversation.running:
                del self._known[key]
                self._used_bytes -= conversation.cached_bytes
                self._unfile(conversation)


def header_id(headers: Mapping[str, str], name: str) -> str | None:
    """Return the id in a header, `None` if it is absent or empty; bytes that are no UTF-8 are replaced."""
    value = headers.get(name)
    return decode_id(value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")) if value else None


def _opening_key(messages: Sequence[msgspec.Raw]) -> bytes:
    return blake2b(b",".join(map(bytes, messages)), digest_size=16).digest()
