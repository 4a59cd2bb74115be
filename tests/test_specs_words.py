"""What is said of a spec file of the wrong shape: the field, then what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from engine_driving import SPECS

from agentload_simbackend import load_deployment
from agentload_simbackend._spec_words import words_of
from agentload_traces import SpecError


class Part(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="part"):
    size: int
    shares: tuple[float, float] | None = None


class Other(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="other"):
    kind: Literal["a", "b"]


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    """Without any number that has a unit, as files of faults are."""

    at_s: float
    parts: list[Part | Other] = []
    table: dict[int, Part] = {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "at_s: missing, must be a number"),
        ({"at_s": "x"}, 'at_s: is "x", must be a number'),
        ({"at_s": True}, "at_s: is true, must be a number"),
        ({"at_s": "x" * 100}, f'at_s: is "{"x" * 39}..., must be a number'),
        ({"at": 1}, "at: unknown; did you mean at_s?"),
        ({"zzz": 1}, "zzz: unknown; there are at_s, parts, table"),
        (3, "is 3, must be a table"),
        ({"at_s": 1, "parts": 3}, "parts: is 3, must be a list"),
        ({"at_s": 1, "parts": [{}]}, 'parts.1.type: missing, must be one of "part", "other"'),
        ({"at_s": 1, "parts": [{"type": "p"}]}, 'parts.1.type: is "p", must be one of "part", "other"'),
        (
            {"at_s": 1, "parts": [{"type": "other", "kind": "c"}]},
            'parts.1.kind: is "c", must be one of "a", "b"',
        ),
        ({"at_s": 1, "parts": [{"type": "part", "sise": 1}]}, "parts.1.sise: unknown; did you mean size?"),
        (
            {"at_s": 1, "parts": [{"type": "part", "q": 1}]},
            "parts.1.q: unknown; there are type, size, shares",
        ),
        (
            {"at_s": 1, "parts": [{"type": "part", "size": 1, "shares": [1]}]},
            "parts.1.shares: is a list of 1, must be a list of 2",
        ),
        (
            {"at_s": 1, "table": {"1": {"size": 2}, "2": {"size": []}}},
            "table.2.size: is a list of 0, must be a whole number",
        ),
        ({"at_s": 1, "table": {"x": {"size": 2}}}, "table.x: as a key it must be a whole number"),
    ],
)
def test_the_field_and_what_would_be_right(content: Any, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(content, Whole, str_keys=True)
    assert words_of(refused.value, content, Whole) == said


def test_words_for_a_shape_unknown_here_are_msgspecs() -> None:
    content, shape = {"a": [1, "x"]}, dict[str, frozenset[int]]
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(content, shape)
    assert words_of(refused.value, content, shape)


@pytest.mark.parametrize(
    "key", ["a` - at `$.b", "a` - at `$.at_s", "a` - at `$.parts[0]", "a` - at `$[...]", "`"]
)
def test_a_key_that_looks_like_a_place_is_still_named(key: str) -> None:
    content = {"at_s": 1, key: 1}
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(content, Whole)
    assert key in words_of(refused.value, content, Whole)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'type = "full"',
            'type = "ful"',
            'layers.1.mixer.type: is "ful", must be one of "full", "sliding", ',
        ),
        ('type = "decoder"', 'type = "decodr"', 'type: is "decodr", must be "decoder"'),
        ("hidden =", "hiden =", "hiden: unknown; did you mean hidden?"),
        ("tied_embeddings = false", "tied_embeddings = 3", "tied_embeddings: is 3, must be true or false"),
        ('name = "Llama 3.1 8B"', 'name = " "', "name: is empty, must say something"),
        ('name = "Llama 3.1 8B"', 'name = "a\\nb"', 'name: is "a\\nb", must be one line without control'),
        ('name = "Llama 3.1 8B"', 'name = "\\u202e"', 'name: is "\\u202e", must be one line without control'),
    ],
)
def test_of_models(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (SPECS / "models/llama-3.1-8b.toml").read_text()
    assert old in text
    path = tmp_path / "my.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError) as refused:
        load_deployment(f"{path}/pd")
    assert str(refused.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize("summary", ["", " ", "a\\nb", "\\u001b[2J"])
def test_a_summary_is_one_line_that_says_something(tmp_path: Path, summary: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'base = "gemma4-31b/pd"\nname = "mine"\nsummary = "{summary}"\n')
    with pytest.raises(SpecError, match=r"own\.toml: summary: is "):
        load_deployment(path)


@pytest.mark.parametrize("deep", [2, 100, 450, 900, 3_000])
def test_deep_nesting_is_one_line(tmp_path: Path, deep: int) -> None:
    path = tmp_path / "own.toml"
    for key in ("router", "sources.a"):
        path.write_text(f"base = 'gemma4-31b/pd'\nname = 'x'\n{'.'.join([key, *['router'] * deep])} = 1\n")
        with pytest.raises(
            SpecError, match=r"own\.toml: (router|sources|tables or lists are nested)"
        ) as refused:
            load_deployment(path)
        assert "\n" not in str(refused.value)
