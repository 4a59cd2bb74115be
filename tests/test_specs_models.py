"""Model specs: what their layers add up to against what is published of each model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from engine_driving import SPECS

from agentload_simbackend import list_models, load_model
from agentload_simbackend._model import ModelShape
from agentload_traces import SpecError


class Published(NamedTuple):
    """Totals, elements that a token adds to the cache, windows (elements) and states (bytes) of a stream."""

    parameters: float
    active_parameters: float
    kv_elements: int
    window_elements: int = 0
    state_bytes: int = 0


PUBLISHED = {
    "llama-3.1-8b": Published(8_029_995_008, 7_504_658_432, 65_536),
    "llama-3.1-70b": Published(70_552_387_584, 69_501_714_432, 163_840),
    "gpt-oss-120b": Published(116_788_838_400, 5_131_100_160, 18_432, 2_359_296),
    "qwen3-235b-a22b": Published(235_092_836_352, 21_567_635_456, 96_256),
    "qwen3-coder-480b-a35b": Published(480_154_091_520, 34_540_486_656, 126_976),
    "deepseek-r1": Published(671_025_397_760, 36_624_596_992, 35_136),
    "kimi-k2": Published(1_026_407_202_816, 31_686_066_176, 35_136),
    "kimi-k2.5": Published(1_026_407_202_816, 31_686_066_176, 35_136),
    "nemotron-3-super-120b-a12b": Published(120_665_931_776, 12_230_590_464, 4_096, 0, 167_772_160),
    "nemotron-3-ultra-550b-a55b": Published(549_302_829_056, 54_978_936_832, 6_144, 0, 402_653_184),
    "gemma-4-31b": Published(30_696_013_824, 30_696_013_824, 40_960, 419_430_400),
    "gemma-4-26b-a4b": Published(25.2e9, 3.8e9, 10_240, 104_857_600),
    "qwen3-32b": Published(32.76e9, 31.98e9, 131_072),
}
"""Totals as the models' makers publish them or, exact, summed over the matrices of their configurations."""


def test_every_model_is_checked() -> None:
    assert sorted(PUBLISHED) == list_models()


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_add_up_to_what_is_published(name: str) -> None:
    model, published = load_model(name), PUBLISHED[name]
    shape = ModelShape(model)
    assert shape.parameters == pytest.approx(published.parameters, rel=0.005)
    active = shape.active_core_parameters + shape.head.parameters
    assert active == pytest.approx(published.active_parameters, rel=0.015)
    assert model.parameters.value == pytest.approx(published.parameters, rel=0.005)
    assert model.active_parameters.value == pytest.approx(published.active_parameters, rel=0.015)
    assert shape.kv_elements_per_token == published.kv_elements
    assert shape.window_elements_per_token * shape.window_tokens == published.window_elements
    assert shape.state_bytes == published.state_bytes


def test_published_formats() -> None:
    """Bytes per parameter of the whole model, from the formats of its parts."""
    experts = 36 * 128 * 3 * 2_880 * 2_880
    whole = PUBLISHED["gpt-oss-120b"].parameters
    mxfp4 = (experts * (4 + 8 / 32) / 8 + (whole - experts) * 2) / whole
    assert load_model("gpt-oss-120b").weight_bytes.value == pytest.approx(mxfp4, abs=5e-4)
    experts = 60 * 384 * 3 * 7_168 * 2_048
    whole = PUBLISHED["kimi-k2.5"].parameters
    int4 = (experts * (4 + 16 / 32) / 8 + (whole - experts) * 2) / whole
    assert load_model("kimi-k2.5").weight_bytes.value == pytest.approx(int4, abs=5e-4)


def test_a_checkpoint_names_one_model() -> None:
    names = [name for model in list_models() for name in load_model(model).checkpoints]
    assert len(set(names)) == len(names)
    measured = {
        "deepseek-ai/DeepSeek-R1",
        "meta-llama/Llama-3.1-70B",
        "Qwen/Qwen3-235B-A22B-FP8",
        "Qwen/Qwen3-32B",
    }
    assert measured <= set(names)


ONE = '{ value = 1, unit = "count", kind = "fact", source = "config" }'


@pytest.mark.parametrize(
    ("model", "old", "new", "message"),
    [
        ("gpt-oss-120b", "[[layers]]", "[[strata]]", "strata: unknown; there are type, name, checkpoints,"),
        ("gpt-oss-120b", "ffn.experts = { value = 128,", "ffn.experts = { value = 3,",
         "layers.1.ffn.active_experts: value is 4, must be at most the 3 experts"),
        ("gpt-oss-120b", "mixer.window = { value = 128,", "mixer.window = { value = 0,",
         "layers.1.mixer.window: value is 0 tokens, must be more than 0"),
        ("gpt-oss-120b", "ffn.matrices = { value = 3,", "ffn.matrices = { value = 4,",
         "layers.1.ffn.matrices: value is 4, must be 2, or 3 with a gate"),
        ("gpt-oss-120b", "mixer.kv_heads = { value = 8,", "mixer.kv_heads = { value = 7,",
         "layers.1.mixer.query_heads: value is 64, must be a multiple of the 7 kv_heads"),
        ("gpt-oss-120b", 'mixer.type = "sliding"', 'mixer.type = "sideways"',
         'layers.1.mixer.type: is "sideways", must be one of "full", "sliding", "latent", "state_space"'),
        ("gpt-oss-120b", "mixer.head_dim = { value = 64, unit", "mixer.head_dim = { value = 64, units",
         'layers.1.mixer.head_dim.units: unknown; did you mean unit?'),
        ("gpt-oss-120b", "count = { value = 18,", "count = { value = 1e9,",
         "layers: the counts sum to 1,000,000,018, must be at most 10,000"),
        ("gpt-oss-120b", "count = { value = 18,", "count = { value = 80,",
         "parameters: value is 116,788,838,400, but the layers, the embedding and the head add up to"),
        ("gpt-oss-120b", "active_parameters = { value = 5131100160,", "active_parameters = { value = 2e11,",
         "active_parameters: value is 200,000,000,000, must be at most the parameters, 116,788,838,400"),
        ("nemotron-3-super-120b-a12b", "[[layers]]", f"[[layers]]\ncount = {ONE}\n[[layers]]",
         "layers.1: must have a mixer, an ffn, or both"),
    ],
)  # fmt: skip
def test_a_wrong_model_gives_one_clear_line(
    tmp_path: Path, model: str, old: str, new: str, message: str
) -> None:
    text = (SPECS / f"models/{model}.toml").read_text()
    assert old in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_layers_that_cannot_be(tmp_path: Path) -> None:
    head, _, rest = (SPECS / "models/nemotron-3-super-120b-a12b.toml").read_text().partition("[[layers]]")
    mamba, moe, _ = rest.split("[[layers]]")
    gpt = (SPECS / "models/gpt-oss-120b.toml").read_text()
    none = head.replace("[sources]", "layers = []\n[sources]")
    texts = {
        "layers: must have at least one group, [[layers]]": none,
        "layers: none has attention, at least one must": f"{head}[[layers]]{mamba}[[layers]]{moe}",
        "layers: windows are 64, 128, must be one for all layers": gpt.replace(
            'mixer.type = "full"', 'mixer.type = "sliding"\nmixer.window = { value = 64, unit = "tokens", '
            'kind = "fact", source = "config" }'
        ),
    }  # fmt: skip
    path = tmp_path / "own.toml"
    for message, text in texts.items():
        path.write_text(text)
        with pytest.raises(SpecError) as caught:
            load_model(path)
        assert str(caught.value) == f"{path}: {message}"
