"""The grammar of SLOs, what holds them, and the knee."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload._sweep_knees import knee
from agentload._sweep_slo import Objective, Slo, parse_slo
from agentload_traces import AgentloadError

MS, S = 10**6, 10**9

_times = st.builds(
    Objective,
    st.sampled_from(["ttft", "tpot", "itl", "session"]),
    st.sampled_from(["p50", "p90", "p99", "max"]),
    st.integers(1, 10**18)
    | st.integers(1, 10**6).map(lambda n: n * MS)
    | st.integers(1, 900).map(lambda n: n * S),
)
_speeds = st.builds(
    Objective, st.just("speed"), st.sampled_from(["p50", "p10", "p1", "min"]), st.integers(1, 10**18)
)
_slos = st.lists(_times | _speeds, min_size=1, max_size=5, unique_by=lambda found: found[:2]).map(
    lambda found: Slo(tuple(found))
)


@given(slo=_slos)
def test_an_slo_reads_as_it_is_written(slo: Slo) -> None:
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("ttft=500ms,itl=5ms,session=30min", "ttft.p99=500ms,itl.p99=5ms,session.p99=30min"),
        ("ttft.p50=1.5s", "ttft.p50=1.5s"),
        ("itl.max=1300us", "itl.max=1.3ms"),
        (" tpot=0.0005us , speed=1000tok/s", None),
        ("tpot=0.5us, speed=1000tok/s", "tpot.p99=0.5us,speed.p1=1000tok/s"),
        ("session=90s", "session.p99=1.5min"),
    ],
)
def test_units_and_defaults(text: str, written: str | None) -> None:
    if written is None:
        with pytest.raises(AgentloadError, match="whole number of nanoseconds"):
            parse_slo(text)
    else:
        assert str(parse_slo(text)) == written


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no objective"),
        ("ttft", "is no objective"),
        ("ttft<500ms", "is no objective"),
        ("ttft=-1ms", "is no objective"),
        ("ttft=500ms,", "is no objective"),
        ("latency=1s", "there is no metric latency; there are ttft, tpot, itl, session, speed"),
        ("ttft.p95=1s", "ttft has p99, p90, p50, max, not p95"),
        ("speed.p99=1tok/s", "speed has p1, p10, p50, min, not p99"),
        ("ttft=500", "number without a unit; ttft takes us, ms, s, min, h"),
        ("ttft=500sec", "unit sec; ttft takes us, ms, s, min, h"),
        ("speed=500ms", "unit ms; speed takes tok/s"),
        ("ttft=0ms", "whole number of nanoseconds"),
        ("ttft=0.0000000000000000000000001s", "whole number of nanoseconds"),
        ("ttft=99999999h", "whole number of nanoseconds"),
        ("speed=0.5tok/s", "whole number of tokens/s"),
        ("ttft=1s,itl=5ms,ttft.p99=2s", "ttft.p99 is given twice"),
    ],
)
def test_what_is_wrong_with_an_slo_is_said_in_one_line(text: str, told: str) -> None:
    with pytest.raises(AgentloadError) as raised:
        parse_slo(text)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def a_row(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"error": None, "turns": 200, "failed": 0, "skipped": 0}
    row.update(ttft_count=200, ttft_p50_ms=10.0, ttft_p90_ms=20.0, ttft_p99_ms=30.0, ttft_max_ms=99.0)
    row.update(
        session_count=5, session_p50_s=10.0, session_p90_s=11.0, session_p99_s=12.0, session_max_s=13.0
    )
    row.update(speed_count=200, speed_p50_tokens_per_s=900.0, speed_p1_tokens_per_s=700.0)
    return {**row, **values}


@pytest.mark.parametrize(
    ("slo", "broken"),
    [
        ("ttft=30ms", []),
        ("ttft=29.999ms", ["ttft p99 30 ms > 29.999ms"]),
        ("ttft.max=98ms,ttft.p50=10ms", ["ttft max 99 ms > 98ms"]),
        ("speed=700tok/s", []),
        ("speed=701tok/s,speed.p50=900tok/s", ["speed p1 700 tok/s < 701tok/s"]),
    ],
)
def test_what_breaks_an_slo(slo: str, broken: list[str]) -> None:
    assert parse_slo(slo).broken_by(a_row()) == broken


def test_a_percentile_of_too_few_values_is_judged_by_the_worst() -> None:
    assert parse_slo("session=12.5s").broken_by(a_row()) == [
        "session max 13 s > 12.5s (of 5, too few for a p99)"
    ]
    assert parse_slo("session.p50=10s").broken_by(a_row()) == []


def test_turns_without_an_answer_break_every_slo() -> None:
    assert parse_slo("ttft=1h").broken_by(a_row(failed=2, skipped=3)) == ["5 of 200 turns not answered"]
    assert parse_slo("ttft=1h").broken_by({"error": "does not fit"}) == ["does not fit"]


def test_no_value_holds_nothing() -> None:
    row = a_row(ttft_count=0, ttft_max_ms=None)
    assert parse_slo("ttft=1h").broken_by(row) == ["ttft max: no value"]


@given(
    values=st.lists(st.integers(1, 100), min_size=1, max_size=8, unique=True),
    limit=st.integers(0, 101),
    more=st.integers(0, 101),
)
def test_a_looser_limit_never_lowers_the_knee(values: list[int], limit: int, more: int) -> None:
    def at(most: int) -> int:
        found = knee([(value, value <= most) for value in values])
        assert found is not None
        return found

    assert at(limit) <= at(limit + more)
    assert at(limit) == max((value for value in values if value <= limit), default=0)


def test_the_knee_is_before_the_first_break() -> None:
    assert knee([(4, True), (1, True), (2, False)]) == 1


@given(holds=st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=8))
def test_a_knee_beyond_a_missing_point_is_not_known(holds: list[bool | None]) -> None:
    planned = [(number, each) for number, each in enumerate(holds, 1)]
    found = knee(planned)
    filled = {knee([(n, each if h is None else h) for n, h in planned]) for each in (True, False)}
    assert len(filled) == (2 if found is None else 1)
    if found is not None:
        assert all(held for number, held in planned if number <= found)
        assert found == len(holds) or holds[found] is False


@pytest.mark.parametrize(
    ("slo", "shown", "close"),
    [
        ("ttft=35ms", "ttft p99 30 ms ± 2", False),
        ("ttft=33.9ms", "ttft p99 30 ms ± 2", True),
        ("ttft=26.1ms", "ttft p99 30 ms ± 2", True),
        ("ttft.max=99ms", "ttft max 99 ms", False),
        ("session=14s", "session max 13 s (of 5, too few for a p99)", False),
        ("speed=690tok/s", "speed p1 700 tok/s ± 5.5", True),
    ],
)
def test_the_value_that_decides_comes_with_its_scatter(slo: str, shown: str, close: bool) -> None:
    row = a_row(ttft_p99_ms_se=2.0, session_p99_s_se=1.0, speed_p1_tokens_per_s_se=5.5)
    assert parse_slo(slo).values_in(row) == [shown]
    assert parse_slo(slo).is_close(row) == close
