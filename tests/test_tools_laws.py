"""Laws of how long tool calls take: what a file may say, and that draws are the same everywhere."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload import _tools
from agentload._options import ToolOptions
from agentload._tools import _laws, call_times, check_tools, tool_conditions
from agentload._tools._laws import (
    Constant,
    Gamma,
    Law,
    LogNormal,
    Mixture,
    Pareto,
    Part,
    Quantiles,
    ToolLaws,
    load_laws,
)
from agentload_traces import AgentloadError, ToolCall

_DRAWS = 4_000

positive = st.floats(1e-3, 1e3)


def draws(law: Law, seed: int = 3, count: int = _DRAWS) -> list[float]:
    """In seconds, sorted."""
    laws = ToolLaws(law, {}, seed)
    return sorted(laws.duration_ns("s", f"t{turn}", 0, ToolCall(name="x")) / 1e9 for turn in range(count))


def example() -> str:
    """The file in the module's docstring."""
    assert _laws.__doc__
    return textwrap.dedent("\n".join(line for line in _laws.__doc__.splitlines() if line.startswith("    ")))


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "laws.toml"
    file.write_text(example(), encoding="utf-8")
    default, tools = load_laws(file)
    assert default == LogNormal(median_s=0.4, p90_s=3.0)
    assert list(tools) == ["web_search", "pytest", "read_file"]
    assert tools["pytest"] == Mixture(
        (
            Part(share=95, of=Quantiles(((0, 0.2), (50, 1.0), (100, 4.0)))),
            Part(share=5, of=Pareto(least_s=10.0, shape=1.5)),
        )
    )


def test_draws_are_the_same_on_every_machine() -> None:
    """Pinned: they must not change with Python, the processor, or a later version."""
    laws: dict[str, Law] = {
        "constant": Constant(0.25),
        "quantiles": Quantiles(((0, 0.2), (50, 1.0), (100, 4.0))),
        "lognormal": LogNormal(0.4, 3.0),
        "gamma": Gamma(2.0, 1.5),
        "bursty": Gamma(0.3, 1.5),
        "pareto": Pareto(10.0, 1.5),
        "mixture": Mixture((Part(1, Constant(1.0)), Part(1, Constant(2.0)))),
    }
    drawn = ToolLaws(Constant(0.0), laws, 7)
    assert {name: drawn.duration_ns("s#2", "t", 1, ToolCall(name=name)) for name in laws} == PINNED_NS


PINNED_NS: dict[str, int] = {
    "constant": 250000000,
    "quantiles": 3506320283,
    "lognormal": 799609275,
    "gamma": 1726928835,
    "bursty": 2208864866,
    "pareto": 10589119614,
    "mixture": 2000000000,
}


@given(seed=st.integers(0, 2**63 - 1), session=st.text(max_size=5), turn=st.text(max_size=5), data=st.data())
def test_a_draw_depends_on_seed_session_turn_and_index_alone(
    seed: int, session: str, turn: str, data: st.DataObject
) -> None:
    law = Gamma(0.5, 1.0)
    one, other = ToolLaws(law, {}, seed), ToolLaws(Constant(1.0), {"x": law}, seed)
    index = data.draw(st.integers(0, 100))
    call = ToolCall(name="x", duration_ms=5.0)
    expected = one.duration_ns(session, turn, index, call)
    other.duration_ns("another", turn, index, call)
    assert other.duration_ns(session, turn, index, call) == expected
    shifted = ToolLaws(law, {}, seed ^ 1)
    for different in (
        one.duration_ns(session, turn, index + 1, call),
        one.duration_ns(session + "x", turn, index, call),
        one.duration_ns(session, turn + "x", index, call),
        shifted.duration_ns(session, turn, index, call),
    ):
        assert different != expected


def test_a_session_and_a_turn_do_not_run_into_each_other() -> None:
    laws = ToolLaws(Gamma(1.0, 1.0), {}, 0)
    assert laws.duration_ns("ab", "c", 0, ToolCall()) != laws.duration_ns("a", "bc", 0, ToolCall())


@given(times_ms=st.lists(st.integers(0, 10**7), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_quantile_tables_are_hit_at_each_point(times_ms: list[int], seed: int) -> None:
    values = [time_ms / 1_000 for time_ms in sorted(times_ms)]
    percents = [100 * number / (len(values) - 1) for number in range(len(values))]
    drawn = draws(Quantiles(tuple(zip(percents, values, strict=True))), seed, 400)
    assert drawn == sorted(drawn)
    assert values[0] - 1e-9 <= drawn[0]
    assert drawn[-1] <= values[-1] + 1e-9
    for percent, value in zip(percents, values, strict=True):
        below = sum(each <= value + 1e-9 for each in drawn) / 400
        above = sum(each >= value - 1e-9 for each in drawn) / 400
        assert below >= percent / 100 - 0.13, "five standard deviations of a share of 400"
        assert above >= 1 - percent / 100 - 0.13


@given(shape=st.floats(0.2, 20), mean_s=positive, seed=st.integers(0, 99))
def test_gamma_has_its_mean(shape: float, mean_s: float, seed: int) -> None:
    drawn = draws(Gamma(shape, mean_s), seed, 500)
    error = mean_s / (shape * 500) ** 0.5
    assert abs(sum(drawn) / 500 - mean_s) < 6 * error


@given(median_s=positive, ratio=st.floats(1, 30), seed=st.integers(0, 99))
def test_lognormal_has_its_median_and_90th_percentile(median_s: float, ratio: float, seed: int) -> None:
    law = LogNormal(median_s, median_s * ratio)
    drawn = draws(law, seed, 500)
    for limit, share in ((law.median_s, 0.5), (law.p90_s, 0.9)):
        below = sum(each <= min(limit, _laws.LONGEST_S) * (1 + 1e-9) for each in drawn) / 500
        if ratio > 1.01:
            assert abs(below - share) < 6 * (share * (1 - share) / 500) ** 0.5
        else:
            assert below > share - 0.15


@given(least_s=positive, shape=st.floats(0.5, 5), seed=st.integers(0, 99))
def test_pareto_has_its_tail(least_s: float, shape: float, seed: int) -> None:
    drawn = draws(Pareto(least_s, shape), seed, 500)
    assert drawn[0] >= least_s * (1 - 1e-9)
    assert drawn[-1] <= _laws.LONGEST_S
    longer = sum(each > 2 * least_s for each in drawn) / 500
    share = 0.5**shape
    assert abs(longer - share) < 6 * (share * (1 - share) / 500) ** 0.5


def test_a_mixture_has_the_shares_of_its_parts() -> None:
    drawn = draws(Mixture((Part(3, Constant(1.0)), Part(1, Constant(2.0)))))
    assert set(drawn) == {1.0, 2.0}
    assert abs(drawn.count(2.0) / _DRAWS - 0.25) < 6 * (0.25 * 0.75 / _DRAWS) ** 0.5


def test_a_tool_without_a_law_or_a_name_takes_the_default() -> None:
    laws = ToolLaws(Constant(1.0), {"bash": Constant(2.0)}, 0)
    names: dict[str | None, float] = {"bash": 2e9, "grep": 1e9, None: 1e9}
    assert {name: laws.duration_ns("s", "t", 0, ToolCall(name=name)) for name in names} == names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "not TOML"),
        ("[tools.a]\nlaw = 'constant'\nvalue_s = 1", "missing required field `default`"),
        ("default = 1", r": default: Expected `object`"),
        ("[default]\nlaw = 'normal'\nmean_s = 1", r": default.law: Invalid value 'normal'"),
        ("[default]\nlaw = 'constant'\nvalue_s = 1\n[tols.a]", "unknown field `tols`"),
        ("[default]\nlaw = 'constant'\nvalue_s = -1", r": default.value_s: -1 should be more than 0"),
        ("[default]\nlaw = 'gamma'\nshape = 1\nmean_s = nan", r": default.mean_s: nan should be more than 0"),
        (
            "[default]\nlaw = 'lognormal'\nmedian_s = 2\np90_s = 1",
            r": default.p90_s: 1 is less than median_s",
        ),
        ("[default]\nlaw = 'mixture'\nparts = []", r": default.parts: must hold at least one part"),
        (
            "[default]\nlaw = 'quantiles'\npoints_s = [[0, 1], [90, 2]]",
            r": default.points_s: must go from percent 0 to percent 100",
        ),
        (
            "[default]\nlaw = 'quantiles'\npoints_s = [[0, 2], [100, 1]]",
            r": default.points_s: percents must increase and seconds must not decrease",
        ),
        (
            "[default]\nlaw = 'quantiles'\npoints_s = [[0, nan], [100, 1]]",
            r": default.points_s: percents must increase",
        ),
        (
            "[default]\nlaw = 'constant'\nvalue_s = 1\n[tools.'a b']\nlaw = 'gamma'\nshape = 'x'\nmean_s = 1",
            r": tools.a b.shape: Expected `float`, got `str`",
        ),
        (
            "[default]\nlaw = 'mixture'\nparts = [{share = 0, of = {law = 'constant', value_s = 1}}]",
            r": default.parts\[0\].share: 0 should be 1 or more",
        ),
        (
            "[default]\nlaw = 'mixture'\nparts = [{share=1, of={law='pareto', least_s=0, shape=1}}]",
            r": default.parts\[0\].of.least_s: 0 should be more than 0",
        ),
    ],
)
def test_a_wrong_file_is_told_with_its_name_and_the_field(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "laws.toml"
    file.write_text(text, encoding="utf-8")
    for check in (lambda: check_tools(options(f"law:{file}"), "virtual"), lambda: load_laws(file)):
        with pytest.raises(AgentloadError, match=f"^{re.escape(str(file))}.*{why}") as failure:
            check()
        assert "\n" not in str(failure.value)


def options(tools: str, **more: Any) -> ToolOptions:
    return ToolOptions(tools=tools, **more)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(AgentloadError, match="No such file"):
        check_tools(options(f"law:{tmp_path / 'none.toml'}"), "wall")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(AgentloadError, match="not UTF-8"):
        check_tools(options(f"law:{tmp_path / 'bytes.toml'}"), "wall")


@pytest.mark.parametrize("tools", ["", "law", "law:", "law: ", "recorded:x", "python:", "shell:ls"])
def test_tools_that_there_are_not(tools: str) -> None:
    with pytest.raises(AgentloadError, match=r"recorded, law:FILE, python:MODULE:FUNCTION or mcp:COMMAND"):
        check_tools(options(tools), "wall")


@pytest.mark.parametrize("tools", ["python:json:loads", "mcp:true"])
def test_executed_tools_need_the_wall_clock(tools: str) -> None:
    with pytest.raises(AgentloadError, match="--clock wall"):
        check_tools(options(tools), "virtual")


def test_recorded_tools_need_nothing_and_say_nothing() -> None:
    check_tools(options("recorded"), "virtual")
    assert call_times(options("recorded"), 0) is None
    assert tool_conditions(options("recorded")) == []


def test_a_run_by_law_says_so(tmp_path: Path) -> None:
    file = tmp_path / "laws.toml"
    file.write_text(example(), encoding="utf-8")
    (sentence,) = tool_conditions(options(f"law:{file}"))
    assert "3 tools by name" in sentence
    assert str(file) in sentence
    times = call_times(options(f"law:{file}"), 5)
    assert times is not None
    assert times("s", "t", 0, ToolCall(name="read_file", duration_ms=1.0)) == 20_000_000


async def test_nothing_is_executed_unless_asked_for() -> None:
    async with _tools.live_tools(options("recorded"), None, "KEY") as tools:
        assert tools is None
