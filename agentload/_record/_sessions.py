"""Which session and agent a recorded request belongs to.

Headers say it, or the request itself does: it continues the conversation whose latest prompt its messages
begin with. Of several such ones it is that whose answer follows there. See `SessionFinder`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Literal, NamedTuple
from urllib.parse import unquote

from agentload._options import Api
from agentload._record._prompt import Item, Prompt
from agentload_simbackend import AGENT_HEADER, SESSION_HEADER

SESSION_FIELDS = (
    SESSION_HEADER,
    "x-agentload-session",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-dynamo-session-id",
)
"""Headers that name a session: agentload, OpenCode and many others; Claude Code; Codex; Dynamo."""

AGENT_FIELDS = (AGENT_HEADER, "x-claude-code-agent-id")
PARENT_AGENT_FIELDS = ("x-claude-code-parent-agent-id",)
PARENT_SESSION_FIELDS = ("x-parent-session-id", "x-dynamo-parent-session-id")

_MOST_CONTEXTS = 20_000
_MOST_CANDIDATES = 64

How = Literal["opened", "continued", "edited", "compacted"]
"""What a request is to its agent: the first; the previous prompt and more; with a history that was changed
on the way; with a new one."""


class Said(NamedTuple):
    """How an answer is found again in a later prompt."""

    text: bytes
    calls: tuple[str, ...]


class Context:
    """What is known of one agent of a session.

    items: digests of its latest prompt; opening: how many the first had. said: the latest answer.
    """

    def __init__(self, session_id: str, agent_id: str | None, parent: str | None, *, named: bool) -> None:
        self.session_id, self.agent_id, self.parent = session_id, agent_id, parent
        self.named = named
        self.items: list[bytes] = []
        self.chain = b""
        self.setup = b""
        self.opening = 0
        self.text: str | None = None
        self.said: Said | None = None
        self.response_ids: list[str] = []


class Place(NamedTuple):
    """Where a request belongs. shared: how many of its items the agent's previous prompt had too.

    follows: how many items after those are the answer to it; 0 if they are not, or none are there.
    """

    context: Context
    how: How
    shared: int
    follows: int


class _Named(NamedTuple):
    session_id: str
    agent_id: str | None
    parent: str | None


class SessionFinder:
    """Places requests, in the order in which their answers ended; forgets the least recently used agents.

    session_field: a header, in lower case, that names the session before all others.
    """

    def __init__(self, session_field: str | None = None) -> None:
        self._session_fields = (*((session_field,) if session_field else ()), *SESSION_FIELDS)
        self._contexts: OrderedDict[tuple[str, str | None], Context] = OrderedDict()
        self._of_session: dict[str, list[Context]] = {}
        self._by_chain: dict[bytes, list[Context]] = {}
        self._by_opening: dict[bytes, list[Context]] = {}
        self._by_response: dict[str, Context] = {}
        self._roots: dict[str, str] = {}
        self._found = 0
        self.named_sessions: set[str] = set()

    def fields(self) -> frozenset[str]:
        """The headers that it looks at."""
        return frozenset((*self._session_fields, *AGENT_FIELDS, *PARENT_AGENT_FIELDS, *PARENT_SESSION_FIELDS))

    def place(self, api: Api, prompt: Prompt, fields: Mapping[str, str]) -> Place:
        """Say where a request belongs; `update` must follow."""
        named = self._named(prompt, fields)
        before = self._by_response.get(prompt.previous or "")
        if named is None and before is not None:
            place = Place(before, "continued", 0, 0)
        elif named is not None:
            place = self._in_session(named, prompt, before)
        else:
            place = self._by_messages(api, prompt)
        key = (place.context.session_id, place.context.agent_id)
        self._contexts.move_to_end(key)
        return place

    def update(self, place: Place, prompt: Prompt, said: Said | None, response_id: str | None) -> None:
        """Note prompt and answer of a placed request."""
        context = place.context
        items = [item.digest for item in prompt.items]
        if prompt.previous is not None and place.shared == 0 and place.how == "continued":
            items = context.items + items
        if not context.named:
            self._unfile(context)
        context.items, context.setup, context.said, context.text = items, prompt.setup, said, prompt.text
        context.opening = context.opening or len(items)
        if not context.named and items:
            context.chain = _chain(items)
            self._by_chain.setdefault(context.chain, []).append(context)
            self._by_opening.setdefault(_opening(items), []).append(context)
        if response_id is not None:
            self._by_response[response_id] = context
            context.response_ids.append(response_id)
        while len(self._contexts) > _MOST_CONTEXTS:
            self._forget(self._contexts.popitem(last=False)[1])

    # By header

    def _named(self, prompt: Prompt, fields: Mapping[str, str]) -> _Named | None:
        session_id = _first(fields, self._session_fields) or prompt.conversation
        if not session_id:
            return None
        agent_id = _first(fields, AGENT_FIELDS)
        parent = _first(fields, PARENT_AGENT_FIELDS)
        parent_session = _first(fields, PARENT_SESSION_FIELDS)
        if parent_session and parent_session != session_id:
            # A session of its own for each sub-agent: it is one of the first session's agents.
            root = self._roots.get(parent_session, parent_session)
            self._roots[session_id] = root
            return _Named(root, agent_id or session_id, parent_session if root != parent_session else None)
        return _Named(session_id, agent_id, parent)

    def _in_session(self, named: _Named, prompt: Prompt, before: Context | None) -> Place:
        self.named_sessions.add(named.session_id)
        known = self._of_session.get(named.session_id, [])
        if before is not None and before in known:
            return Place(before, "continued", 0, 0)
        if named.agent_id is not None:
            context = self._contexts.get((named.session_id, named.agent_id))
            if context is None:
                return Place(self._open(named.session_id, named.agent_id, named.parent), "opened", 0, 0)
            return _continue(context, prompt)
        if not known:
            return Place(self._open(named.session_id, None, None), "opened", 0, 0)
        places = [_continue(context, prompt) for context in known]
        for how in ("continued", "edited"):
            fitting = [place for place in places if place.how == how]
            if how == "edited":
                fitting = [place for place in fitting if _is_more(place) or _same_setup(place, prompt)]
            if fitting:
                return max(fitting, key=lambda place: (place.shared, _same_setup(place, prompt)))
        main = self._contexts.get((named.session_id, None))
        same_setup = [place for place in places if _same_setup(place, prompt)]
        if same_setup:
            return max(same_setup, key=lambda place: place.context is main)
        if main is None:
            return Place(self._open(named.session_id, None, None), "opened", 0, 0)
        # Another system prompt or other tools, and nothing said before: another agent of the session.
        agent_id = f"agent-{len(known)}"
        return Place(self._open(named.session_id, agent_id, None), "opened", 0, 0)

    # By what it says

    def _by_messages(self, api: Api, prompt: Prompt) -> Place:
        if api == "completions":
            context = self._by_text(prompt.text or "")
            return self._new() if context is None else Place(context, "continued", 0, 0)
        chains = list(_chains(prompt.items))
        for length in range(len(chains) - 1, 0, -1):
            if waiting := self._by_chain.get(chains[length - 1]):
                places = [
                    Place(each, "continued", length, _follows(each, prompt, length)) for each in waiting
                ]
                # The answer tells; without one that is known, the one that has waited longest.
                return max(places, key=lambda place: (place.follows > 0, _same_setup(place, prompt)))
        edited = [_continue(each, prompt) for each in self._candidates(prompt)]
        edited = [place for place in edited if place.how == "edited" and _is_more(place)]
        return max(edited, key=lambda place: place.shared) if edited else self._new()

    def _candidates(self, prompt: Prompt) -> list[Context]:
        opening = _opening([item.digest for item in prompt.items])
        return self._by_opening.get(opening, [])[-_MOST_CANDIDATES:]

    def _by_text(self, text: str) -> Context | None:
        """Of the latest ones, that of the completions API whose prompt `text` begins with, the longest."""
        best: Context | None = None
        for _, context in zip(range(_MOST_CANDIDATES), reversed(self._contexts.values()), strict=False):
            known = context.text
            fits = known and len(text) > len(known) and text.startswith(known)
            if fits and known and len(known) > len((best and best.text) or ""):
                best = context
        return best

    def _new(self) -> Place:
        while True:
            self._found += 1
            session_id = f"session-{self._found}"
            if session_id not in self._of_session:
                return Place(self._open(session_id, None, None, named=False), "opened", 0, 0)

    # Keeping

    def _open(
        self, session_id: str, agent_id: str | None, parent: str | None, *, named: bool = True
    ) -> Context:
        context = Context(session_id, agent_id, parent, named=named)
        self._contexts[session_id, agent_id] = context
        self._of_session.setdefault(session_id, []).append(context)
        return context

    def _unfile(self, context: Context) -> None:
        if context.items:
            for filed, key in ((self._by_chain, context.chain), (self._by_opening, _opening(context.items))):
                filed[key].remove(context)
                if not filed[key]:
                    del filed[key]

    def _forget(self, context: Context) -> None:
        if not context.named:
            self._unfile(context)
        for response_id in context.response_ids:
            self._by_response.pop(response_id, None)
        # The name stays taken: the turns of a session stand together.
        self._of_session[context.session_id].remove(context)


def _continue(context: Context, prompt: Prompt) -> Place:
    """What a request of an agent is to what it sent before."""
    if not context.items:
        return Place(context, "opened", 0, 0)
    shared = _common(context.items, prompt.items)
    if context.text is not None and prompt.text is not None and prompt.text.startswith(context.text):
        return Place(context, "continued", 0, 0)
    if shared == len(context.items) and shared < len(prompt.items):
        return Place(context, "continued", shared, _follows(context, prompt, shared))
    if shared == len(prompt.items) or shared > context.opening:
        return Place(context, "edited", shared, 0)
    return Place(context, "compacted", shared, 0)


def _is_more(place: Place) -> bool:
    """Whether more is shared than how the conversation began, which another may begin with too."""
    return place.shared > place.context.opening


def _same_setup(place: Place, prompt: Prompt) -> bool:
    return place.context.setup == prompt.setup


def _common(known: list[bytes], items: list[Item]) -> int:
    shared = 0
    for one, other in zip(known, items, strict=False):
        if one != other.digest:
            break
        shared += 1
    return shared


def _follows(context: Context, prompt: Prompt, start: int) -> int:
    """How many items after `start` are the answer to the context's latest prompt."""
    end = start
    while end < len(prompt.items) and prompt.items[end].kind == "assistant":
        end += 1
    said = context.said
    if said is None or end == start:
        return 0
    answer = prompt.items[start:end]
    calls = tuple(call for item in answer for call in item.calls)
    if said.calls:
        return end - start if calls == said.calls else 0
    return end - start if not calls and said.text in [item.text for item in answer] else 0


def _chains(items: list[Item]) -> Iterator[bytes]:
    state = b""
    for item in items:
        state = blake2b(state + item.digest, digest_size=16).digest()
        yield state


def _chain(items: list[bytes]) -> bytes:
    state = b""
    for digest in items:
        state = blake2b(state + digest, digest_size=16).digest()
    return state


def _opening(items: list[bytes]) -> bytes:
    return items[0] if items else b""


def _first(fields: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The first of some headers that is there, decoded where agentload's own clients encode it."""
    value = next((fields[name] for name in names if fields.get(name)), None)
    return None if value is None else unquote(value)
