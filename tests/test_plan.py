"""What a deployment comes to: memory, links, prefill, and replicas that have lost chips."""

from __future__ import annotations

import sys
from math import ceil

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from step_time_cases import NAMES, batches, chips_of, contexts, deployment, names

from agentload_simbackend import Deployment
from agentload_simbackend._plan import MemoryPool, build_plan, replica_plan
from agentload_simbackend._specs import GpuChip, LpuChip

GROWING_KV_HEADS = {
    "Llama 3.1 8B": 8,
    "Gemma 4 31B": 4,
    "GPT-OSS 120B": 8,
    "DeepSeek R1": 1,
    "Nemotron 3 Super 120B-A12B": 2,
}


def usable_bytes(base: Deployment, chips: int) -> dict[str, int]:
    """Usable memory of one replica's groups by kind."""
    spec, chip = base.spec, base.decode_chip
    memory = chip.sram if isinstance(chip, LpuChip) else chip.hbm
    kind = "SRAM" if isinstance(chip, LpuChip) else "HBM"
    usable = {kind: int(memory.value * chips * spec.decode.usable_memory.value)}
    if spec.attention is not None:
        assert base.prefill_chip is not None
        assert spec.prefill is not None
        share = spec.attention.gpus_per_replica.whole * spec.prefill.usable_memory.value
        usable["HBM"] = int(base.prefill_chip.hbm.value * share)
    if spec.draft is not None:
        assert base.draft_chip is not None
        share = spec.draft.lpus.chips_per_replica.whole * spec.draft.lpus.usable_memory.value
        usable["SRAM"] = int(base.draft_chip.sram.value * share)
    return usable


@pytest.mark.parametrize("name", NAMES)
def test_pools_conserve_bytes(name: str) -> None:
    """Weights are held once in all, and so is each token's KV and each stream's windows and states.

    But for GPUs with fewer KV heads than there are of them (latent attention: one): all have one.
    """
    base = deployment(name)
    pools = build_plan(base).replicas[0].pools
    usable = usable_bytes(base, chips_of(base))
    assert sorted(pool.name for pool in pools) == sorted(usable)
    parameters = base.model.parameters.value
    moved = base.shape.growing_mixer_parameters if base.mode == "afd" else 0
    weights = (parameters - moved) * base.stored_bytes(base.decode_chip)
    if base.prefill_chip is not None:
        weights += moved * base.stored_bytes(base.prefill_chip)
    held = sum(usable.values()) - sum(pool.capacity_bytes for pool in pools)
    drafts_on: GpuChip | LpuChip = base.draft_chip or base.decode_chip
    assert held == pytest.approx(weights + base.drafter_bytes(drafts_on), abs=4)
    gpus = base.spec.attention.gpus_per_replica.whole if base.spec.attention else chips_of(base)
    on_gpus = any(pool.name == "HBM" for pool in pools)
    copies = max(1.0, gpus / GROWING_KV_HEADS[base.model.name]) if on_gpus else 1.0
    assert sum(pool.bytes_per_token for pool in pools) == (
        copies * base.kv.bytes_per_token + base.drafter_kv_bytes_per_token
    )
    # Windows and states have heads enough.
    assert sum(pool.bytes_per_stream for pool in pools) == base.kv.fixed_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_alone_takes_what_fits(name: str) -> None:
    replica = build_plan(deployment(name)).replicas[0]
    most = replica.max_stream_tokens
    assert most >= min(100_000, deployment(name).max_context_tokens)

    def fits(tokens: int) -> bool:
        return all(
            pool.bytes_per_token * tokens + pool.bytes_per_stream <= pool.capacity_bytes
            for pool in replica.pools
        )

    assert fits(most)
    assert not fits(most + 1)


def test_streams_without_growing_kv_have_no_end() -> None:
    assert MemoryPool("SRAM", 10, 0, 4).max_stream_tokens == sys.maxsize
    assert MemoryPool("SRAM", 10, 1, 14).max_stream_tokens == 0


def test_afd_keeps_growing_kv_on_the_gpus_and_windows_on_the_lpus() -> None:
    base = deployment("gemma4-31b/afd")
    pools = {pool.name: pool for pool in build_plan(base).replicas[0].pools}
    assert (pools["HBM"].bytes_per_token, pools["HBM"].bytes_per_stream) == (40_960, 0)
    assert (pools["SRAM"].bytes_per_token, pools["SRAM"].bytes_per_stream) == (0, 419_430_400)


def test_an_external_drafter_keeps_its_own_kv_in_sram() -> None:
    base = deployment("gemma4-31b/drafter")
    pools = {pool.name: pool for pool in build_plan(base).replicas[0].pools}
    assert pools["HBM"].bytes_per_token == 2 * 40_960  # Eight GPUs hold each of four KV heads twice.
    assert pools["SRAM"].bytes_per_token == base.drafter_kv_bytes_per_token > 0
    assert pools["SRAM"].bytes_per_stream == 0


@pytest.mark.parametrize(("name", "streams"), [("gemma4-31b/pd", 6), ("gemma4-31b/pd-1replica", 18)])
def test_streams_of_100k_in_sram(name: str, streams: int) -> None:
    (pool,) = build_plan(deployment(name)).replicas[0].pools
    assert pool.capacity_bytes // (pool.bytes_per_token * 101_000 + pool.bytes_per_stream) == streams


@pytest.mark.parametrize("name", NAMES)
def test_who_prefills_and_what_links_there_are(name: str) -> None:
    base = deployment(name)
    plan = build_plan(base)
    assert len(plan.replicas) == base.spec.decode.replicas.whole
    for replica in plan.replicas:
        assert (replica.links is None) == (plan.prefill is None)
        assert (replica.chunked is None) == (plan.prefill is not None)
        assert not replica.spill
    if plan.prefill is not None:
        assert plan.prefill.cache_bytes > 0
        assert plan.prefill.instances == base.spec.prefill.instances.whole if base.spec.prefill else 0


def test_links_of_a_replica() -> None:
    rates = {
        "gemma4-31b/pd": 128 * 12.5 * 0.8,
        "gemma4-31b/pd-1replica": 256 * 12.5 * 0.8,
        "gemma4-31b/rubin": 8 * 1_800 * 0.8,
        "gemma4-31b/drafter": 8 * 1_800 * 0.8,
        # The slower of NVLink into the four GPUs and of the way to the LPX.
        "gemma4-31b/afd": min(4 * 1_800, 128 * 12.5) * 0.8,
    }
    for name, rate in rates.items():
        links = build_plan(deployment(name)).replicas[0].links
        assert links is not None
        assert links.bytes_per_ns == pytest.approx(rate)
        assert links.latency_ns == 5_000
    # Fewer chips have fewer lanes.
    smaller = replica_plan(deployment("gemma4-31b/pd"), 0, 100)
    assert smaller is not None
    assert smaller.links is not None
    assert smaller.links.bytes_per_ns == pytest.approx(100 * 12.5 * 0.8)


def test_host_memory_holds_prefixes() -> None:
    """Half of 750 GB for each of the 72 GPUs; an instance of 8 reads 8 x 450 GB/s."""
    prefill = build_plan(deployment("gemma4-31b/pd")).prefill
    assert prefill is not None
    assert prefill.host_cache_bytes == 72 * 375_000_000_000
    assert prefill.host_bytes_per_ns == pytest.approx(8 * 450)
    assert prefill.cache_block == 64


def test_spill_comes_last_and_decodes_as_rubin_does() -> None:
    base = deployment("gemma4-31b/pd-spill")
    replicas = build_plan(base).replicas
    assert [replica.spill for replica in replicas] == [False] * 2 + [True] * 4
    rubin = build_plan(deployment("gemma4-31b/rubin")).replicas[0]
    assert replicas[-1].pools == rubin.pools
    assert replicas[-1].steps.step(3, 300_000) == rubin.steps.step(3, 300_000)
    assert replicas[-1].links == replicas[0].links


@given(names, st.data())
def test_a_replica_that_lost_chips(name: str, data: st.DataObject) -> None:
    base, all_chips = deployment(name), chips_of(deployment(name))
    chips = data.draw(st.integers(-1, all_chips))
    replica = replica_plan(base, 0, chips)
    chip = base.decode_chip
    memory = chip.sram if isinstance(chip, LpuChip) else chip.hbm
    weights = base.weights_bytes(chip)
    if base.mode == "afd":
        weights -= int(base.shape.growing_mixer_parameters * base.stored_bytes(chip))
    if chips * memory.value * base.spec.decode.usable_memory.value <= weights:
        assert replica is None
        return
    if replica is None:  # what is left holds the weights, but no drafter or no stream
        return
    whole = build_plan(base).replicas[0]
    assert replica.chips == chips
    assert all(pool.capacity_bytes > 0 for pool in replica.pools)
    assert replica.max_stream_tokens <= whole.max_stream_tokens
    decode = {pool.name: pool.capacity_bytes for pool in replica.pools}
    for pool in whole.pools:
        assert decode[pool.name] <= pool.capacity_bytes


@given(names | st.just("gemma4-31b/pd-1replica"), batches, contexts, st.floats(0, 1), st.floats(0, 1))
@example("gemma4-31b/pd-1replica", 1, 10_000, 1.0, 0.5)
def test_fewer_chips_are_never_faster_and_hold_no_more(
    name: str, batch: int, context: int, left: float, again: float
) -> None:
    base = deployment(name)
    more = ceil(chips_of(base) * left)
    fewer = ceil(more * again)
    plans = [replica_plan(base, 0, chips) for chips in (fewer, more)]
    small, large = plans
    assume(small is not None)
    assert small is not None
    assert large is not None
    times = [each.steps.step(batch, batch * context)[0] for each in (small, large)]
    # Between knots lines stray by 1e-4 of the schedule, which itself never is faster.
    assert times[0] >= times[1] * (1 - 5e-4)
    assert small.max_stream_tokens <= large.max_stream_tokens
    for one, other in zip(small.pools, large.pools, strict=True):
        assert one.capacity_bytes <= other.capacity_bytes
        streams = [
            pool.capacity_bytes // max(pool.bytes_per_token * context + pool.bytes_per_stream, 1)
            for pool in (one, other)
        ]
        assert streams[0] <= streams[1]


def test_what_is_left_of_a_group_keeps_its_reach() -> None:
    """128 LPUs that are left of 256 are in the same rack as before, and hold the weights; 60 do not."""
    base = deployment("gemma4-31b/pd-1replica")
    left = {chips: replica_plan(base, 0, chips) for chips in (256, 128, 60)}
    assert left[60] is None
    times = {chips: each.steps.step(1, 1_000)[0] for chips, each in left.items() if each is not None}
    # Each has twice the arithmetic, some 5 us; with 0.4 us less for each exchange it would be 206 us faster.
    assert 3_000 < times[128] - times[256] < 12_000
