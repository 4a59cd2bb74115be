"""Whether and when a turn that failed is sent again: a pure policy."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload._options import FailureOptions
from agentload._retry import NEVER_RETRIED, RetryPolicy, check_failure
from agentload_traces import AgentloadError, ErrorKind

KINDS = [kind for kind in get_args(ErrorKind) if kind not in NEVER_RETRIED]
TURN = ("session", "t1")


def policy(**options: object) -> RetryPolicy:
    return RetryPolicy.of(FailureOptions(**options), seed=3)  # type: ignore[arg-type]


def test_by_default_nothing_is_sent_again() -> None:
    assert all(policy().wait_before_next_ns(1, kind, None, TURN) is None for kind in KINDS)


@given(
    retries=st.integers(0, 8),
    failed=st.integers(1, 12),
    kind=st.sampled_from(get_args(ErrorKind)),
    asked=st.lists(st.sampled_from(KINDS), min_size=1),
    wait_s=st.floats(0, 100),
    most_s=st.floats(0, 100),
)
def test_a_wait_grows_from_half_of_its_base_to_its_limit(
    retries: int, failed: int, kind: ErrorKind, asked: list[str], wait_s: float, most_s: float
) -> None:
    options = policy(retries=retries, retry_on=",".join(asked), retry_wait_s=wait_s, retry_max_wait_s=most_s)
    wait_ns = options.wait_before_next_ns(failed, kind, None, TURN)
    if failed > retries or kind not in asked:
        assert wait_ns is None
        return
    longest_ns = min(round(wait_s * 1e9) << (failed - 1), round(most_s * 1e9))
    assert wait_ns is not None
    assert longest_ns // 2 <= wait_ns <= longest_ns
    assert wait_ns == options.wait_before_next_ns(failed, kind, None, TURN)


def test_turns_that_failed_together_do_not_come_back_together() -> None:
    options = policy(retries=1, retry_wait_s=10.0)
    waits = {options.wait_before_next_ns(1, "reset", None, ("s", f"t{n}")) for n in range(20)}
    assert len(waits) == 20


@given(asked_s=st.floats(0, 1e12), most_s=st.floats(0, 100))
def test_what_the_endpoint_asks_for_counts_unless_it_is_too_long(asked_s: float, most_s: float) -> None:
    options = policy(retries=1, retry_wait_s=50.0, retry_max_wait_s=most_s)
    wait_ns = options.wait_before_next_ns(1, "rate_limited", asked_s, TURN)
    if round(asked_s * 1e9) <= round(most_s * 1e9):
        assert wait_ns == round(asked_s * 1e9)
    else:
        assert wait_ns is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retry_on": "reset,oops"}, "--retry-on: no kind of failure 'oops'; there are connect, tls"),
        ({"retry_on": "interrupted"}, "no kind of failure 'interrupted'"),
        ({"retry_on": " ,", "retries": 1}, "--retry-on names no kind of failure"),
    ],
)
def test_wrong_kinds_are_told(options: dict[str, object], told: str) -> None:
    with pytest.raises(AgentloadError, match=told.replace("(", r"\(")):
        check_failure(FailureOptions(**options))  # type: ignore[arg-type]
