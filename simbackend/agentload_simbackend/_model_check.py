"""What a decoder's numbers must have to do with one another."""

from __future__ import annotations

from agentload_simbackend._model import ModelShape
from agentload_simbackend._model_specs import (
    Decoder,
    ExpertFfn,
    Ffn,
    FullAttention,
    LayerGroup,
    Mixer,
    SlidingAttention,
    StateSpace,
)
from agentload_traces import SpecError

_MOST_LAYERS = 10_000
"""More no static schedule is built for."""

_PARAMETERS_OFF = 0.2
"""Share by which the published parameters may differ from what the layers add up to (towers, MTP heads)."""


def check_model(model: Decoder, where: str) -> None:
    """Raise `SpecError` if the numbers of a decoder contradict one another; `where` is its file."""
    if not model.layers:
        raise SpecError(f"{where}: layers: must have at least one group, [[layers]]")
    for index, group in enumerate(model.layers, 1):
        _check_group(group, f"{where}: layers.{index}")
    layers = sum(group.count.whole for group in model.layers)
    if layers > _MOST_LAYERS:
        raise SpecError(f"{where}: layers: the counts sum to {layers:,}, must be at most {_MOST_LAYERS:,}")
    mixers = [group.mixer for group in model.layers if group.mixer is not None]
    if all(isinstance(mixer, StateSpace) for mixer in mixers):
        raise SpecError(f"{where}: layers: none has attention, at least one must")
    windows = sorted({mixer.window.whole for mixer in mixers if isinstance(mixer, SlidingAttention)})
    if len(windows) > 1:
        raise SpecError(
            f"{where}: layers: windows are {', '.join(map(str, windows))}, must be one for all layers"
        )
    _check_parameters(model, where)


def _check_parameters(model: Decoder, where: str) -> None:
    said, found = model.parameters.value, ModelShape(model).parameters
    if abs(said / found - 1.0) > _PARAMETERS_OFF:
        raise SpecError(
            f"{where}: parameters: value is {said:,.0f}, but the layers, the embedding and the head "
            f"add up to {found:,}"
        )
    if model.active_parameters.value > said:
        raise SpecError(
            f"{where}: active_parameters: value is {model.active_parameters.value:,.0f}, "
            f"must be at most the parameters, {said:,.0f}"
        )


def _check_group(group: LayerGroup, where: str) -> None:
    if group.mixer is None and group.ffn is None:
        raise SpecError(f"{where}: must have a mixer, an ffn, or both")
    if group.mixer is not None:
        _check_mixer(group.mixer, where)
    if group.ffn is not None:
        _check_ffn(group.ffn, where)


def _check_mixer(mixer: Mixer, where: str) -> None:
    if not isinstance(mixer, FullAttention | SlidingAttention):
        return
    query, kv = mixer.query_heads.whole, mixer.kv_heads.whole
    if query % kv:
        raise SpecError(
            f"{where}.mixer.query_heads: value is {query}, must be a multiple of the {kv} kv_heads"
        )


def _check_ffn(ffn: Ffn, where: str) -> None:
    if ffn.matrices.whole not in (2, 3):
        raise SpecError(f"{where}.ffn.matrices: value is {ffn.matrices.whole}, must be 2, or 3 with a gate")
    if isinstance(ffn, ExpertFfn) and ffn.active_experts.value > ffn.experts.value:
        raise SpecError(
            f"{where}.ffn.active_experts: value is {ffn.active_experts.whole}, "
            f"must be at most the {ffn.experts.whole} experts"
        )
