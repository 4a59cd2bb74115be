"""The static schedule against the latency sum on paper, and what its ablations cost."""

from __future__ import annotations

from math import ceil

import msgspec
import pytest
from schedule_cases import (
    REACH_S,
    Step,
    chip,
    decoder,
    dense,
    experts,
    full,
    gemma,
    group,
    latent,
    layers,
    number,
    state_space,
)

from agentload_simbackend import load_model
from agentload_simbackend._schedule_group import group_of
from agentload_simbackend._schedule_input import FIRST_BIT_S, ScheduleOptions
from agentload_simbackend._specs import LpuRack, LpuSide
from agentload_traces import SpecError

US = 1e-6

LATENT = latent(128, 1536, 512, 64, 128, 128)
STATE = state_space(128, 64, 128, 8, 4)
EXPERTS = experts(512, 22, 2_688, 5_376, latent=1_024, matrices=2)


def whole_s(step: Step, drafts: int = 7) -> float:
    return step.schedule().seconds + drafts * step.draft().seconds


def paper_s(batch: int, context_tokens: int, reach_s: float, on_chip_s: float, chips: int) -> float:
    """The latency sum of simbackend/README.md for Gemma 4 31B with its drafter."""
    rows = 8 * batch
    flops = chips * 1.2e15

    def phase(rows: int, hidden: int) -> float:
        return reach_s + rows * hidden * 2 / 1.2e12

    gemm = max(30.7e9 / (chips * 75e12), 2 * 30.7e9 * rows / (flops * 0.3))
    keys = batch * context_tokens
    kv = 40_960 * keys + batch * 419e6
    attended = 4 * 8 * 32 * (10 * 512 * keys + 50 * 256 * 1024 * batch)
    exps = 8 * 32 * (10 * keys + 50 * 1024 * batch)
    attention = max(kv / (chips * 75e12), attended / (flops * 0.25)) + exps / (chips * 320e9)
    target = 60 * (6 * phase(rows, 5376) + on_chip_s) + gemm + attention + 5 * US
    return target + 7 * (4 * (6 * phase(batch, 1024) + on_chip_s) + 5 * US) + 30 * US


@pytest.mark.parametrize(("chips", "on_chip_s"), [(256, 4.75e-6), (128, 7.09e-6)])
@pytest.mark.parametrize("context_tokens", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_the_step_of_gemma_is_the_latency_sum_on_paper(
    chips: int, on_chip_s: float, context_tokens: int, batch: int
) -> None:
    step = gemma(chips, batch, context_tokens, operation_time=on_chip_s / 16)
    step = step._replace(options=ScheduleOptions(overlap=False))
    expected = paper_s(batch, context_tokens, REACH_S[chips], on_chip_s, chips)
    assert whole_s(step) == pytest.approx(expected, rel=0.02)


def test_latency_is_what_a_step_at_batch_1_pays() -> None:
    budget = gemma().schedule().budget
    assert budget.c2c == pytest.approx(440 * US, rel=0.01)
    assert budget.on_chip == pytest.approx(285 * US, rel=0.01)
    assert budget.weights + budget.attention < 10 * US
    assert budget.host == pytest.approx(30 * US)


def test_a_layer_of_attention_and_a_dense_network_is_16_operations_and_6_exchanges() -> None:
    for layer in gemma().schedule().layers:
        assert layer.dependent_operations == 16
        assert [burst.name for burst in layer.bursts] == [
            "gather q k v",
            "combine softmax",
            "reduce-scatter",
            "all-gather",
            "reduce-scatter",
            "all-gather",
        ]
        # (n - 1) / n of 5,376 elements of 8 tokens in BF16.
        assert {burst.vectors for burst in layer.bursts} == {268}


def exchanges(step: Step) -> list[list[str]]:
    return [[burst.name for burst in layer.bursts] for layer in step.schedule().layers]


def test_what_a_layer_lacks_it_does_not_exchange() -> None:
    end = ["reduce-scatter", "all-gather"]
    model = decoder(
        4_096,
        layers(1, STATE, None),
        layers(1, None, dense(1_000)),
        layers(1, full(32, 2, 128), None),
        layers(1, LATENT, None),
        layers(1, None, EXPERTS),
    )
    step = gemma()._replace(model=model)
    mixers = [
        ["gather q k v", "combine softmax", *end],
        ["gather latent", "gather q k v", "combine softmax", *end],
    ]
    experts_exchanges = ["gather router", "reduce-scatter latent", *end]
    assert exchanges(step) == [["gather B C", *end], end, *mixers, experts_exchanges]
    assert exchanges(step._replace(split_attention=True)) == [["gather B C", *end], end, experts_exchanges]


def vectors(step: Step) -> list[list[int]]:
    return [[burst.vectors for burst in layer.bursts] for layer in step.schedule().layers]


def test_each_exchange_has_its_elements() -> None:
    """Eight tokens in BF16: 16 bytes an element, 255 of 256 parts of them sent, in vectors of 320 bytes."""
    model = decoder(4_096, layers(1, STATE, None), layers(1, LATENT, None), layers(1, None, EXPERTS))
    plain = msgspec.structs.replace(EXPERTS, latent=number(0))
    wide = decoder(4_096, layers(1, None, plain), layers(1, full(32, 2, 128), None))
    step = gemma()._replace(model=model)
    assert vectors(step) == [
        # B and C of 8 groups of 128 and the step of 128 heads: 2,176 elements; hidden: 4,096.
        [109, 204, 204],
        # 1,536 of the queries' rank, 512 + 64 of the keys': 2,112.
        [106, 204, 204, 204, 204],
        # Scores of 512 experts and 1,024 of their latent space: 1,536; then 1,024.
        [77, 51, 204, 204],
    ]
    # Without a latent space only the scores, 512.
    assert vectors(step._replace(model=wide)) == [[26, 204, 204], [204] * 4]


def test_a_state_is_read_and_written_in_each_step() -> None:
    """Nemotron 3 Super: 128 x 64 x 128 elements of 4 bytes a layer, for 64 streams, at 75 TB/s each."""
    step = gemma()._replace(model=load_model("nemotron-3-super-120b-a12b"), batch=64, tokens=1)
    states = [layer for layer in step.schedule().layers if layer.name.startswith("state space")]
    cycles = 2 * (128 * 64 * 128 * 4) * 64 / (256 * 75e12) * 1.5e9
    assert [layer.budget.attention for layer in states] == [ceil(cycles)] == [42]
    assert [layer.count for layer in states] == [40]


def test_experts_are_read_as_far_as_tokens_touch_them() -> None:
    step = gemma()._replace(model=decoder(2_880, layers(36, None, experts(128, 4, 2_880, 0)), vocabulary=1))
    step = step.on_chip(sram_bandwidth=1e10, fp8_flops=1e18)
    expert_bytes, router_bytes = 3 * 2_880 * 2_880, 2_880 * 128

    def read_bytes(tokens: int) -> float:
        seconds = step._replace(tokens=tokens).schedule().budget.weights
        return seconds * 256 * 1e10 * 0.5 / 36 - router_bytes

    assert read_bytes(1) == pytest.approx(4 * expert_bytes, rel=1e-3)
    assert read_bytes(2) == pytest.approx((4 + 4 * 124 / 128) * expert_bytes, rel=1e-3)
    assert read_bytes(10_000) == pytest.approx(128 * expert_bytes, rel=1e-3)


def test_an_operation_is_divided_into_tiles_of_the_matrix_unit() -> None:
    layer = gemma(chips=64).schedule().layers[0]
    down = next(operation for operation in layer.operations if operation.name == "down")
    tiles = list(down.expand())
    # 5,376 x 21,504 parameters over 64 LPUs, 320 x 320 at a time.
    assert len(tiles) == 18
    assert (tiles[0].start, tiles[-1].issued, tiles[-1].end) == (down.start, down.issued, down.end)


def test_arbitration_is_paid_by_every_exchange() -> None:
    """The measured all-reduce of 4 us is two of them: a reduce-scatter and an all-gather."""
    assert 2 * FIRST_BIT_S == 4e-6
    step = gemma()
    arbitrated = step._replace(options=ScheduleOptions(first_bit_s=FIRST_BIT_S))
    grown = arbitrated.schedule().seconds - step.schedule().seconds
    assert grown == pytest.approx(60 * 6 * FIRST_BIT_S, rel=1e-3)
    assert arbitrated.draft().seconds - step.draft().seconds == pytest.approx(24 * FIRST_BIT_S, rel=1e-3)


def test_overlap_hides_transfers_behind_the_arithmetic() -> None:
    """It saves up to the shorter of the two, so most where few chips compute long."""
    saved = []
    for chips in (8, 256):
        step = gemma(chips, batch=4)
        apart = step._replace(options=ScheduleOptions(overlap=False)).schedule()
        overlapped = step.schedule()
        assert apart.budget._replace(c2c=0) == overlapped.budget._replace(c2c=0)
        saved.append(apart.seconds - overlapped.seconds)
    assert saved[0] > 5 * saved[1] > 0


def test_one_chip_exchanges_nothing() -> None:
    step = gemma()._replace(group=group(1, 1.0))
    assert step.schedule().budget.c2c == step.draft().budget.c2c == 0


def test_an_unfilled_window_is_read_as_far_as_it_is_filled() -> None:
    attention = [
        gemma(context_tokens=tokens).schedule().layers[0].budget.attention for tokens in (1, 1024, 9000)
    ]
    assert attention[0] < attention[1] == attention[2]


def rack() -> LpuRack:
    reach = {16: number(0.35e-6, "s"), 128: number(0.75e-6, "s"), 256: number(1.15e-6, "s")}
    return LpuRack(
        name="Groq 3 LPX",
        chip="lp30",
        chips=number(256),
        reach=reach,
        head_time=number(5e-6, "s"),
        host_time=number(30e-6, "s"),
    )


def test_a_group_has_the_reach_of_the_next_larger_size_of_the_ladder() -> None:
    found = [group_of(chip(), rack(), None, chips).reach_s for chips in (1, 16, 17, 128, 129, 256)]
    assert found == [0.35e-6, 0.35e-6, 0.75e-6, 0.75e-6, 1.15e-6, 1.15e-6]
    with pytest.raises(SpecError, match=r"Groq 3 LPX: reach: .* 257 chips; its table ends at 256"):
        group_of(chip(), rack(), None, 257)


def test_a_group_that_lost_chips_is_as_far_apart_as_it_was_built() -> None:
    left = group_of(chip(), rack(), None, 100, built=256)
    assert (left.chips, left.built, left.reach_s) == (100, 256, 1.15e-6)
    small, whole = (group_of(chip(), rack(), None, chips) for chips in (100, 256))
    assert (small.built, small.reach_s) == (100, 0.75e-6)
    step = gemma()._replace(options=ScheduleOptions(overlap=False))
    budgets = [step._replace(group=each).schedule().budget for each in (left, whole)]
    assert budgets[0].c2c == budgets[1].c2c
    assert budgets[0].weights > 2 * budgets[1].weights


def test_a_side_may_have_an_operation_time_of_its_own() -> None:
    side = LpuSide(
        rack="lpx",
        racks=number(1),
        chips_per_replica=number(128),
        replicas=number(2),
        usable_memory=number(0.9),
        operation_time=number(443e-9, "s"),
    )
    assert group_of(chip(), rack(), side, 128).operation_time_s == 443e-9
    assert group_of(chip(), rack(), None, 128).operation_time_s == 296e-9
