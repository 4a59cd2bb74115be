"""The shared link: an even split in exact integers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload_simbackend._shared_link import SharedLink

RATES = st.sampled_from([0.001, 1 / 3, 7.0, 1_280.0])
TRANSFERS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 1_000_000)), min_size=1, max_size=9)


def run(
    link: SharedLink[int],
    transfers: list[tuple[int, int]],
    *,
    leaves: dict[int, int] | None = None,
    pause: tuple[int, int] | None = None,
) -> dict[int, int]:
    """Put transfers (start, bytes) on a link; return when each was whole, but for those that leave."""
    actions = [(at_ns, 0, number) for number, (at_ns, _) in enumerate(transfers)]
    actions += [(at_ns, 1, number) for number, at_ns in (leaves or {}).items()]
    if pause is not None:
        actions += [(pause[0], 2, 0), (pause[1], 3, 0)]
    actions.sort()
    ends: dict[int, int] = {}
    while actions or link.wake_ns is not None:
        if link.wake_ns is not None and (not actions or link.wake_ns <= actions[0][0]):
            now_ns = link.wake_ns
            done = link.serve(now_ns)
            assert done, "woken for nothing"
            ends.update(dict.fromkeys(done, now_ns))
            continue
        at_ns, what, number = actions.pop(0)
        if what == 0:
            link.enter(number, transfers[number][1], at_ns)
        elif what == 1:
            link.leave(number, at_ns)
        elif what == 2:
            link.stop(at_ns)
        else:
            link.go_on(at_ns)
    return ends


def fluid(transfers: list[tuple[int, int]], rate: Fraction) -> dict[int, Fraction]:
    """When each transfer is whole if the bandwidth is split evenly at every instant."""
    waiting = sorted((Fraction(at), number) for number, (at, _) in enumerate(transfers))
    left: dict[int, Fraction] = {}
    ends: dict[int, Fraction] = {}
    now = Fraction(0)
    while waiting or left:
        until = waiting[0][0] if waiting else None
        first = now + min(left.values()) * len(left) / rate if left else None
        if until is None or (first is not None and first < until):
            assert first is not None
            until = first
        for number in list(left):
            left[number] -= (until - now) * rate / len(left) if left else 0
        for number in [number for number, size in left.items() if size <= 0]:
            ends[number] = until
            del left[number]
        now = until
        while waiting and waiting[0][0] <= now:
            number = waiting.pop(0)[1]
            left[number] = Fraction(transfers[number][1])
    return ends


@given(RATES, TRANSFERS)
def test_transfers_end_when_an_even_split_ends_them(rate: float, transfers: list[tuple[int, int]]) -> None:
    ends = run(SharedLink(rate, 0), transfers)
    exact_rate = Fraction(round(rate * (1 << 20)), 1 << 20)
    expected = fluid(transfers, exact_rate)
    assert ends.keys() == expected.keys()
    for number, end_ns in ends.items():
        assert 0 <= end_ns - expected[number] <= 2


@given(RATES, TRANSFERS, st.data())
def test_no_byte_is_lost_or_sent_twice(
    rate: float, transfers: list[tuple[int, int]], data: st.DataObject
) -> None:
    link: SharedLink[int] = SharedLink(rate, 0)
    last_ns = max(at_ns for at_ns, _ in transfers)
    leavers = data.draw(st.sets(st.sampled_from(range(len(transfers)))))
    leaves = {
        number: data.draw(st.integers(transfers[number][0], transfers[number][0] + 2_000))
        for number in sorted(leavers)
    }
    ends = run(link, transfers, leaves=leaves)
    whole = sum(transfers[number][1] for number in ends)
    cut = sum(transfers[number][1] for number in leaves.keys() - ends.keys())
    assert whole <= link.sent_bytes <= whole + cut
    if not cut:
        assert link.sent_bytes == whole
    end_ns = max([last_ns, *ends.values(), *leaves.values()])
    assert link.sent_bytes <= end_ns * rate * 1.001 + 1
    assert link.flows == []


@given(st.integers(1, 10_000_000), st.integers(1, 40))
def test_n_at_once_take_n_times_as_long(size: int, count: int) -> None:
    alone = run(SharedLink(3.0, 0), [(5, size)])[0] - 5
    together = run(SharedLink(3.0, 0), [(5, size)] * count)
    assert set(together.values()) == {max(together.values())}
    assert together[0] - 5 == pytest.approx(count * alone, abs=count)


@given(TRANSFERS, st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_stopped_link_goes_on_where_it_stopped(
    transfers: list[tuple[int, int]], stop_ns: int, for_ns: int
) -> None:
    """Of transfers that began before, what has yet to end does so later by the length of the stop."""
    began = [each for each in transfers if each[0] <= stop_ns]
    before = run(SharedLink(7.0, 0), began)
    after = run(SharedLink(7.0, 0), began, pause=(stop_ns, stop_ns + for_ns))
    for number, end_ns in before.items():
        assert after[number] == pytest.approx(end_ns + (for_ns if end_ns > stop_ns else 0), abs=1)
