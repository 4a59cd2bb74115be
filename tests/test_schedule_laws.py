"""Laws of the static schedule that hold for any model, group and step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_cases import Step, steps

from agentload_simbackend._schedule import Budget, LayerSchedule, StepSchedule

each_step = settings(max_examples=40, deadline=None)


def all_layers(step: Step) -> Iterator[LayerSchedule]:
    for schedule in step.both():
        yield from schedule.layers


@each_step
@given(steps())
def test_no_two_transfers_hold_one_link_in_one_cycle(step: Step) -> None:
    for layer in all_layers(step):
        held = defaultdict(list)
        for transfer in (each for burst in layer.transfers for each in burst):
            assert 0 <= transfer.link < step.group.links
            assert transfer.start < transfer.end
            held[transfer.link].append((transfer.start, transfer.end))
        for spans in held.values():
            assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


@each_step
@given(steps())
def test_no_two_operations_hold_one_unit_in_one_cycle(step: Step) -> None:
    for layer in all_layers(step):
        held = defaultdict(list)
        for tile in (tile for operation in layer.operations for tile in operation.expand()):
            assert 0 <= tile.start <= tile.issued <= tile.end <= layer.cycles
            held[tile.unit].append((tile.start, tile.issued))
        for spans in held.values():
            assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


@each_step
@given(steps())
def test_nothing_is_sent_before_it_is_computed(step: Step) -> None:
    fixed = step.group.cycles(step.group.operation_time_s)
    for layer in all_layers(step):
        for burst, transfers in zip(layer.bursts, layer.transfers, strict=True):
            task = [operation for operation in layer.operations if operation.task == burst.task]
            start, issued = task[0].start, task[-1].issued
            for transfer in transfers:
                computed = ceil((issued - start) * (transfer.vector + 1) / burst.vectors - 1e-9)
                if not step.options.overlap:
                    computed = issued - start
                assert transfer.start >= transfer.ready == start + fixed + computed


@each_step
@given(steps())
def test_nothing_is_consumed_before_it_has_arrived(step: Step) -> None:
    for layer in all_layers(step):
        assert [burst.task for burst in layer.bursts] == sorted({burst.task for burst in layer.bursts})
        for burst, transfers in zip(layer.bursts, layer.transfers, strict=True):
            consumers = [each.start for each in layer.operations if each.task == burst.task + 1]
            assert max(each.arrival for each in transfers) <= min(consumers, default=layer.cycles)
        for before, after in pairwise(layer.operations):
            if after.task > before.task:
                assert after.start >= before.end


@each_step
@given(steps())
def test_a_burst_in_closed_form_is_the_burst_vector_by_vector(step: Step) -> None:
    for layer in all_layers(step):
        for burst, transfers in zip(layer.bursts, layer.transfers, strict=True):
            assert len(transfers) == burst.vectors >= 1
            assert max(each.end for each in transfers) == burst.sent
            assert max(each.arrival for each in transfers) == burst.arrived


@each_step
@given(steps())
def test_every_other_lpu_is_sent_its_share(step: Step) -> None:
    """All LPUs send alike, so each also receives a share from each: as many bytes as it sends."""
    chips, vector_bytes = step.group.chips, step.group.chip.vector_bytes.whole
    hidden = step.model.hidden.whole
    for layer in step.schedule().layers:
        assert chips > 1 or not layer.bursts
        for burst, transfers in zip(layer.bursts, layer.transfers, strict=True):
            sent = Counter(each.to for each in transfers)
            assert set(sent) <= set(range(1, chips))
            shares = [sent[to] for to in range(1, chips)]
            assert max(shares) - min(shares) <= 1
            if burst.name in ("reduce-scatter", "all-gather"):
                payload = hidden * step.batch * step.tokens * 2 * (chips - 1) / chips
                assert payload <= len(transfers) * vector_bytes < payload + vector_bytes


@each_step
@given(steps())
def test_the_budget_divides_the_step_without_remainder(step: Step) -> None:
    for schedule in step.both():
        for layer in schedule.layers:
            assert sum(layer.budget) == layer.cycles
            assert min(layer.budget) >= 0
        in_layers = sum(layer.count * layer.cycles for layer in schedule.layers)
        head, host = schedule.budget_cycles.head, schedule.budget_cycles.host
        assert schedule.cycles == sum(schedule.budget_cycles) == in_layers + head + host
        assert sum(schedule.budget) == pytest.approx(schedule.seconds, rel=1e-12)
        assert schedule.seconds == schedule.cycles / step.group.clock_hz
        assert Budget._fields == ("c2c", "on_chip", "weights", "attention", "head", "host")


def not_slower(better: Step, worse: Step) -> None:
    for fast, slow in zip(better.both(), worse.both(), strict=True):
        assert fast.cycles <= slow.cycles


@each_step
@given(steps(), st.floats(1, 100))
def test_a_better_chip_never_makes_a_step_slower(step: Step, factor: float) -> None:
    for name in ("sram_bandwidth", "c2c_bandwidth", "fp8_flops", "exp_rate"):
        not_slower(step.on_chip(**{name: getattr(step.group.chip, name).value * factor}), step)


@each_step
@given(steps(), st.floats(0, 1))
def test_lower_latencies_and_more_links_never_make_a_step_slower(step: Step, part: float) -> None:
    group = step.group
    not_slower(step._replace(group=group._replace(reach_s=group.reach_s * part)), step)
    shorter = group._replace(operation_time_s=group.operation_time_s * part)
    not_slower(step._replace(group=shorter), step)
    not_slower(step, step._replace(group=group._replace(links=ceil(group.links * part) or 1)))


@each_step
@given(steps(), st.floats(0, 1))
def test_less_to_do_never_makes_a_step_slower(step: Step, part: float) -> None:
    not_slower(step._replace(context_tokens=int(step.context_tokens * part)), step)
    not_slower(step._replace(batch=max(1, int(step.batch * part))), step)
    not_slower(step._replace(tokens=max(1, int(step.tokens * part))), step)
    not_slower(step._replace(split_attention=True), step._replace(split_attention=False))


@each_step
@given(steps(), st.floats(0, 1))
def test_a_group_that_lost_chips_is_never_faster(step: Step, part: float) -> None:
    assume(step.group.chips > 1)
    left = max(2, int(step.group.chips * part))
    not_slower(step, step._replace(group=step.group._replace(chips=left)))


@each_step
@given(steps())
def test_overlap_and_a_static_schedule_never_make_a_step_slower(step: Step) -> None:
    not_slower(step._replace(options=step.options._replace(overlap=True)), step)
    not_slower(step._replace(options=step.options._replace(first_bit_s=0.0)), step)


@each_step
@given(steps(), st.integers(1, 100_000), st.integers(1, 100_000))
def test_the_step_has_no_jumps_in_the_context(step: Step, first: int, second: int) -> None:
    """Per layer and operation it may be off a line by its rounding up; without windows it is convex."""
    start = max(
        (each.mixer.window.whole for each in step.model.layers if hasattr(each.mixer, "window")), default=0
    )
    start *= step.batch

    def cycles(context_tokens: int) -> StepSchedule:
        return step._replace(context_tokens=start + context_tokens).schedule()

    ends = cycles(0), cycles(first + second)
    share = first / (first + second)
    line = ends[0].cycles + share * (ends[1].cycles - ends[0].cycles)
    slack = sum(layer.count * layer.dependent_operations for layer in ends[0].layers)
    assert cycles(first).cycles <= line + slack
