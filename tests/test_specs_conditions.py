"""What a deployment says that its speeds hang on, and which numbers it counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_driving import SPECS, variant

from agentload_simbackend import load_deployment
from agentload_simbackend._fidelity_gpu_figures import gpu_rows


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma4-31b/rubin", ["o = 65 us a layer (fitted)", "K = 7, 3.85 tokens a step (fitted)"]),
        ("gemma4-31b/lpx", ["0.439 us an operation (fitted) on LPX", "K = 7, 3.87 tokens a step (fitted)"]),
        (
            "gemma4-31b/afd",
            [
                "0.439 us an operation (fitted) on LPX",
                "25 us a crossing (estimate)",
                "K = 7, 3.87 tokens a step (fitted)",
            ],
        ),
        (
            "gemma4-31b/drafter",
            [
                "o = 65 us a layer (fitted)",
                "0.292 us an operation (fitted) on LPX",
                "K = 7, 3.85 tokens a step (estimate)",
            ],
        ),
        (
            "gemma4-31b/pd-spill",
            [
                "o = 65 us a layer (fitted) where it spills",
                "0.439 us an operation (fitted) on LPX",
                "K = 7, 3.87 tokens a step (fitted)",
            ],
        ),
        ("llama-3.1-70b/pd", ["0.292 us an operation (fitted) on LPX", "one token a step"]),
    ],
)
def test_the_headline_says_what_speeds_hang_on(name: str, said: list[str]) -> None:
    deployment = load_deployment(name)
    assert deployment.headline() == "; ".join(said)
    assert deployment.conditions()[1] == f"Its speeds hang on: {deployment.headline()}."


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        (
            "gemma4-31b/pd",
            [
                "decode.chip.operation_time",
                "router.keep_time",
                "router.spill_after",
                "prefill.chip.fp4_flops",
            ],
        ),
        (
            "gemma4-31b/pd",
            ["decode.rack.reach.256", "prefill.chip.nvlink_efficiency", "prefill.chip.bf16_flops"],
        ),
        ("gemma4-31b/afd", ["prefill.chip.decode.layer_overhead", "decode.chip.operation_time"]),
        (
            "gemma4-31b/rubin",
            ["decode.chip.prefill.latency", "decode.rack.cpu_pool.cpus", "decode.chip.fp4_flops"],
        ),
        ("gemma4-31b/rubin-aggregated", ["decode.chip.host_memory"]),
        ("llama-3.1-70b/pd", ["model.weight_bytes"]),
        ("gpt-oss-120b/rubin", ["prefill.chip.fp8_flops"]),
        ("deepseek-r1/afd", ["attention.draft_crossings"]),
    ],
)
def test_what_takes_the_place_of_another_number_is_counted_alone(name: str, unused: list[str]) -> None:
    deployment = load_deployment(name)
    paths = [number.path for number in deployment.numbers()]
    assert set(paths) & set(unused) == set()
    assert f"of its {len(paths)} numbers" in deployment.conditions()[0]


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("gemma4-31b/pd", ["decode.operation_time", "decode.rack.reach.128", "prefill.rack.cpu_pool.cpus"]),
        ("gemma4-31b/pd-1replica", ["decode.rack.reach.256"]),
        ("gemma4-31b/pd-spill", ["router.spill_after", "prefill.chip.decode.layer_overhead"]),
        ("gemma4-31b/afd", ["prefill.chip.nvlink_efficiency", "attention.draft_crossings"]),
        ("gemma4-31b/rubin", ["decode.chip.decode.stream_overhead", "decode.chip.nvlink_bandwidth"]),
        ("gemma4-31b/rubin-aggregated", ["decode.chip.prefill.latency", "decode.rack.cpu_pool.cpus"]),
        ("kimi-k2/pd", ["decode.chip.operation_time", "decode.rack.reach.2304"]),
        ("gpt-oss-120b/rubin", ["prefill.chip.fp4_flops"]),
        ("llama-3.1-70b/pd", ["weight_bytes"]),
    ],
)
def test_what_nothing_takes_the_place_of_is_counted(name: str, used: list[str]) -> None:
    assert set(used) <= {number.path for number in load_deployment(name).numbers()}


def test_a_policy_that_keeps_contexts_uses_its_time(tmp_path: Path) -> None:
    keeping = variant(tmp_path, "gemma4-31b/pd", router__kv_policy="keep")
    assert "router.keep_time" in {number.path for number in keeping.numbers()}


@pytest.mark.parametrize(
    ("words", "said", "not_said"),
    [
        ("A group spans 6 racks: ", "deepseek-r1/pd", "gpt-oss-120b/lpx"),
        ("GPT-OSS-120B on GB200 was measured", "deepseek-r1/rubin", "deepseek-r1/pd"),
        ("GPT-OSS-120B on GB200 was measured", "kimi-k2/drafter", "llama-3.1-70b/rubin"),
        ("computed at the FP4 rate of Rubin", "gpt-oss-120b/pd", "deepseek-r1/pd"),
        ("borrowed from Gemma 4 31B", "llama-3.1-70b/drafter", "deepseek-r1/drafter"),
        ("draft crossings = 0 is an estimate: 0: LPX keeps a copy", "gemma-4-26b-a4b/afd", "deepseek-r1/afd"),
    ],
)
def test_limits_are_said_where_they_are_met(words: str, said: str, not_said: str) -> None:
    assert words in "\n".join(load_deployment(said).conditions())
    assert words not in "\n".join(load_deployment(not_said).conditions())


def test_what_is_said_of_models_with_experts_is_what_fidelity_finds() -> None:
    row = next(row for row in gpu_rows() if row.name == "GPT-OSS-120B FP4 on GB200, 1K/1K, TPOT")
    said = f"{row.published:g} ms a token at concurrency 1, where this form says {row.simulated:.2g},"
    assert said in "\n".join(load_deployment("kimi-k2/rubin").conditions())


def test_crossings_of_drafts_are_a_condition_of_attention_on_gpus() -> None:
    said = "Attention draft crossings = 0 is an estimate: 0: LPX keeps a copy of what the drafter reads"
    assert any(sentence.startswith(said) for sentence in load_deployment("gemma4-31b/afd").conditions())


def test_a_drafter_beside_the_model_does_no_better_than_its_own() -> None:
    for model in ("deepseek-r1", "kimi-k2.5", "gemma-4-26b-a4b"):
        own, beside = (load_deployment(f"{model}/{mode}") for mode in ("pd", "drafter"))
        assert beside.acceptance_length == own.acceptance_length
        assert beside.draft_tokens == own.draft_tokens
        assert beside.spec.speculation is not None
        assert beside.spec.speculation.drafter == "external-drafter"
        lengths = beside.spec.speculation.acceptance_length.values()
        assert all(length.kind == "estimate" and length.note for length in lengths)
        assert "borrowed" not in beside.summary
    borrowing = load_deployment("llama-3.1-70b/drafter")
    assert borrowing.summary.endswith("tokens a step borrowed from Gemma 4 31B")


def test_what_was_read_through_others_is_no_fact() -> None:
    lengths = load_deployment("deepseek-r1/pd").spec.speculation
    assert lengths is not None
    assert {length.kind for length in lengths.acceptance_length.values()} == {"estimate"}
    for path in (SPECS / "speculation").glob("*.toml"):
        text = path.read_text()
        assert "third party" not in text or 'kind = "fact"' not in text, path.stem


def test_tools_run_on_the_cpus_of_the_gpu_rack(tmp_path: Path) -> None:
    for name, slots in (("pd", 36 * 88), ("rubin-aggregated", 36 * 88), ("lpx", None)):
        assert load_deployment(f"gemma4-31b/{name}").tool_slots == slots
    ten = {"value": 10, "unit": "count", "kind": "estimate", "source": "mine"}
    for count, slots in ((10, 10), (0, None)):
        path = tmp_path / "own.toml"
        number = ", ".join(f"{key} = {value!r}" for key, value in (ten | {"value": count}).items())
        path.write_text(
            f'base = "gemma4-31b/pd"\nname = "mine"\ntool_slots = {{ {number} }}\n'.replace("'", '"')
        )
        stated = load_deployment(path)
        assert stated.tool_slots == slots
        assert not [number for number in stated.numbers() if ".cpu_pool." in number.path]


def test_the_longest_stream_is_that_of_the_largest_replica() -> None:
    pd, spill = (load_deployment(f"gemma4-31b/{name}") for name in ("pd", "pd-spill"))
    assert 600_000 < pd.max_stream_tokens < 700_000
    assert spill.max_stream_tokens > 20_000_000
