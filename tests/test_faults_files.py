"""Files of faults: what is read, and the one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload_simbackend import (
    ChipsDown,
    Drain,
    Fault,
    KvLoss,
    LinkDown,
    PowerCap,
    Refuse,
    Reset,
    Stall,
)
from agentload_simbackend._fault_files import LEAST_CLOCK, MOST_S, fault_problem, faults_sentence, load_faults
from agentload_traces import SpecError

EVERY_FAULT = """
[[faults]]
type = "stall"
at_s = 60
for_s = 2.5
replica = 1

[[faults]]
type = "chips_down"
at_s = 30
chips = 2
replan_s = 4

[[faults]]
type = "link_down"
for_s = 1

[[faults]]
type = "drain"
at_s = 1
[[faults]]
type = "power_cap"
at_s = 2
clock_fraction = 0.8
[[faults]]
type = "kv_loss"
at_s = 3
store = "prefix_cache"
[[faults]]
type = "refuse"
at_s = 4
for_s = 10
status = 429
share = 0.5
retry_after_s = 1.5
[[faults]]
type = "reset"
at_s = 5
"""

READ: tuple[Fault, ...] = (
    LinkDown(for_s=1.0),
    Drain(at_s=1.0),
    PowerCap(at_s=2.0, clock_fraction=0.8),
    KvLoss(at_s=3.0, store="prefix_cache"),
    Refuse(at_s=4.0, for_s=10.0, status=429, share=0.5, retry_after_s=1.5),
    Reset(at_s=5.0),
    ChipsDown(at_s=30.0, chips=2, replan_s=4.0),
    Stall(at_s=60.0, for_s=2.5, replica=1),
)


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(EVERY_FAULT)
    (tmp_path / "object.json").write_bytes(msgspec.json.encode({"faults": READ}))
    (tmp_path / "list.json").write_bytes(msgspec.json.encode(READ))
    for name in ("f.toml", "object.json", "list.json"):
        assert load_faults(tmp_path / name) == READ


def test_faults_of_one_time_keep_their_order(tmp_path: Path) -> None:
    made = [Drain(replica=3), Reset(), Drain(replica=1)]
    (tmp_path / "f.json").write_bytes(msgspec.json.encode(made))
    assert load_faults(tmp_path / "f.json") == tuple(made)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (
            {"type": "chip_down"},
            "faults[1].type: no fault is named 'chip_down'; there are chips_down, drain,",
        ),
        ({"at_s": 3}, "faults[1].type: missing; there are chips_down"),
        ({"type": 7}, "faults[1].type: no fault is named 7"),
        (3, "faults[1]: must be a table"),
        ({"type": "drain", "at_s": -1}, "faults[1].at_s: is -1, must be 0 to 1e+09 s"),
        ({"type": "drain", "at_s": 1e10}, "faults[1].at_s: is 1e+10, must be 0 to"),
        ({"type": "drain", "at_s": "3 s"}, 'faults[1].at_s: is "3 s", must be a number'),
        ({"type": "drain", "at_s": True}, "faults[1].at_s: is true, must be a number"),
        ({"type": "drain", "for_s": -0.5}, "faults[1].for_s: is -0.5, must be 0 to"),
        ({"type": "drain", "for_s": 0}, "faults[1].for_s: is 0, must be more than 0 s"),
        ({"type": "drain", "replica": -1}, "faults[1].replica: is -1, must be 0 or more"),
        ({"type": "drain", "replica": 1.5}, "faults[1].replica: is 1.5, must be"),
        ({"type": "drain", "replicas": 1}, "faults[1].replicas: unknown; did you mean replica?"),
        ({"type": "chips_down"}, "faults[1].chips: missing"),
        ({"type": "chips_down", "chips": 0}, "faults[1].chips: is 0, must be 1 or more"),
        ({"type": "chips_down", "chips": 1, "replan_s": -2}, "faults[1].replan_s: is -2, must be 0 to"),
        ({"type": "power_cap"}, "faults[1].clock_fraction: missing"),
        ({"type": "power_cap", "clock_fraction": 0}, "faults[1].clock_fraction: is 0, must be 0.001 to 1"),
        ({"type": "power_cap", "clock_fraction": 1e-305}, "faults[1].clock_fraction: is 1e-305, must be"),
        ({"type": "power_cap", "clock_fraction": 9e-4}, "faults[1].clock_fraction: is 0.0009, must be 0.001"),
        (
            {"type": "power_cap", "clock_fraction": 1.1},
            "faults[1].clock_fraction: is 1.1, must be 0.001 to 1",
        ),
        ({"type": "kv_loss", "store": "hbm"}, 'faults[1].store: is "hbm", must be one of "decode"'),
        ({"type": "kv_loss", "store": "decode", "for_s": 3}, "faults[1].for_s: kv_loss happens at once"),
        ({"type": "kv_loss", "store": "prefix_cache", "replica": 0}, "faults[1].replica: kv_loss is of the"),
        ({"type": "refuse", "status": 500}, "faults[1].status: is 500, must be one of 429, 503"),
        ({"type": "refuse", "status": 429, "share": 1.01}, "faults[1].share: is 1.01, must be 0 to 1"),
        ({"type": "refuse", "status": 429, "retry_after_s": -1}, "faults[1].retry_after_s: is -1, must be"),
        ({"type": "refuse", "status": 503, "replica": 0}, "faults[1].replica: refuse is of the whole"),
        ({"type": "stall"}, "faults[1].for_s: missing; a stall must end"),
        ({"type": "reset", "share": -0.1}, "faults[1].share: is -0.1, must be 0 to 1"),
        ({"type": "reset", "for_s": 1}, "faults[1].for_s: reset happens at once: leave out for_s"),
    ],
)
def test_a_wrong_fault_is_one_line(tmp_path: Path, fault: object, wrong: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps([{"type": "drain"}, fault]))
    with pytest.raises(SpecError) as raised:
        load_faults(path)
    assert str(raised.value).startswith(f"{path}: {wrong}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("f.toml", "[[faults]]\ntype = 'drain'\nat_s = nan\n", "faults[0].at_s: is nan, must be 0 to"),
        ("f.toml", "[[faults]]\ntype = 'drain'\nfor_s = inf\n", "faults[0].for_s: is inf, must be 0 to"),
        ("f.json", '[{"type": "reset", "share": NaN}]', "faults[0].share: is nan, must be 0 to 1"),
        ("f.json", '[{"type": "drain", "at_s": 1e999}]', "faults[0].at_s: is inf, must be 0 to"),
        ("f.json", '{"faults": [], "faults": []}', "not JSON: the key 'faults' stands twice"),
        ("f.toml", "faults = 3", "faults: must be a list"),
        ("f.toml", "", "faults: must be a list"),
        ("f.toml", "[[fault]]\ntype = 'drain'", "fault: unknown; such a file holds `faults`"),
        ("f.toml", "[[faults]", "not TOML: "),
        ("f.json", "[", "not JSON: "),
        ("f.json", "[" * 100_000, "not JSON: "),
        ("f.yaml", "", "a file of faults must end in .toml or .json"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, name: str, text: str, wrong: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError) as raised:
        load_faults(path)
    assert str(raised.value).startswith(f"{path}: {wrong}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["none.toml", "folder.toml", "latin.toml"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(SpecError, match=f"{name}: cannot be read: "):
        load_faults(tmp_path / name)


def test_the_condition_names_the_faults() -> None:
    assert faults_sentence("a/f.toml", READ[:2]) == (
        "With the faults of a/f.toml: link_down at 0 s, drain at 1 s."
    )
    assert faults_sentence("f.toml", READ + READ).endswith("stall at 60 s and 8 more.")
    assert faults_sentence("f.toml", ()) == "With the faults of f.toml: none."


_seconds = st.floats(0, MOST_S)
_lasting = st.none() | st.floats(0, MOST_S, exclude_min=True)
_replica = st.none() | st.integers(0, 100)
_faults = st.one_of(
    st.builds(Stall, at_s=_seconds, for_s=st.floats(0, MOST_S, exclude_min=True), replica=_replica),
    st.builds(ChipsDown, at_s=_seconds, for_s=_lasting, chips=st.integers(1, 999), replan_s=_seconds),
    st.builds(PowerCap, at_s=_seconds, for_s=_lasting, clock_fraction=st.floats(LEAST_CLOCK, 1)),
    st.builds(
        Refuse, at_s=_seconds, for_s=_lasting, status=st.sampled_from([429, 503]), share=st.floats(0, 1)
    ),
)


@given(faults=st.lists(_faults))
def test_what_is_right_is_read_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, faults: list[Fault]
) -> None:
    assert [fault_problem(fault) for fault in faults] == [None] * len(faults)
    path = tmp_path_factory.getbasetemp() / "right.json"
    path.write_bytes(msgspec.json.encode(faults))
    assert load_faults(path) == tuple(sorted(faults, key=lambda fault: fault.at_s))
