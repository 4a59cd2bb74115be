"""Laws of step times, for every mode and family of models."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from step_time_cases import (
    FAMILIES,
    NAMES,
    batches,
    chips_of,
    contexts,
    deployment,
    names,
    with_part,
    with_spec,
    without_speculation,
)

from agentload_simbackend import Deployment
from agentload_simbackend._gpu_step import gpu_step
from agentload_simbackend._lpu_step import lpu_step
from agentload_simbackend._pieces import value_ns
from agentload_simbackend._specs import LpuChip
from agentload_simbackend._step_time import gpu_group, lpu_work, step_model

SLACK = 1 - 5e-4
"""What lines between knots, and rounding to cycles, may hide."""


def step_ns(base: Deployment, batch: int, context: int) -> float:
    return step_model(base).step(batch, batch * context)[0]


@given(names, batches, st.integers(1, 64), contexts)
def test_more_streams_are_never_faster(name: str, batch: int, more: int, context: int) -> None:
    base = deployment(name)
    assert step_ns(base, batch + more, context) >= SLACK * step_ns(base, batch, context)


@given(names, batches)
def test_pieces_join_and_never_fall(name: str, batch: int) -> None:
    made = step_model(deployment(name)).pieces(batch)
    for piece, after in pairwise(made):
        at = piece.until_tokens
        before_ns, then_ns = (each.base_ns + each.growth_ns * at for each in (piece, after))
        assert before_ns == pytest.approx(then_ns, rel=1e-9)
    assert all(piece.growth_ns >= 0 for piece in made)
    assert [piece.until_tokens for piece in made] == sorted({piece.until_tokens for piece in made})


@given(names, batches, contexts, st.floats(0.1, 1), st.data())
def test_less_bandwidth_is_never_faster(
    name: str, batch: int, context: int, share: float, data: st.DataObject
) -> None:
    base = deployment(name)
    parts = [("decode_chip", "hbm_bandwidth")]
    if isinstance(base.decode_chip, LpuChip):
        parts = [("decode_chip", "sram_bandwidth"), ("decode_chip", "c2c_bandwidth")]
    if base.spec.attention is not None:
        parts.append(("prefill_chip", "hbm_bandwidth"))
    if base.spec.draft is not None:
        parts.append(("draft_chip", "c2c_bandwidth"))
    if base.split_link is not None:
        parts.append(("split_link", "bandwidth_per_chip"))
    part, key = data.draw(st.sampled_from(parts))
    slower = with_part(base, part, **{key: share * getattr(getattr(base, part), key).value})
    assert step_ns(slower, batch, context) >= SLACK * step_ns(base, batch, context)


@given(st.sampled_from([f"{model}/pd" for model in FAMILIES.values()]), batches, contexts)
@example("gemma-4-31b/pd", 64, 700)
def test_lines_are_within_a_thousandth_of_the_schedule(name: str, batch: int, context: int) -> None:
    base, total = deployment(name), batch * context
    work = lpu_work(base, chips_of(base))
    drafts = base.draft_tokens
    expected_s = work.step(batch, drafts + 1, total).seconds
    if base.drafter is not None:
        expected_s += drafts * work.draft(base.drafter, batch, total).seconds
    assert step_ns(base, batch, context) == pytest.approx(expected_s * 1e9, rel=1e-3)


@given(st.sampled_from(list(FAMILIES.values())), batches, contexts, st.integers(2, 8))
def test_micro_batches_are_never_slower(model: str, batch: int, context: int, parts: int) -> None:
    base = deployment(f"{model}/afd")
    one, many = (with_spec(base, attention__micro_batches=count) for count in (1, parts))
    whole_ns, parted_ns = step_ns(one, batch, context), step_ns(many, batch, context)
    assert parted_ns <= whole_ns / SLACK
    # And no faster than the LPX alone.
    work = lpu_work(base, chips_of(base))
    assert parted_ns >= SLACK * value_ns(lpu_step(work, batch, base.draft_tokens + 1), batch * context)


@pytest.mark.parametrize("name", NAMES)
def test_without_speculation_there_is_no_draft(name: str) -> None:
    base = without_speculation(deployment(name))
    batch, total = 5, 5 * 20_000
    if base.mode in ("lpx", "pd"):
        alone_ns = value_ns(lpu_step(lpu_work(base, chips_of(base)), batch, 1), total)
    elif base.mode == "afd":
        alone_ns = value_ns(lpu_step(lpu_work(base, chips_of(base)), batch, 1), total)
        assert step_model(base).step(batch, total)[0] > alone_ns
        return
    else:
        gpus = gpu_group(base, chips_of(base))
        alone_ns = value_ns(gpu_step(base.shape, gpus, batch=batch, tokens=1), total)
    assert step_model(base).step(batch, total)[0] == alone_ns


@given(names, batches, contexts)
def test_speculation_costs_time(name: str, batch: int, context: int) -> None:
    base = deployment(name)
    assume(base.draft_tokens)
    assert step_ns(base, batch, context) > step_ns(without_speculation(base), batch, context)
