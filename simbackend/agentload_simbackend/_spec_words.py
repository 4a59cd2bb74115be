"""What msgspec says of a file of the wrong shape, said to its author: the field, then what would be right."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from agentload_simbackend._quantity import Quantity, Unit, hints_of, unit_of

_AT = re.compile(
    r"(?P<text>.*?)(?: - at `(?P<key>key` in `)?\$(?P<steps>(?:\.\w+|\[\d+\]|\[\.\.\.\])*)`)?", re.DOTALL
)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"Object missing required field `(\w+)`")
_TYPES = re.compile(r"Expected `[^`]*`, got `[^`]*`|Expected `array` of length \d+, got \d+")

_NAMED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}

_LONGEST = 40
"""Characters of a wrong value that are shown."""


class _Place(NamedTuple):
    """Where in a file: the path of a field, what it must be, and what it is."""

    path: tuple[str, ...]
    hint: Any
    value: Any

    def said(self, words: str, *more: str) -> str:
        field = ".".join((*self.path, *more))
        return f"{field}: {words}" if field else words


def words_of(error: msgspec.ValidationError, content: Any, shape: Any) -> str:
    """`field: what is wrong, what would be right`; without the field where all of `content` is wrong.

    content, shape: what `msgspec.convert` was given, with string keys. Lists count from 1. What is said of
    the file's text must be made printable.
    """
    found = _AT.fullmatch(str(error))
    assert found is not None
    text = found["text"]
    try:
        place = _place(found["steps"] or "", content, shape)
        if found["key"]:
            return _wrong_key(place)
        return _words(text, place)
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError):
        return str(error)  # A shape beyond the ones known here, or a key that looks like a place.


def struct_of(hint: Any, value: Any) -> type[msgspec.Struct] | None:
    """The struct that a field's annotation gives a table, by its tag if there are several."""
    structs = _structs(hint)
    if len(structs) < 2:
        return structs[0] if structs else None
    tag = value.get(structs[0].__struct_config__.tag_field) if isinstance(value, dict) else None
    return next((struct for struct in structs if struct.__struct_config__.tag == tag), None)


def _words(text: str, place: _Place) -> str:
    if missing := _FIELD.fullmatch(text):
        name = missing[1]
        return place.said(f"missing, {_expected(_field_hint(place.hint, place.value, name))}", name)
    if text.startswith("Object contains unknown field"):
        return _unknown(place)
    if text.startswith(("Invalid enum value", "Invalid value")) or _TYPES.fullmatch(text):
        return place.said(f"is {_shown(place.value)}, {_expected(place.hint)}")
    return place.said(text)


def _unknown(place: _Place) -> str:
    struct = _struct(place.hint, place.value)
    config = struct.__struct_config__
    known = [*([config.tag_field] if config.tag_field else []), *struct.__struct_encode_fields__]
    name = next(key for key in place.value if key not in known)
    near = difflib.get_close_matches(name, known, 2)
    right = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return place.said(f"unknown; {right}", name)


def _wrong_key(place: _Place) -> str:
    key_hint = get_args(_bare(place.hint))[0]
    name = _first_wrong(place.value, types.GenericAlias(dict, (key_hint, Any)))
    return place.said(f"as a key it {_expected(key_hint)}", name)


def _place(steps: str, content: Any, shape: Any) -> _Place:
    path: list[str] = []
    hint, value = shape, content
    for name, index in _STEP.findall(steps):
        if name:
            hint, value = _field_hint(hint, value, name), value[name]
        elif index == "...":
            element = _bare(hint)
            name = _first_wrong(value, element)
            hint, value = get_args(element)[1], value[name]
        else:
            items, at = get_args(_bare(hint)), int(index)
            hint, value = items[0 if items[-1] is Ellipsis else at], value[at]
            name = str(at + 1)
        path.append(name)
    return _Place(tuple(path), hint, value)


def _first_wrong(table: dict[str, Any], hint: Any) -> str:
    """The key of the first entry with which alone the table is wrong too: msgspec does not name it."""
    for key, item in table.items():
        try:
            msgspec.convert({key: item}, hint, str_keys=True)
        except msgspec.ValidationError:
            return key
    raise KeyError(hint)


def _field_hint(hint: Any, value: Any, name: str) -> Any:
    """What a field of a table must be; its tag, and the unit of a number, are one of a few texts."""
    structs = _structs(hint)
    if structs and name == structs[0].__struct_config__.tag_field:
        return _one_of(str(struct.__struct_config__.tag) for struct in structs)
    struct = _struct(hint, value)
    if struct is Quantity and name == "unit" and (unit := unit_of(hint)) is not None:
        return _one_of([unit.name])
    return hints_of(struct)[name]


def _struct(hint: Any, value: Any) -> type[msgspec.Struct]:
    struct = struct_of(hint, value)
    if struct is None:
        raise TypeError(f"{hint} is no table")
    return struct


def _one_of(texts: Iterable[str]) -> Any:
    return Literal[tuple(texts)]


def _expected(hint: Any) -> str:
    """What would be right, from `must be` on."""
    bare = _bare(hint)
    structs = _structs(hint)
    if Quantity in structs:
        unit = unit_of(hint) or Unit("...")
        return f'must be {{ value = ..., unit = "{unit.name}", kind = "...", source = "..." }}'
    if get_origin(bare) is Literal:
        choices = [f'"{each}"' if isinstance(each, str) else str(each) for each in get_args(bare)]
        return f"must be {choices[0]}" if len(choices) == 1 else f"must be one of {', '.join(choices)}"
    if structs or (get_origin(bare) or bare) is dict:
        return "must be a table"
    if (get_origin(bare) or bare) in (tuple, list):
        items = get_args(bare)
        return (
            f"must be a list of {len(items)}"
            if len(items) > 1 and Ellipsis not in items
            else "must be a list"
        )
    choices = [_NAMED[choice] for choice in _choices(bare) if choice in _NAMED]
    return f"must be {' or '.join(choices) or 'something else'}"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else f"a list of {len(value)}"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _bare(hint: Any) -> Any:
    """An annotation without what is added to it, and without `None`, if one choice is left."""
    choices = _choices(hint)
    return choices[0] if len(choices) == 1 else hint


def _choices(hint: Any) -> list[Any]:
    if get_origin(hint) is Annotated:
        return _choices(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for each in get_args(hint) if each is not type(None) for choice in _choices(each)]
    return [hint]


def _structs(hint: Any) -> list[type[msgspec.Struct]]:
    return [each for each in _choices(hint) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
