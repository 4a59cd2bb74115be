"""Models, groups of LPUs and steps, as they are on paper or drawn at random."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import (
    Decoder,
    DenseFfn,
    Drafter,
    ExpertFfn,
    Ffn,
    FullAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    SlidingAttention,
    StateSpace,
)
from agentload_simbackend._quantity import Quantity
from agentload_simbackend._schedule import StepSchedule, draft_schedule, step_schedule
from agentload_simbackend._schedule_group import Group
from agentload_simbackend._schedule_input import ScheduleOptions, StepInput
from agentload_simbackend._specs import LpuChip


def number(value: float, unit: str = "count") -> Quantity:
    return Quantity(value=value, unit=unit, kind="estimate", source="a test")


def decoder(hidden: int, *layers: LayerGroup, vocabulary: int = 262_144) -> Decoder:
    return Decoder(
        name="a model",
        hidden=number(hidden),
        vocabulary=number(vocabulary),
        tied_embeddings=True,
        max_context=number(262_144, "tokens"),
        parameters=number(1),
        active_parameters=number(1),
        weight_bytes=number(1, "B/parameter"),
        layers=layers,
    )


def layers(count: int, mixer: Mixer | None, ffn: Ffn | None) -> LayerGroup:
    return LayerGroup(count=number(count), mixer=mixer, ffn=ffn)


def full(query_heads: int, kv_heads: int, head_dim: int) -> FullAttention:
    return FullAttention(
        query_heads=number(query_heads), kv_heads=number(kv_heads), head_dim=number(head_dim)
    )


def sliding(query_heads: int, kv_heads: int, head_dim: int, window: int) -> SlidingAttention:
    return SlidingAttention(
        query_heads=number(query_heads),
        kv_heads=number(kv_heads),
        head_dim=number(head_dim),
        window=number(window, "tokens"),
    )


def latent(heads: int, *sizes: int) -> LatentAttention:
    """sizes: ranks of queries and keys, then the dimensions with, without position, and of values."""
    query_rank, kv_rank, rope_dim, nope_dim, value_dim = map(number, sizes)
    return LatentAttention(
        query_heads=number(heads),
        query_rank=query_rank,
        kv_rank=kv_rank,
        rope_dim=rope_dim,
        nope_dim=nope_dim,
        value_dim=value_dim,
    )


def state_space(heads: int, head_dim: int, state: int, groups: int, state_bytes: int) -> StateSpace:
    return StateSpace(
        heads=number(heads),
        head_dim=number(head_dim),
        state=number(state),
        groups=number(groups),
        state_bytes=number(state_bytes),
    )


def experts(
    count: int, active: int, inner: int, shared_inner: int, *, latent: int = 0, matrices: int = 3
) -> ExpertFfn:
    return ExpertFfn(
        experts=number(count),
        active_experts=number(active),
        inner=number(inner),
        shared_inner=number(shared_inner),
        latent=number(latent),
        matrices=number(matrices),
    )


def dense(inner: int, matrices: int = 3) -> DenseFfn:
    return DenseFfn(inner=number(inner), matrices=number(matrices))


def drafter(layers: int, hidden: int, parameters: float, kv_elements: int = 0) -> Drafter:
    return Drafter(
        name="a drafter",
        layers=number(layers),
        hidden=number(hidden),
        parameters=number(parameters),
        kv_elements_per_token=number(kv_elements),
    )


def chip(**changes: float) -> LpuChip:
    """An LP30 as its spec has it, but for `changes`."""
    values: dict[str, float] = {
        "sram": 500e6,
        "sram_bandwidth": 150e12,
        "fp8_flops": 1.2e15,
        "least_weight_bytes": 1,
        "clock": 1.5e9,
        "vector_bytes": 320,
        "c2c_bandwidth": 1.2e12,
        "c2c_links": 96,
        "exp_rate": 320e9,
        "sram_efficiency": 0.5,
        "gemm_efficiency": 0.3,
        "attention_efficiency": 0.25,
        "operation_time": 296e-9,
    }
    return LpuChip(name="a chip", **{key: number(value) for key, value in (values | changes).items()})


def group(chips: int, reach_s: float, **changes: float) -> Group:
    one = chip(**changes)
    return Group(one, chips, chips, one.c2c_links.whole, reach_s, one.operation_time.value, 5e-6, 30e-6)


class Step(NamedTuple):
    """All that a step's time hangs on."""

    model: Decoder
    drafter: Drafter
    group: Group
    batch: int
    tokens: int
    context_tokens: int
    weight_bytes: float
    kv_bytes: int
    split_attention: bool
    options: ScheduleOptions

    def asked(self) -> StepInput:
        return StepInput(
            self.batch,
            self.tokens,
            self.context_tokens,
            self.weight_bytes,
            self.kv_bytes,
            self.split_attention,
            self.options,
        )

    def schedule(self) -> StepSchedule:
        return step_schedule(ModelShape(self.model), self.group, self.asked())

    def draft(self) -> StepSchedule:
        return draft_schedule(self.drafter, self.group, self.asked())

    def both(self) -> tuple[StepSchedule, StepSchedule]:
        return self.schedule(), self.draft()

    def on_chip(self, **changes: float) -> Step:
        """The same on a chip of which some numbers are others."""
        replaced: dict[str, Any] = {
            name: getattr(self.group.chip, name).value for name in chip().__struct_fields__ if name != "name"
        }
        return self._replace(group=self.group._replace(chip=chip(**(replaced | changes))))


GEMMA = decoder(
    5376,
    layers(50, sliding(32, 16, 256, 1024), dense(21_504)),
    layers(
        10,
        FullAttention(
            query_heads=number(32), kv_heads=number(4), head_dim=number(512), shared_kv_projection=True
        ),
        dense(21_504),
    ),
)
GEMMA_MTP = drafter(4, 1024, 470e6)
REACH_S = {8: 0.35e-6, 16: 0.35e-6, 32: 0.75e-6, 64: 0.75e-6, 128: 0.75e-6, 256: 1.15e-6}


def gemma(chips: int = 256, batch: int = 1, context_tokens: int = 10_000, **changes: float) -> Step:
    """A step of Gemma 4 31B that verifies seven drafts."""
    lpus = group(chips, REACH_S[chips], **changes)
    options = ScheduleOptions()
    return Step(GEMMA, GEMMA_MTP, lpus, batch, 8, context_tokens * batch, 1, 1, False, options)


_sizes = st.integers(1, 512)
_heads = st.integers(1, 64)

_mixers = st.one_of(
    st.none(),
    st.builds(full, _heads, _heads, _sizes),
    st.builds(sliding, _heads, _heads, _sizes, st.integers(1, 5_000)),
    st.builds(latent, _heads, *[_sizes] * 5),
    st.builds(state_space, _heads, _sizes, _sizes, st.integers(1, 8), st.sampled_from([2, 4])),
)


@st.composite
def _experts(draw: st.DrawFn) -> ExpertFfn:
    count = draw(st.integers(1, 512))
    return experts(
        count,
        draw(st.integers(1, min(count, 32))),
        draw(st.integers(1, 8_000)),
        draw(st.sampled_from([0, 700, 5_376])),
        latent=draw(st.sampled_from([0, 1_024])),
        matrices=draw(st.sampled_from([2, 3])),
    )


_ffns = st.one_of(st.none(), st.builds(dense, st.integers(1, 30_000), st.sampled_from([2, 3])), _experts())


@st.composite
def _models(draw: st.DrawFn) -> Decoder:
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        mixer = draw(_mixers)
        ffn = draw(_ffns if mixer is not None else _ffns.filter(lambda ffn: ffn is not None))
        groups.append(layers(draw(st.integers(1, 60)), mixer, ffn))
    return decoder(draw(st.integers(1, 9_000)), *groups, vocabulary=draw(st.integers(1, 200_000)))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Any model on any group; small enough that each vector can be looked at."""
    lpus = group(
        draw(st.integers(1, 300)),
        draw(st.floats(0, 3e-6)),
        sram_bandwidth=draw(st.floats(1e10, 1e15)),
        fp8_flops=draw(st.floats(1e11, 1e16)),
        clock=draw(st.floats(1e8, 3e9)),
        vector_bytes=draw(st.sampled_from([32, 320, 500])),
        c2c_bandwidth=draw(st.floats(1e9, 1e13)),
        c2c_links=draw(st.integers(1, 128)),
        exp_rate=draw(st.floats(1e8, 1e12)),
        operation_time=draw(st.floats(0, 1e-6)),
    )
    return Step(
        draw(_models()),
        drafter(
            draw(st.integers(1, 6)),
            draw(st.integers(1, 3_000)),
            draw(st.floats(1, 3e9)),
            draw(st.sampled_from([0, 4_096])),
        ),
        lpus,
        draw(st.integers(1, 6)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 300_000)),
        draw(st.sampled_from([1, 0.5, 2])),
        draw(st.sampled_from([1, 2])),
        draw(st.booleans()),
        ScheduleOptions(draw(st.booleans()), draw(st.sampled_from([0.0, 2e-6]))),
    )
