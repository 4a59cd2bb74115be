"""MODEL/MODE: sizes by arithmetic, racks, refusals, and what each mode says of itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from engine_driving import SPECS, variant, write_variant

from agentload_simbackend import MODES, derived_figures, list_models, load_deployment
from agentload_simbackend._fit import memory_needs, streams_that_fit
from agentload_simbackend._plan import build_plan
from agentload_simbackend._specs import LpuRack
from agentload_traces import SpecError

EVERY = [f"{model}/{mode}" for model in list_models() for mode in MODES]


@pytest.mark.parametrize("name", EVERY)
def test_every_model_loads_in_every_mode(name: str) -> None:
    deployment = load_deployment(name)
    assert deployment.mode == name.rpartition("/")[2]
    tokens = min(100_000, deployment.max_context_tokens)
    assert streams_that_fit(deployment, tokens) >= deployment.spec.decode.replicas.whole
    plan = build_plan(deployment)
    assert len(plan.replicas) == deployment.spec.decode.replicas.whole
    assert all(figure.value > 0 for figure in derived_figures(deployment))
    assert load_deployment(name).spec_sha256 == deployment.spec_sha256


@pytest.mark.parametrize("name", EVERY)
def test_lpu_groups_are_steps_of_the_reach_ladder_or_whole_racks(name: str) -> None:
    deployment = load_deployment(name)
    if deployment.model.name == "Gemma 4 31B":
        return  # Written out.
    tokens = min(100_000, deployment.max_context_tokens)
    for need in memory_needs(deployment):
        rack = deployment.draft_rack if need.side == "draft.lpus" else deployment.decode_rack
        if need.side in ("decode", "draft.lpus") and isinstance(rack, LpuRack):
            wanted = need.chips_for(tokens)
            whole = rack.chips.whole
            if wanted > whole:
                assert need.chips == min(-(-wanted // whole) * whole, max(rack.reach))
            else:
                assert need.chips == min(size for size in rack.reach if size >= wanted)
            assert need.chips <= need.rack_chips * need.racks


def test_both_names_of_a_written_out_model_mean_the_same() -> None:
    for mode in (*MODES, "pd-1replica", "pd-spill"):
        one, other = load_deployment(f"gemma-4-31b/{mode}"), load_deployment(f"gemma4-31b/{mode}")
        assert (one.name, one.spec_sha256) == (other.name, other.spec_sha256)


@pytest.mark.parametrize(
    ("model", "racks"),
    [
        ("gemma-4-26b-a4b", 0.22),
        ("llama-3.1-70b", 0.61),
        ("gpt-oss-120b", 1.01),
        ("qwen3-235b-a22b", 2.04),
        ("qwen3-coder-480b-a35b", 4.17),
        ("nemotron-3-ultra-550b-a55b", 4.77),
        ("deepseek-r1", 5.82),
        ("kimi-k2", 8.91),
    ],
)
def test_racks_that_weights_fill(model: str, racks: float) -> None:
    """At 0.9 of SRAM, in FP8: what publications say of LPX, and arithmetic on published totals."""
    deployment = load_deployment(f"{model}/pd")
    (need,) = (need for need in memory_needs(deployment) if need.side == "decode")
    assert need.weights_bytes / (need.chip_bytes * need.rack_chips) == pytest.approx(racks, abs=0.01)


def test_lpus_store_no_less_than_fp8() -> None:
    """An MXFP4 model grows from 0.558 bytes per parameter to 1 on LPUs, and stays as it is on GPUs."""
    deployment = load_deployment("gpt-oss-120b/pd")
    assert deployment.prefill_chip is not None
    assert deployment.weights_bytes(deployment.decode_chip) == 116_788_838_400
    assert deployment.weights_bytes(deployment.prefill_chip) == int(116_788_838_400 * 0.558)
    said = (
        "LP30 has no format narrower than 1 bytes per parameter: weights of 0.558 take 1.79 times as much on"
    )
    assert any(sentence.startswith(said) for sentence in deployment.conditions())


def own_deepseek(folder: Path, racks: int, chips: int) -> Path:
    """DeepSeek R1 without speculation on LPX racks, as a user's own file."""
    path = write_variant(
        folder,
        "deployments/gemma4-31b/pd-1replica",
        name="own",
        model="deepseek-r1",
        speculation=None,
        decode__racks=racks,
        decode__chips_per_replica=chips,
        decode__usable_memory=0.9,
    )
    return path.rename(folder / "own.toml")


def test_too_few_racks_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    path = own_deepseek(tmp_path, 1, 256)
    with pytest.raises(SpecError) as caught:
        load_deployment(path)
    assert str(caught.value) == (
        f"{path}: decode.chips_per_replica is 256, but weights (671.03 GB) and one token of KV need "
        "1,492 LPUs of 0.45 GB usable (0.9 x 0.5 GB): 5.83 racks of 256, and there is 1"
    )
    with pytest.raises(SpecError, match=r"5\.83 racks of 256, and there are 5$"):
        load_deployment(own_deepseek(tmp_path, 5, 1_280))
    deployment = load_deployment(own_deepseek(tmp_path, 6, 1_536))
    assert deployment.racks == [("Vera Rubin NVL72", 1), ("Groq 3 LPX", 6)]


def test_gpus_that_cannot_hold_a_model(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, "gemma4-31b/rubin", model="kimi-k2", decode__chips_per_replica=2)
    said = "weights and drafter (1,026.41 + 0.47 GB) and one token of KV need 4 GPUs of 259.2 GB usable"
    assert f"decode.chips_per_replica is 2, but {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("afd", {"prefill__instances": 9}, "prefill and attention take 80 chips (prefill 72 + attention 8), "
         "but Vera Rubin NVL72 has 72"),
        ("pd-spill", {"spill__replicas": 5}, "prefill and spill take 80 chips"),
        ("rubin", {"decode__replicas": 6}, "prefill and decode take 80 chips"),
        ("rubin-aggregated", {"decode__replicas": 10}, "decode takes 80 chips (decode 80)"),
        ("drafter", {"draft__lpus__replicas": 4}, "draft.lpus.replicas is 4, must be decode.replicas, 5"),
        ("drafter", {"draft__lpus__chips_per_replica": 64}, "draft.lpus takes 320 chips (5 x chips_per"),
        ("drafter", {"draft__lpus__chips_per_replica": 1}, "draft.lpus.chips_per_replica is 1, but the "
         "drafter (0.47 GB) and one token of KV need 2 LPUs"),
        ("drafter", {"speculation": None}, 'speculation: missing, mode "drafter" needs it'),
        ("drafter", {"speculation__drafter": "gemma-4-31b-mtp"}, "speculation.drafter: gemma-4-31b-mtp reads "
         "the target's KV"),
        ("drafter", {"draft": None}, 'draft: missing, mode "drafter" needs it'),
        ("afd", {"speculation": None, "attention__draft_crossings": 2}, "attention.draft_crossings is 2, "
         "must be 0: no drafter reads the target's KV"),
        ("afd", {"attention": None}, 'attention: missing, mode "afd" needs it'),
        ("afd", {"mode": "pd"}, 'split_link: mode "pd" has none, leave it out'),
        ("pd-spill", {"spill__rack": "other"}, 'spill.rack is "other", must be the prefill rack'),
        ("pd", {"prefill": None}, 'prefill: missing, mode "pd" needs it'),
        ("rubin", {"link": None}, "link: missing, needed with prefill"),
        ("rubin", {"prefill": None}, "prefill: missing, needed with link"),
        ("lpx", {"decode__prefill_chunk": None}, "decode.prefill_chunk: missing, the LPUs prefill too in"),
        ("lpx", {"decode__racks": 2_000}, "decode.racks is 2,000, must be at most 1,000"),
        ("pd", {"router__allowance__batch": None}, "router.allowance.batch: missing"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together(
    tmp_path: Path, base: str, changes: dict[str, float | str | None], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, f"gemma4-31b/{base}", **changes)
    assert f"{base}.toml: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma4-31b/rubin", ["Decode chip decode layer overhead = "]),
        ("gemma4-31b/rubin-aggregated", ["Decode chip decode layer overhead = ", "prefill chunk"]),
        ("gemma4-31b/drafter", ["Decode chip decode layer overhead = ", "Drafter layers = 4 is an estimate",
         "taken over for one that does not", "Draft token bytes = 4 B"]),
        ("gemma4-31b/pd-spill", ["Prefill chip decode layer overhead = ", "Spill replicas = 4"]),
        ("gemma4-31b/afd", ["Attention crossing overhead = 25 us is an estimate",
         "Attention micro batches = 1", "Split link latency = 5 us is an estimate"]),
        ("gemma4-31b/lpx", ["Decode prefill chunk = 1024 tokens is an estimate"]),
        ("deepseek-r1/pd", ["Decode racks = 6 is an estimate: weights alone take 5.82 of them",
         "Speculation draft tokens = 3 is an estimate"]),
        ("llama-3.1-70b/drafter", ["borrowed from Gemma 4 31B, fitted with its own MTP drafter: nothing"]),
        ("nemotron-3-super-120b-a12b/pd", ["Decode usable memory = 0.9 is an estimate"]),
    ],
)  # fmt: skip
def test_each_mode_says_its_own_estimates(name: str, said: list[str]) -> None:
    conditions = "\n".join(load_deployment(name).conditions())
    assert [words for words in said if words not in conditions] == []


def test_speeds_of_gpus_say_the_overhead_that_they_hang_on() -> None:
    for name in EVERY:
        deployment = load_deployment(name)
        for figure in derived_figures(deployment):
            if "speed" in figure.name or "step time" in figure.name:
                assert ("per layer" in figure.name) == (deployment.mode in ("rubin", "drafter"))


def test_without_published_speculation_a_step_yields_one_token() -> None:
    assert load_deployment("llama-3.1-70b/pd").acceptance_length == 1.0
    assert load_deployment("llama-3.1-70b/pd").draft_tokens == 0
    lengths = load_deployment("deepseek-r1/pd").spec.speculation
    assert lengths is not None
    assert lengths.acceptance_length["coding"].value == 2.76
    ten = [each.value for key, each in lengths.acceptance_length.items() if key != "general"]
    assert lengths.acceptance_length["general"].value == pytest.approx(sum(ten) / 10)


def test_own_models_go_through_every_mode(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((SPECS / "models/llama-3.1-70b.toml").read_text())
    for mode in MODES:
        deployment = load_deployment(f"{path}/{mode}")
        assert deployment.name == f"{tmp_path}/mine/{mode}"
        built_in = load_deployment(f"llama-3.1-70b/{mode}")
        assert [each.quantity.value for each in deployment.numbers()] == [
            each.quantity.value for each in built_in.numbers()
        ]


def test_a_model_too_large_for_any_group(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (SPECS / "models/kimi-k2.toml").read_text()
    text = text.replace("ffn.experts = { value = 384,", "ffn.experts = { value = 3840,")
    path.write_text(text.replace("{ value = 1026407202816,", "{ value = 10.16e12,", 1))
    with pytest.raises(SpecError) as caught:
        load_deployment(f"{path}/pd")
    assert str(caught.value) == (
        f"{tmp_path}/mine/pd: decode.chips_per_replica is 2,304, but weights (10,160.00 GB) and one token of "
        "KV need 22,578 LPUs of 0.45 GB usable (0.9 x 0.5 GB): 88.20 racks of 256, and there are 9"
    )


def test_contexts_shorter_than_the_figures() -> None:
    names = [figure.name for figure in derived_figures(load_deployment("qwen3-32b/pd"))]
    assert not any("100K" in name for name in names)
    assert "KV of a 40,960 tokens (the whole context) stream" in names


def test_groups_grow_with_streams_and_weights() -> None:
    """More weights or longer contexts never need fewer chips."""
    (need,) = (need for need in memory_needs(load_deployment("deepseek-r1/lpx")) if need.side == "decode")
    for tokens in (1, 10, 1_000, 163_840):
        assert need.chips_for(tokens) <= need.chips_for(tokens + 1)
        heavier = need._replace(weights_bytes=need.weights_bytes + 10**9)
        assert need.chips_for(tokens) <= heavier.chips_for(tokens)
        held = need._replace(chips=need.chips_for(tokens)).streams(tokens)
        assert held is not None
        assert held >= 1
        short = need._replace(chips=need.chips_for(tokens) - 1).streams(tokens)
        assert short is not None
        assert short < 1
    assert math.isclose(need.chip_bytes, 0.45e9)
