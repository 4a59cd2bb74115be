"""Whatever stands in a spec file, it loads or gives one clear line."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_driving import SPECS, spec_content, spec_text
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_simbackend import MODES, derived_figures, load_deployment
from agentload_traces import SpecError, printable

DEPLOYMENTS = ("pd", "rubin", "lpx", "afd", "drafter", "pd-spill", "rubin-aggregated")
MODELS = ("gpt-oss-120b", "deepseek-r1", "nemotron-3-super-120b-a12b", "gemma-4-31b")
OTHERS = ("racks/lpx", "racks/vera-rubin-nvl72", "chips/lp30", "chips/rubin", "links/rubin-lpx")

Path_ = tuple[str | int, ...]


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Paths of all tables, lists and values."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))


VALUES = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 7, 0.5, 1e-9, 1e300, -0.0, float("nan"), float("inf"), 10**30]),
    st.sampled_from(
        ["", "B", "count", "fact", "pd", "lpx", "x.toml", "../x", "a\nb", "\0", "\u202e", True, False]
    ),
    st.sampled_from([[], {}, [1], [[]], {"value": 1}, {"a\nb": {}}]),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(max_size=8),
)


def toml(value: Any) -> str:
    """A value as TOML; tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def written(content: dict[str, Any]) -> str:
    """A file of it; what JSON escapes otherwise than TOML is left for the parser to refuse."""
    return "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in content.items())


@st.composite
def mutated(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[str, str]:
    """The name of a built-in file, and its text with some values changed, taken away, or added."""
    name = draw(st.sampled_from(names))
    content = spec_content(name)
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(["scale", "scale", "scale", "change", "remove", "add"]))
        paths = [path for path in leaves(content) if what != "scale" or path[-1] == "value"]
        if not paths:
            break
        path = draw(st.sampled_from(paths))
        table: Any = content
        for part in path[:-1]:
            table = table[part]
        if what == "scale":
            if isinstance(table[path[-1]], (int, float)):
                table[path[-1]] *= draw(st.sampled_from([1e-9, 1e-3, 0.1, 0.5, 2, 10, 1_000, 10**9]))
            continue
        if what == "change":
            table[path[-1]] = copy.deepcopy(draw(VALUES))
        elif what == "remove":
            del table[path[-1]]
        elif isinstance(table, dict):
            table[draw(st.text(max_size=6))] = copy.deepcopy(draw(VALUES))
    return name, written(content)


def loads_or_says_why(name: str | Path) -> None:
    """Load, and say everything of it that is shown."""
    try:
        deployment = load_deployment(name)
        deployment.conditions()
        derived_figures(deployment)
    except SpecError as error:
        said = str(error)
        assert said
        assert said == printable(said)


@settings(max_examples=200, deadline=None)
@given(mutated(tuple(f"deployments/gemma4-31b/{name}" for name in DEPLOYMENTS)))
def test_mutated_deployments(file: tuple[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.toml"
        path.write_text(file[1])
        loads_or_says_why(path)


@settings(max_examples=200, deadline=None)
@given(mutated(tuple(f"models/{name}" for name in MODELS)), st.sampled_from(MODES))
def test_mutated_models(file: tuple[str, str], mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.toml"
        path.write_text(file[1])
        loads_or_says_why(f"{path}/{mode}")


@settings(max_examples=200, deadline=None)
@given(mutated(OTHERS), st.sampled_from(DEPLOYMENTS))
def test_mutated_racks_chips_and_links(file: tuple[str, str], deployment: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name = file[0].partition("/")[2]
        (Path(folder) / "own.toml").write_text(file[1])
        for rack, chip in (("lpx", "lp30"), ("vera-rubin-nvl72", "rubin")):
            text = (SPECS / f"racks/{rack}.toml").read_text()
            (Path(folder) / f"{rack}.toml").write_text(
                text.replace(f'chip = "{chip}"', 'chip = "own.toml"') if name == chip else text
            )
        text = spec_text(spec_content(f"deployments/gemma4-31b/{deployment}"))
        for rack in ("lpx", "vera-rubin-nvl72"):
            text = text.replace(f'rack = "{rack}"', f'rack = "{"own" if name == rack else rack}.toml"')
        (Path(folder) / "deployment.toml").write_text(text.replace(f'"{name}"', '"own.toml"'))
        loads_or_says_why(Path(folder) / "deployment.toml")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutated_text(data: st.DataObject) -> None:
    """Bytes cut out or put in, wherever."""
    raw = (SPECS / f"deployments/gemma4-31b/{data.draw(st.sampled_from(['afd', 'pd']))}.toml").read_bytes()
    at = data.draw(st.integers(0, len(raw)))
    cut = data.draw(st.integers(0, 40))
    put = data.draw(st.binary(max_size=8) | st.sampled_from([b"[", b"]", b'"', b"\n", b"=", b"9" * 5_000]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.toml"
        path.write_bytes(raw[:at] + put + raw[at + cut :])
        loads_or_says_why(path)


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=12)
    | st.sampled_from([f"x/{mode}" for mode in MODES])
    | st.text("./pdrubin", max_size=12)
)
def test_any_name(name: str) -> None:
    loads_or_says_why(name)
