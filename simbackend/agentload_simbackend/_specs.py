"""The shapes of the spec files for hardware and deployments; models are in `_model_specs`.

Every number is a `Quantity`; names of other files are plain strings. A spec's `sources` gives short names
for the sources of its numbers; the loader puts the whole text into each number.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from agentload_simbackend._quantity import (
    Bytes,
    BytesPerElement,
    BytesPerParameter,
    BytesPerSecond,
    Count,
    CountOrZero,
    DraftTokens,
    Flops,
    Fraction,
    PerSecond,
    Seconds,
    Spread,
    Tokens,
    TokensPerStep,
)

Mode = Literal["rubin", "lpx", "pd", "afd", "drafter"]
"""Who does what.

rubin: an NVL72 alone. lpx: an LPX alone, prefill too. pd: Rubin prefills, LPX decodes. afd: attention over
the context and its KV on Rubin, the rest of each layer on LPX. drafter: LPX drafts, Rubin verifies.
"""

MODES: tuple[Mode, ...] = get_args(Mode)

KvPolicy = Literal["evict", "keep", "drop"]
"""What becomes of a context's KV in a decode replica between its turns.

evict: it stays until somebody needs the room, least recently used first. keep: it stays for `keep_time` at
least, and others wait. drop: it goes at once, and every turn pays the hand-off.
"""


class LpuChip(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lpu"
):
    """A chip that computes from SRAM, to a schedule.

    least_weight_bytes: of its narrowest format; what is published narrower grows to it.
    clock: cycles of the static schedule. vector_bytes: the unit in which results leave.
    c2c_bandwidth: usable and per direction, over `c2c_links` links. exp_rate: exponentials a second.
    operation_time: what each dependent operation of a layer takes besides its arithmetic.
    """

    name: str
    sram: Bytes
    sram_bandwidth: BytesPerSecond
    fp8_flops: Flops
    least_weight_bytes: BytesPerParameter
    clock: PerSecond
    vector_bytes: Bytes
    c2c_bandwidth: BytesPerSecond
    c2c_links: Count
    exp_rate: PerSecond
    sram_efficiency: Fraction
    gemm_efficiency: Fraction
    attention_efficiency: Fraction
    operation_time: Seconds


class GpuPrefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prefill on a GPU: the MFU of its matrix products, a constant latency, and the tokens of a chunk.

    layer_overhead: the part of the latency that each layer of a dense model has, where it was fitted.
    """

    flops_efficiency: Fraction
    latency: Seconds
    chunk: Tokens
    layer_overhead: Seconds | None = None


class GpuDecode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decode on a GPU: the part of HBM bandwidth it reaches, and a fixed time per layer.

    stream_overhead: of each step for every stream of its batch (scheduling, sampling), where it was fitted.
    """

    hbm_efficiency: Fraction
    layer_overhead: Seconds
    stream_overhead: Seconds | None = None


class GpuChip(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="gpu"
):
    """A chip that computes from HBM. A format that it lacks has no FLOP/s; the next wider one is used.

    attention_flops: of scores and values, where that is not `bf16_flops`.
    host_memory: of a CPU that one GPU can use for its prefix cache, over `host_bandwidth` per direction.
    nvlink_bandwidth: per direction; exchanges between the GPUs of a group reach `nvlink_efficiency` of it.
    """

    name: str
    hbm: Bytes
    hbm_bandwidth: BytesPerSecond
    bf16_flops: Flops
    fp8_flops: Flops | None = None
    fp4_flops: Flops | None = None
    attention_flops: Flops | None = None
    least_weight_bytes: BytesPerParameter
    host_memory: Bytes | None = None
    host_bandwidth: BytesPerSecond | None = None
    nvlink_bandwidth: BytesPerSecond | None = None
    nvlink_efficiency: Fraction | None = None
    prefill: GpuPrefill
    decode: GpuDecode


class LpuRack(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lpu"
):
    """A rack of LPUs. `reach` gives the SRAM-to-SRAM latency of a group of at most so many chips."""

    name: str
    chip: str
    chips: Count
    reach: dict[int, Seconds]
    head_time: Seconds
    host_time: Seconds


class CpuPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPUs of a rack; they run tools, one on each core, where a deployment states no `tool_slots`."""

    cpus: Count
    cores_per_cpu: Count


class GpuRack(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="gpu"
):
    """A rack of GPUs in one NVLink domain."""

    name: str
    chip: str
    chips: Count
    cpu_pool: CpuPool | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What crosses between two sides; a group of n chips has n times `bandwidth_per_chip`, shared evenly."""

    name: str
    bandwidth_per_chip: BytesPerSecond
    efficiency: Fraction
    latency: Seconds


class PrefillSide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prefill pool: so many groups of GPUs that share one prefix cache.

    host_cache: share of the chips' host memory that holds what the HBM has no room for (0: none).
    """

    rack: str
    gpus_per_instance: Count
    instances: Count
    usable_memory: Fraction
    host_cache: Spread
    cache_block: Tokens


class LpuSide(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lpu"
):
    """LPUs of one or more racks: `replicas` copies, each over a tensor-parallel group of one kind.

    racks: how many there are. operation_time: in place of the chip's, where a fit was made for this group.
    prefill_chunk: tokens of a chunk where the LPUs prefill too.
    """

    rack: str
    racks: Count
    chips_per_replica: Count
    replicas: Count
    usable_memory: Fraction
    operation_time: Seconds | None = None
    prefill_chunk: Tokens | None = None


class GpuSide(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="gpu"
):
    """GPUs of one rack: `replicas` copies, each over a tensor-parallel group."""

    rack: str
    chips_per_replica: Count
    replicas: Count
    usable_memory: Fraction


class AttentionSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention on Rubin, the rest on LPX (mode afd): one group of GPUs for each decode replica.

    crossing_overhead: fixed time of the GPUs for each layer that crosses. micro_batches: parts of a batch
    that take turns on the two sides (1: none). activation_bytes: of an element that crosses.
    draft_crossings: how many times a draft token crosses to read the target's KV, if its drafter does (0: LPX
        holds what the drafter reads).
    """

    gpus_per_replica: Count
    crossing_overhead: Seconds
    micro_batches: Count
    activation_bytes: BytesPerElement
    draft_crossings: CountOrZero | None = None


class DraftSide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LPUs that draft for a Rubin that verifies (mode drafter): one group for each decode replica.

    token_bytes: what one draft token is on the link, each way.
    """

    lpus: LpuSide
    token_bytes: Bytes


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: K draft tokens a step, and how many tokens a step yields by content class.

    content: the class of `acceptance_length` of a request that names none.
    prompt_cv: standard deviation between prompts over the mean.
    """

    drafter: str
    content: str
    draft_tokens: DraftTokens
    acceptance_length: dict[str, TokensPerStep]
    prompt_cv: Spread


class RouterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests are ordered and placed.

    allowance: for each latency class (interactive, standard, batch), by how much later than it came a request
        counts: the earliest goes first, so none waits for ever.
    kv_policy, keep_time: see `KvPolicy`.
    most_waiting: requests that may wait for a slot before others get 429 (`None`: without limit).
    retry_after: what a 429 tells.
    spill_after: a request that waited so long for LPX is served by the spill side, if there is one.
    """

    allowance: dict[str, Seconds]
    kv_policy: KvPolicy
    keep_time: Seconds
    most_waiting: Count | None = None
    retry_after: Seconds
    spill_after: Seconds


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to serve one model. Without `speculation` a step yields exactly one token.

    link: between prefill and decode; without `prefill` (mode lpx) there is none.
    split_link: what activations or draft tokens cross (afd, drafter).
    weight_bytes: as stored, where it is not what the model is published in; a chip may need more.
    spill: GPUs that decode what LPX has no room for (mode pd).
    tool_slots: tools that run at a time on the CPUs beside the racks (0: any number); not stated, one on each
        core of the GPU rack's `cpu_pool`.
    """

    name: str
    mode: Mode
    summary: str
    model: str
    weight_bytes: BytesPerParameter | None = None
    kv_bytes: BytesPerElement
    prefill: PrefillSide | None = None
    link: str | None = None
    decode: LpuSide | GpuSide
    split_link: str | None = None
    attention: AttentionSplit | None = None
    draft: DraftSide | None = None
    spill: GpuSide | None = None
    speculation: Speculation | None = None
    router: RouterSpec
    tool_slots: CountOrZero | None = None
