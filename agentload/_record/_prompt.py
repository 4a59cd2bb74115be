"""What a recorded request asks: its messages, each known by a digest, of any of the four APIs.

Messages of earlier requests come again in each later one, byte for byte. They are known by the digest of
their bytes, and neither decoded nor counted again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from agentload._answers_gathered import clean, text_tokens
from agentload._answers_json import NOT_JSON
from agentload._options import Api
from agentload._record._content import UnreadableError
from agentload._record._messages import Kind, Said, said_of
from agentload_traces import Message

_MOST_KNOWN = 100_000


class Item(NamedTuple):
    """A message. digest: of what it says, however it is spelled. tokens: its texts in o200k_base.

    text: digest of its text alone, `b""` without any. calls: ids of the tool calls it makes; results: ids of
    those it answers, and the tokens of each answer. reasons: it holds reasoning.
    """

    digest: bytes
    kind: Kind
    tokens: int
    text: bytes
    calls: tuple[str, ...]
    results: tuple[tuple[str, int], ...]
    reasons: bool


class Prompt(NamedTuple):
    """A request. items: the conversation, without what stands before it (system prompt, tools): setup.

    raw: the items as they came, for `message`. previous: of the responses API, the response it continues;
    conversation: whose it is, as the API names it. text: of the completions API, all of it.
    """

    model: str | None
    setup: bytes
    setup_tokens: int
    items: list[Item]
    raw: list[bytes]
    system: list[bytes]
    previous: str | None
    conversation: str | None
    text: str | None

    @property
    def tokens(self) -> int:
        """All texts, in o200k_base; what a chat template adds is not known."""
        return self.setup_tokens + sum(item.tokens for item in self.items)


class _Body(msgspec.Struct):
    model: Any = None
    messages: list[msgspec.Raw] | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")
    prompt: Any = None
    system: msgspec.Raw = msgspec.Raw(b"null")
    instructions: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"null")
    functions: msgspec.Raw = msgspec.Raw(b"null")
    previous_response_id: Any = None
    conversation: Any = None


_decode = msgspec.json.Decoder(_Body).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def digest_of(*parts: bytes) -> bytes:
    """A digest of several byte strings."""
    whole = blake2b(digest_size=16)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def text_digest(text: str) -> bytes:
    """A digest of a text, without the white space around it, by which an answer is found again."""
    return digest_of(text.strip().encode("utf-8", "replace")) if text.strip() else b""


def message(raw: bytes) -> Message:
    """A message with its prose: plain text as it is, anything else as the JSON it came as."""
    value = loads(raw)
    if isinstance(value, str):
        return Message(role="user", content=clean(value))
    role = value.get("role") or value.get("type") or "user"
    text = value.get("content")
    if not isinstance(text, str) or len(value.keys() - {"role", "content", "type", "id", "status"}):
        text = raw.decode("utf-8", "replace")
    return Message(role=str(role), content=clean(text))


def loads(raw: bytes) -> Any:
    """Decode JSON, with lone surrogates too."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return json.loads(raw)


class PromptReader:
    """Reads requests, and knows the messages of earlier ones."""

    def __init__(self) -> None:
        self._known: dict[bytes, Item] = {}

    def read(self, api: Api, body: bytes) -> Prompt:
        """Raises `UnreadableError` for what is no request of `api`."""
        try:
            fields = _decode(body)
            return self._prompt(api, fields)
        except NOT_JSON:
            raise UnreadableError("not a JSON request") from None

    def _prompt(self, api: Api, fields: _Body) -> Prompt:
        raw: list[bytes] = []
        before = [bytes(part) for part in (fields.system, fields.instructions) if bytes(part) != b"null"]
        text = None
        if api == "completions":
            text, items = _completion(fields.prompt)
        else:
            raw = _messages(api, fields)
            raw, items = _without_reasoning(raw, [self._item(part) for part in raw])
            while items and items[0].kind == "system":
                before.append(raw.pop(0))
                items.pop(0)
        tools = [bytes(part) for part in (fields.tools, fields.functions) if bytes(part) != b"null"]
        before_items = [self._item(part) for part in before]
        tool_items = [self._known_as(part, _tools_item) for part in tools]
        setup = [*before_items, *tool_items]
        conversation = fields.conversation
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        return Prompt(
            model=clean(fields.model) if isinstance(fields.model, str) and fields.model else None,
            setup=digest_of(*(item.digest for item in setup)),
            setup_tokens=sum(item.tokens for item in setup),
            items=items,
            raw=raw,
            system=before,
            previous=fields.previous_response_id if isinstance(fields.previous_response_id, str) else None,
            conversation=conversation if isinstance(conversation, str) else None,
            text=text,
        )

    def _item(self, raw: bytes) -> Item:
        return self._known_as(raw, lambda part: _item_of(said_of(loads(part))))

    def _known_as(self, raw: bytes, make: Callable[[bytes], Item]) -> Item:
        key = digest_of(raw)
        item = self._known.get(key)
        if item is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            item = self._known[key] = make(raw)
        return item


def _messages(api: Api, fields: _Body) -> list[bytes]:
    """The messages as they came; the reasoning of the responses API among them."""
    if api != "responses":
        return [bytes(part) for part in fields.messages or ()]
    given = bytes(fields.input)
    if given == b"null":
        return []
    return [given] if given.startswith(b'"') else [bytes(part) for part in _decode_list(given)]


def _without_reasoning(raw: list[bytes], items: list[Item]) -> tuple[list[bytes], list[Item]]:
    """Reasoning of the responses API as a part of the item after it: clients send it again, or do not."""
    if all(item.kind != "reasoning" for item in items):
        return raw, items
    kept_raw, kept = [], []
    tokens = 0
    for part, item in zip(raw, items, strict=True):
        if item.kind == "reasoning":
            tokens += item.tokens
            continue
        kept_raw.append(part)
        reasons = bool(tokens) or item.reasons
        kept.append(item._replace(tokens=item.tokens + tokens, reasons=reasons))
        tokens = 0
    return kept_raw, kept


def _item_of(said: Said) -> Item:
    results = tuple((call_id, text_tokens(text)) for call_id, text in said.results)
    texts = [said.text, said.reasoning, *(name + arguments for _, name, arguments in said.calls)]
    return Item(
        digest=digest_of(
            said.kind.encode(),
            said.text.strip().encode("utf-8", "replace"),
            msgspec.msgpack.encode([[clean(part) for part in call] for call in said.calls]),
            msgspec.msgpack.encode([[clean(part) for part in result] for result in said.results]),
            clean(said.other).encode(),
        ),
        kind=said.kind,
        tokens=sum(text_tokens(text) for text in texts if text) + sum(tokens for _, tokens in results),
        text=text_digest(said.text),
        calls=tuple(call_id for call_id, _, _ in said.calls),
        results=results,
        reasons=bool(said.reasoning) or said.kind == "reasoning",
    )


def _tools_item(raw: bytes) -> Item:
    tokens = text_tokens(raw.decode("utf-8", "replace"))
    return Item(digest_of(raw), "system", tokens, b"", (), (), False)


def _completion(prompt: Any) -> tuple[str, list[Item]]:
    """The text of a prompt, and one item for it; of a list of token ids, only how many there are."""
    parts = prompt if isinstance(prompt, list) else [prompt]
    text = "\n".join(clean(part) for part in parts if isinstance(part, str))
    ids = sum(isinstance(part, int) for part in parts)
    ids += sum(len(part) for part in parts if isinstance(part, list))
    spelled = text or json.dumps(prompt)
    tokens = (text_tokens(text) if text else 0) + ids
    return spelled, [Item(digest_of(spelled.encode()), "user", tokens, text_digest(text), (), (), False)]
