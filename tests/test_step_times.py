"""Step times against the calibration on paper, and the arithmetic of piecewise linear times."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_time_cases import FAMILIES, deployment, with_part, with_spec, with_values, without_speculation

from agentload_simbackend import Deployment
from agentload_simbackend._gpu_layers import dense_layers, dense_prefill_layers
from agentload_simbackend._gpu_step import gpu_step
from agentload_simbackend._gpu_terms import format_flops
from agentload_simbackend._pieces import (
    Piece,
    Pieces,
    added,
    for_share,
    interpolated,
    largest,
    line,
    progression_ns,
    scaled,
    value_ns,
)
from agentload_simbackend._prefill_time import PrefillModel
from agentload_simbackend._spec_files import SpecFiles
from agentload_simbackend._specs import GpuChip, LpuSide
from agentload_simbackend._step_time import gpu_group, step_model

US = 1_000
B200 = SpecFiles().read("chip", "chips", "b200-sxm", GpuChip)[0]


def rubin(chips: int, **chip: float) -> Deployment:
    base = with_spec(deployment("gemma4-31b/rubin"), decode__chips_per_replica=chips)
    return with_part(base, "decode_chip", **chip)


@pytest.mark.parametrize(
    ("chips", "bandwidth", "overhead_s", "at_10k", "at_100k"),
    [
        (1, 19.2e12, 65e-6, 168, 161),
        (8, 19.2e12, 65e-6, 240, 239),
        (1, 22e12, 12e-6, 398, 368),
        (8, 22e12, 12e-6, 1_059, 1_031),
    ],
)
def test_rubin_without_speculation(
    chips: int, bandwidth: float, overhead_s: float, at_10k: float, at_100k: float
) -> None:
    base = rubin(chips, hbm_bandwidth=bandwidth, decode__layer_overhead=overhead_s)
    model = step_model(without_speculation(base))
    found = [1e9 / model.step(1, context)[0] for context in (10_000, 100_000)]
    # On paper eight GPUs split the growing KV eight ways; here they hold each of four heads twice.
    copies = max(chips / 4, 1) - 1
    copied_s = [copies * context * 40_960 / (chips * bandwidth * 0.8) for context in (10_000, 100_000)]
    # Nor does a stream take a time of its own there, or two exchanges of each layer.
    more_s = 3.11e-5 + 120 * 2 * 5_376 * 2 * (chips - 1) / chips / (1.8e12 * 0.516)
    expected = [
        1 / (1 / speed + more_s + copy_s) for speed, copy_s in zip((at_10k, at_100k), copied_s, strict=True)
    ]
    # On paper W + KV has no output head of its own; 2 tokens/s are half a percent.
    assert found == pytest.approx(expected, rel=0.006)


@pytest.mark.parametrize(
    ("batch", "per_user"), [(1, 3_393), (2, 3_275), (4, 3_061), (8, 2_707), (12, 2_426), (16, 2_199)]
)
def test_batch_slows_each_stream_as_on_paper(batch: int, per_user: int) -> None:
    """The schedule lets exchanges begin before a product is done, which the sum on paper does not."""
    model = step_model(deployment("gemma4-31b/pd-1replica"))
    found = 3.856e9 / model.step(batch, batch * 100_000)[0]
    assert found == pytest.approx(per_user, rel=0.015)


@pytest.mark.parametrize("name", ["gemma4-31b/pd", "gemma4-31b/pd-1replica"])
def test_step_of_a_short_prompt(name: str) -> None:
    """What 4,767 tokens/s come to at an acceptance length of 5.37: 1,126 us."""
    assert step_model(deployment(name)).step(1, 513)[0] == pytest.approx(1_126.5 * US, rel=0.002)


def test_modes_at_100k_in_order_and_size() -> None:
    """TP4 for what Rubin does, one rack of LPUs, acceptance length 3.856: 1 : 1.4 : 4.3 : 5.8 on paper."""
    alone = rubin(4)
    drafter = with_spec(deployment("gemma4-31b/drafter"), decode__chips_per_replica=4)
    afd = with_spec(deployment("gemma4-31b/afd"), decode__chips_per_replica=256, attention__micro_batches=1)
    lpx = deployment("gemma4-31b/pd-1replica")
    assert isinstance(lpx.spec.decode, LpuSide)
    assert lpx.spec.decode.operation_time is not None
    afd = with_spec(afd, decode__operation_time=lpx.spec.decode.operation_time.value)
    speeds = [3.856e9 / step_model(each).step(1, 100_000)[0] for each in (alone, drafter, afd, lpx)]
    assert speeds == sorted(speeds)
    # Rubin alone has 585 on paper, with 40 us more for each draft token; see simbackend/README.md.
    assert speeds[0] == pytest.approx(608, rel=0.01)
    assert speeds[2] == pytest.approx(2_540, rel=0.04)
    assert speeds[3] == pytest.approx(3_393, rel=0.01)


def test_an_external_drafter_takes_k_drafts_and_a_way_there_and_back() -> None:
    base = with_spec(deployment("gemma4-31b/drafter"), decode__chips_per_replica=4)
    far = with_part(base, "split_link", latency=105e-6)
    near_ns, far_ns = (step_model(each).step(1, 100_000)[0] for each in (base, far))
    assert far_ns - near_ns == pytest.approx(200 * US)
    # 4 bytes for each of 7 tokens of 16 streams cost next to nothing; a million of them do.
    heavy = with_spec(base, draft__token_bytes=4e6)
    link_bytes_per_s = 12.5e9 * 0.8 * base.spec.draft.lpus.chips_per_replica.whole if base.spec.draft else 0.0
    slower_ns = step_model(heavy).step(16, 16_000)[0] - step_model(base).step(16, 16_000)[0]
    assert slower_ns == pytest.approx(2 * 7 * 16 * (4e6 - 4) / link_bytes_per_s * 1e9, rel=1e-6)


def test_each_growing_layer_crosses_once() -> None:
    base = without_speculation(deployment("gemma4-31b/afd"))
    before_ns = step_model(base).step(1, 1_000)[0]
    far = step_model(with_part(base, "split_link", latency=15e-6)).step(1, 1_000)[0]
    assert far - before_ns == pytest.approx(10 * 2 * 10 * US)
    busy = step_model(with_spec(base, attention__crossing_overhead=35e-6)).step(1, 1_000)[0]
    assert busy - before_ns == pytest.approx(10 * 10 * US)


def test_a_drafter_that_reads_the_targets_kv_crosses_for_each_draft() -> None:
    """Seven drafts, each with two crossings of 5 us there and back and 25 us on the GPUs, and its bytes."""
    none = deployment("gemma4-31b/afd")
    assert none.spec.attention is not None
    absent = msgspec.structs.replace(none.spec.attention, draft_crossings=None)
    without = dataclasses.replace(none, spec=msgspec.structs.replace(none.spec, attention=absent))
    two = with_spec(none, attention__draft_crossings=2)
    for batch in (1, 16):
        zero_ns, absent_ns, two_ns = (
            step_model(each).step(batch, 1_000 * batch)[0] for each in (none, without, two)
        )
        assert absent_ns == zero_ns
        bytes_ns = 2 * 1_024 * 2 * batch / (128 * 12.5 * 0.8)
        assert two_ns - zero_ns == pytest.approx(7 * 2 * (35 * US + bytes_ns))
    silent = [without_speculation(each) for each in (none, two)]
    assert len({step_model(each).step(1, 1_000)[0] for each in silent}) == 1


def test_micro_batches_hide_the_other_side() -> None:
    """Four streams in four parts take as long as the slowest of a side and of one part's whole way."""
    base = deployment("gemma4-31b/afd")
    whole, parts = (step_model(with_spec(base, attention__micro_batches=count)) for count in (1, 4))
    assert parts.step(1, 100_000)[0] == whole.step(1, 100_000)[0]
    assert parts.step(4, 400_000)[0] == pytest.approx(whole.step(1, 100_000)[0])
    assert parts.step(4, 400_000)[0] < 0.9 * whole.step(4, 400_000)[0]


def test_a_format_that_a_chip_lacks_is_computed_in_the_next_wider() -> None:
    chip = deployment("gemma4-31b/rubin").decode_chip
    assert isinstance(chip, GpuChip)
    assert [format_flops(chip, width) for width in (0.5, 0.6, 1, 2)] == [35e15, 35e15, 17.5e15, 4e15]
    older = GpuChip(**{name: getattr(chip, name) for name in chip.__struct_fields__ if name != "fp4_flops"})
    assert format_flops(older, 0.5) == 17.5e15


@pytest.mark.parametrize(
    ("family", "operations"),
    [
        ("dense", 32 * 7),
        ("sliding window", 60 * 7),
        ("mixture of experts", 36 * (4 + 4)),
        # Three products before the scores and two after; three dense layers, a shared network in the others.
        ("latent attention", 61 * 7 + 3 * 3 + 58 * 6),
        # The experts' latent space, in and out.
        ("hybrid", 40 * 4 + 40 * 8 + 8 * 4),
    ],
)
def test_layers_count_by_their_dependent_operations(family: str, operations: int) -> None:
    assert dense_layers(deployment(f"{FAMILIES[family]}/rubin").shape) == pytest.approx(operations / 7)


@pytest.mark.parametrize(
    ("family", "launches"),
    [
        ("dense", 32 * 11),
        ("mixture of experts", 36 * (6 + 11)),
        ("latent attention", 61 * 12 + 3 * 5 + 58 * (11 + 4)),
        ("hybrid", 40 * 9 + 40 * (11 + 4 + 2) + 8 * 6),
    ],
)
def test_layers_count_in_a_prefill_by_their_launches(family: str, launches: int) -> None:
    shape = deployment(f"{FAMILIES[family]}/rubin").shape
    assert dense_prefill_layers(shape) == pytest.approx(launches / 11)


def test_what_was_fitted_for_a_gpu_counts() -> None:
    """80 layers of Llama 3.1 70B with two exchanges each, on eight B200."""
    base = deployment("llama-3.1-70b/rubin")
    chip = with_values(B200, nvlink_efficiency=0.5, decode__stream_overhead=2e-5)
    chip = with_values(chip, prefill__layer_overhead=1.25e-3)
    group = gpu_group(base, 8)._replace(chip=chip)
    token_s = 160 * 2 * 8_192 * 2 * 7 / 8 / (9e11 * 0.5)
    decode = msgspec.structs.replace(chip.decode, stream_overhead=None)
    bare = msgspec.structs.replace(chip, decode=decode, nvlink_bandwidth=None, nvlink_efficiency=None)
    found = [gpu_step(base.shape, group._replace(chip=each), batch=5, tokens=3) for each in (chip, bare)]
    expected_s = 15 * token_s + 5 * 2e-5
    assert value_ns(found[0], 1e5) - value_ns(found[1], 1e5) == pytest.approx(expected_s * 1e9)
    assert PrefillModel(base.shape, group).latency_ns == 80 * 1_250_000


@pytest.mark.parametrize(("model", "heads"), [("gemma-4-31b", 4), ("deepseek-r1", 1), ("llama-3.1-8b", 8)])
def test_each_gpu_reads_one_kv_head_at_least(model: str, heads: int) -> None:
    base = without_speculation(deployment(f"{model}/rubin"))
    per_token = {
        chips: gpu_step(base.shape, gpu_group(base, chips), batch=1, tokens=1)[-1].growth_ns
        for chips in (2, 4, 8)
    }
    for chips, growth_ns in per_token.items():
        bytes_each = base.kv.bytes_per_token / min(chips, heads)
        assert growth_ns == pytest.approx(bytes_each / (19.2e12 * 0.8) * 1e9)


@pytest.mark.parametrize(("model", "computing"), [("llama-3.1-8b", False), ("deepseek-r1", True)])
def test_verified_tokens_share_one_reading_of_the_kv(model: str, computing: bool) -> None:
    """Latent attention computes much on each byte: for eight tokens that takes longer than reading."""
    base = deployment(f"{model}/rubin")
    group = gpu_group(base, 2)._replace(chip=B200)
    one, eight = (gpu_step(base.shape, group, batch=3, tokens=tokens)[-1].growth_ns for tokens in (1, 8))
    if computing:
        rate = 2 * 2.25e15 * B200.prefill.flops_efficiency.value
        mixers = [(kind.count, kind.mixer) for kind in base.shape.kinds if kind.mixer is not None]
        flops = sum(count * mixer.flops_per_key for count, mixer in mixers if mixer.grows)
        assert eight == pytest.approx(8 * flops / rate * 1e9)
        assert eight > one
    else:
        assert eight == one


def test_a_power_cap_slows_every_step() -> None:
    model = step_model(deployment("gemma4-31b/pd"))
    slow = model.slowed(1.25)
    for batch, context in ((1, 0), (3, 50_000), (12, 1_200_000)):
        time_ns, growth_ns, until_tokens = model.step(batch, context)
        assert slow.step(batch, context) == (1.25 * time_ns, 1.25 * growth_ns, until_tokens)


pieces = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 10), st.floats(1, 1e5)), min_size=1, max_size=5
).map(lambda drawn: _pieces(drawn))


def _pieces(drawn: list[tuple[float, float, float]]) -> Pieces:
    """Continuous pieces from (height at 0, growth, length); only the first height counts."""
    made, start, height = [], 0.0, drawn[0][0]
    for _, growth, length in drawn:
        made.append(Piece(height - growth * start, growth, start + length))
        height += growth * length
        start += length
    made[-1] = made[-1]._replace(until_tokens=math.inf)
    return tuple(made)


@given(pieces, pieces, pieces, st.floats(0, 1e6))
def test_sum_and_maximum_are_those_of_the_values(a: Pieces, b: Pieces, c: Pieces, context: float) -> None:
    values = [value_ns(each, context) for each in (a, b, c)]
    assert value_ns(added(a, b, c), context) == pytest.approx(sum(values), rel=1e-9, abs=1e-6)
    assert value_ns(largest(a, b, c), context) == pytest.approx(max(values), rel=1e-9, abs=1e-6)
    assert value_ns(scaled(a, 2.5), context) == pytest.approx(2.5 * values[0])


@given(pieces, pieces)
def test_pieces_follow_one_another(a: Pieces, b: Pieces) -> None:
    for made in (added(a, b), largest(a, b)):
        ends = [piece.until_tokens for piece in made]
        assert ends == sorted(set(ends))
        assert ends[-1] == math.inf


@given(pieces, st.floats(0.01, 1), st.floats(0, 1e6))
def test_a_part_of_a_batch_has_its_share_of_the_context(a: Pieces, share: float, context: float) -> None:
    assert value_ns(for_share(a, share), context) == pytest.approx(
        value_ns(a, context * share), rel=1e-9, abs=1e-6
    )


@given(pieces, st.floats(0, 1e5), st.floats(1, 1e4), st.integers(0, 50))
def test_a_progression_is_the_sum_of_its_values(a: Pieces, first: float, spacing: float, count: int) -> None:
    expected = sum(value_ns(a, first + spacing * index) for index in range(count))
    assert progression_ns(a, first, spacing, count) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(1e-3, 1), st.floats(0, 1e-6)), min_size=1, max_size=6),
    st.integers(1, 10_000_000),
    st.data(),
)
def test_lines_between_knots_of_a_convex_time_stray_little(
    lines: list[tuple[float, float]], most: int, data: st.DataObject
) -> None:
    def time_s(context_tokens: float) -> float:
        return max(base + growth * context_tokens for base, growth in lines)

    made = interpolated(time_s, most)
    context = data.draw(st.integers(0, most))
    assert value_ns(made, context) == pytest.approx(time_s(context) * 1e9, rel=1e-3)


def test_a_line_is_one_piece() -> None:
    (made,) = interpolated(lambda context: 1e-3 + 1e-9 * context, 1_000_000)
    assert list(made) == pytest.approx(list(line(1e-3, 1e-9)[0]))
