"""When sessions start: the laws of drawn arrivals, stages and ramps, and shares of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import fmean, variance
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_feeds import closed_loop, open_loop

from agentload._arrivals import drawn_positions
from agentload._feed import LATEST_NS, Launch, SessionFeed
from agentload._load import make_feed
from agentload._options import ArrivalLaw, LoadOptions, ReplayOptions
from agentload._portable_math import exp, ln
from agentload._stages import ConstantRate, Stage, StagedLimit, StagedRate, parse_stages
from agentload_traces import AgentloadError, Session, Turn

S = 1_000_000_000
DRAWS = 10_000


def _session(name: str, start_ms: float | None = None, turns: int = 1) -> Session:
    return Session(
        name,
        tuple(
            Turn(
                session_id=name,
                turn_id=f"t{n}",
                wait_for=(f"t{n - 1}",) if n else (),
                start_ms=None if n else start_ms,
                input_tokens=10,
                output_tokens=1,
            )
            for n in range(turns)
        ),
    )


def _options(seed: int = 0, **load: Any) -> ReplayOptions:
    return ReplayOptions(trace="t", out="o", seed=seed, load=LoadOptions(**load))  # type: ignore[arg-type]


def _all(feed: SessionFeed) -> Iterator[Launch]:
    """What an open loop launches."""
    while feed.next_start_ns(0, 0) is not None:
        yield feed.take()


@given(x=st.floats(1e-300, 1e300))
def test_ln_is_the_logarithm(x: float) -> None:
    assert ln(x) == pytest.approx(math.log(x), rel=1e-15, abs=3e-16)


@given(x=st.floats(-700, 0))
def test_exp_is_the_exponential(x: float) -> None:
    assert exp(x) == pytest.approx(math.exp(x), rel=3e-14)


def test_exp_of_very_little_is_nothing() -> None:
    assert exp(-1e308) == 0.0


def _gaps(arrival: ArrivalLaw, shape: float, seed: int) -> list[float]:
    at = [0.0, *islice(drawn_positions(arrival, shape, seed), DRAWS)]
    return [later - before for before, later in pairwise(at)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("arrival", "shape"), [("poisson", 1.0), *(("gamma", k) for k in (0.1, 0.25, 0.5, 1, 2.5, 20))]
)
def test_gaps_follow_their_law(arrival: ArrivalLaw, shape: float, seed: int) -> None:
    gaps = _gaps(arrival, shape, seed)
    # Gamma of mean 1: variance 1 / shape, excess kurtosis 6 / shape. Five standard errors.
    var = 1 / shape
    assert abs(fmean(gaps) - 1) < 5 * math.sqrt(var / DRAWS)
    assert abs(variance(gaps) - var) < 5 * var * math.sqrt((2 + 6 / shape) / DRAWS)
    # Gaps that follow each other know nothing of each other.
    pairs = fmean((a - 1) * (b - 1) for a, b in pairwise(gaps))
    assert abs(pairs) < 5 * var / math.sqrt(DRAWS)


@pytest.mark.parametrize("arrival", ["poisson", "gamma"])
def test_gaps_of_shape_1_are_exponential(arrival: ArrivalLaw) -> None:
    gaps = sorted(_gaps(arrival, 1.0, 5))
    # Kolmogorov's distance to 1 - exp(-x); 1.95 / sqrt(n) is met with 99.9 % probability.
    distance = max(
        max(abs((n + 1) / DRAWS - (1 - math.exp(-x))), abs(n / DRAWS - (1 - math.exp(-x))))
        for n, x in enumerate(gaps)
    )
    assert distance < 1.95 / math.sqrt(DRAWS)


def test_small_shapes_are_bursts() -> None:
    gaps = _gaps("gamma", 0.01, 1)
    assert min(gaps) >= 0
    assert sum(gap < 1e-9 for gap in gaps) > DRAWS / 2
    assert fmean(gaps) == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize(
    ("arrival", "shape", "first"),
    [
        ("poisson", 1.0, ["0x1.b82de86ba8d42p-4", "0x1.82891b2d49fd8p-2"]),
        ("gamma", 0.5, ["0x1.1cabb6f596e37p-6", "0x1.fe1ced8783095p+0"]),
        ("gamma", 3.0, ["0x1.4a995cf9b9b81p+0", "0x1.58f8e513e0957p+1"]),
    ],
)
def test_draws_are_the_same_on_every_machine(arrival: ArrivalLaw, shape: float, first: list[str]) -> None:
    assert [at.hex() for at in islice(drawn_positions(arrival, shape, 42), 2)] == first


@given(
    arrival=st.sampled_from(["constant", "poisson", "gamma"]),
    seed=st.integers(0, 2**63 - 1),
    rate=st.floats(0.01, 1e4),
)
def test_time_never_goes_back_and_the_seed_decides(arrival: ArrivalLaw, seed: int, rate: float) -> None:
    sessions = [_session(f"s{n}") for n in range(50)]

    def starts(of: int) -> list[int]:
        options = _options(of, arrival=arrival, rate_per_s=rate, burstiness=0.7 if arrival == "gamma" else 1)
        return [launch.start_ns for launch in _all(make_feed(sessions, options))]

    first = starts(seed)
    assert len(first) == 50
    assert first == sorted(first)
    assert first == starts(seed)
    if arrival == "constant":
        assert first == [round(n / rate * S) for n in range(50)]
    else:
        assert first != starts(seed ^ 1)


_SHAPES: list[dict[str, Any]] = [
    {"arrival": "poisson", "rate_per_s": 3.0},
    {"arrival": "gamma", "rate_per_s": 3.0, "burstiness": 0.3},
    {"arrival": "constant", "stages": "1x3s,2-8x4s"},
    {"speed": 2.0, "max_gap_s": 0.8},
]


@pytest.mark.parametrize("load", _SHAPES)
@given(workers=st.integers(1, 5), count=st.integers(1, 40), repeat=st.integers(1, 3))
def test_the_shares_of_all_workers_are_the_whole(
    load: dict[str, Any], workers: int, count: int, repeat: int
) -> None:
    sessions = [_session(f"s{n}", (n * 7 % 5) * 1_000.0, 2) for n in range(count)]
    options = _options(3, repeat=repeat, start_turn="random", **load)
    whole = list(_all(make_feed(sessions, options)))
    parts = [list(_all(make_feed(iter(sessions), options, share=(k, workers)))) for k in range(workers)]
    for number, launch in enumerate(whole):
        assert parts[number % workers][number // workers] == launch
    assert sum(map(len, parts)) == len(whole)


@given(done=st.sets(st.integers(0, 19)), at_s=st.integers(0, 20))
def test_a_resumed_run_starts_what_is_left_when_the_whole_would_have(done: set[int], at_s: int) -> None:
    sessions = [_session(f"s{n}") for n in range(20)]
    options = _options(3, arrival="poisson", rate_per_s=1.0)
    whole = [launch for n, launch in enumerate(_all(make_feed(sessions, options))) if n not in done]
    left = _all(make_feed(sessions, options, clock_start_ns=at_s * S, done={f"s{n}" for n in done}))
    assert list(left) == [launch._replace(start_ns=max(launch.start_ns, at_s * S)) for launch in whole]


def test_recorded_gaps_are_capped_before_they_are_sped_up() -> None:
    sessions = [_session("b", 90_000.0), _session("a", 10_000.0), _session("c", 91_000.0), _session("d")]
    options = _options(max_gap_s=4.0, speed=2.0, arrival_speed=4.0)
    started = [(launch.session.session_id, launch.start_ns) for launch in _all(make_feed(sessions, options))]
    assert started == [("a", 0), ("d", 0), ("b", S), ("c", S + S // 4)]


def test_repetitions_follow_at_the_mean_gap() -> None:
    sessions = [_session("a", 5_000.0), _session("b", 6_000.0), _session("c", 9_000.0)]
    feed = make_feed(sessions, _options(repeat=2))
    assert [launch.start_ns for launch in _all(feed)] == [0, S, 4 * S, 6 * S, 7 * S, 10 * S]


def test_a_start_beyond_the_clock_is_told() -> None:
    with pytest.raises(AgentloadError, match="days after the first"):
        open_loop([_session("a", 0.0), _session("b", 1e300)], speed=1e-2)
    feed = make_feed([_session(f"s{n}") for n in range(2)], _options(arrival="constant", rate_per_s=1e-10))
    with pytest.raises(AgentloadError, match=r"'s1' would start .* days after .* higher --rate"):
        list(_all(feed))
    assert LATEST_NS < 2**63


_LEVEL = st.integers(0, 20)
_STAGES = st.lists(st.builds(Stage, _LEVEL, _LEVEL, st.integers(1, 50)), min_size=1, max_size=4)


def _limit(stages: list[Stage], at: int) -> int:
    for stage in stages:
        if at < stage.span_ns:
            return math.floor(stage.start + (stage.end - stage.start) * at / stage.span_ns + 1e-9)
        at -= stage.span_ns
    return 0


@given(stages=_STAGES, active=st.integers(0, 20), now=st.integers(0, 200), workers=st.integers(1, 4))
def test_room_is_given_at_the_first_moment_that_the_level_allows(
    stages: list[Stage], active: int, now: int, workers: int
) -> None:
    end = sum(stage.span_ns for stage in stages)
    rooms = [(now_ns, _limit(stages, now_ns)) for now_ns in range(now, end)]
    assert StagedLimit(stages).room_ns(active, now) == next((at for at, n in rooms if n > active), None)
    for share in range(workers):
        own = StagedLimit(stages, (share, workers))
        allowed = [(at, (n - share + workers - 1) // workers) for at, n in rooms]
        assert own.room_ns(active, now) == next((at for at, n in allowed if n > active), None)


@given(stages=_STAGES, fraction=st.floats(0, 0.9999))
def test_arrivals_come_when_so_many_should_have(stages: list[Stage], fraction: float) -> None:
    spread = [stage._replace(span_ns=stage.span_ns * S) for stage in stages]
    total = sum((stage.start + stage.end) / 2 * stage.span_ns for stage in stages)
    rate = StagedRate(spread)
    assert rate.at_ns(total + 1e-6) is None
    at_ns = rate.at_ns(total * fraction)
    if not total:
        assert at_ns is None
        return
    assert at_ns is not None
    expected, left_s = 0.0, at_ns / S
    for stage in stages:
        t = min(left_s, stage.span_ns)
        expected += stage.start * t + (stage.end - stage.start) * t * t / (2 * stage.span_ns)
        left_s -= t
    assert expected == pytest.approx(total * fraction, abs=1e-4)


@given(stages=_STAGES, one=st.floats(0, 2_000), other=st.floats(0, 2_000))
def test_later_positions_come_later(stages: list[Stage], one: float, other: float) -> None:
    rate = StagedRate([stage._replace(span_ns=stage.span_ns * S) for stage in stages])
    early, late = rate.at_ns(min(one, other)), rate.at_ns(max(one, other))
    assert late is None or (early is not None and early <= late)


def test_a_steady_stage_is_a_constant_rate() -> None:
    staged, constant = StagedRate([Stage(2.5, 2.5, 100 * S)]), ConstantRate(2.5)
    assert [staged.at_ns(float(n)) for n in range(100)] == [constant.at_ns(float(n)) for n in range(100)]


def test_stages_end_an_open_loop() -> None:
    feed = make_feed(
        [_session(f"s{n}") for n in range(99)], _options(arrival="constant", stages="2x3s,0x1m,1x2s")
    )
    starts = [launch.start_ns / S for launch in _all(feed)]
    assert starts == [0, 0.5, 1, 1.5, 2, 2.5, 63, 64]


def test_stages_are_read() -> None:
    assert parse_stages("4x60s, 4-16x2m,16x0.5h,0.5-0x1500ms") == (
        Stage(4, 4, 60 * S),
        Stage(4, 16, 120 * S),
        Stage(16, 16, 1_800 * S),
        Stage(0.5, 0, 3 * S // 2),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read the stage ''"),
        ("4x60s,", "cannot read the stage ''"),
        ("4x60", "cannot read the stage '4x60'"),
        ("-4x60s", "cannot read"),
        ("4-x60s", "cannot read"),
        ("4x60s;5x1m", "cannot read"),
        ("nanx1s", "cannot read"),
        ("4x0s", "more than no time"),
        ("4x9000h", "at most a year"),
        ("1x1s,2000000x1s", "the stage 2000000x1s goes beyond 1,000,000"),
        ("0x1s,0-0x2m", "no session would start"),
        ("\u0664x1s", "cannot read"),
    ],
)
def test_stages_that_make_no_sense_are_told_in_one_line(text: str, says: str) -> None:
    with pytest.raises(AgentloadError, match=says) as told:
        parse_stages(text)
    assert "\n" not in str(told.value)
    assert str(told.value).startswith("--stages")


@given(limit=st.integers(1, 5), active=st.integers(0, 7), now=st.integers(0, 10))
def test_a_closed_loop_fills_its_places(limit: int, active: int, now: int) -> None:
    feed = closed_loop([_session("s")], limit)
    assert feed.next_start_ns(active, now) == (now if active < limit else None)
    if active < limit:
        assert feed.take().start_ns == now
        assert feed.next_start_ns(0, now) is None
