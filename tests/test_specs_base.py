"""Deployments that say only in what they differ from a built-in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_driving import SPECS, spec_content, spec_text

from agentload_simbackend import load_deployment
from agentload_traces import SpecError


def own(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_a_file_does_not_say_is_as_in_its_base(tmp_path: Path) -> None:
    path = own(tmp_path, 'base = "gemma4-31b/pd"\nname = "mine"\n[router]\nkv_policy = "keep"\n')
    mine, base = load_deployment(path), load_deployment("gemma4-31b/pd")
    assert (mine.name, mine.spec.router.kv_policy, base.spec.router.kv_policy) == ("mine", "keep", "evict")
    assert mine.spec.router.allowance == base.spec.router.allowance
    assert mine.spec.decode == base.spec.decode
    assert mine.spec_sha256 != base.spec_sha256


def test_a_base_may_be_a_model_in_a_mode(tmp_path: Path) -> None:
    number = '{ value = 2, unit = "count", kind = "estimate", source = "mine" }'
    path = own(tmp_path, f'base = "deepseek-r1/afd"\nname = "mine"\n[attention]\nmicro_batches = {number}\n')
    mine, base = load_deployment(path), load_deployment("deepseek-r1/afd")
    assert mine.spec.attention is not None
    assert base.spec.attention is not None
    assert (mine.spec.attention.micro_batches.value, base.spec.attention.micro_batches.value) == (2, 1)
    assert mine.spec.decode.chips_per_replica == base.spec.decode.chips_per_replica


def test_an_own_model_in_a_base_is_found_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not beside the current directory, where a smaller model of the same name would be sized too small."""
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    for folder, model in ((beside, "llama-3.1-70b"), (elsewhere, "llama-3.1-8b")):
        folder.mkdir()
        (folder / "my.toml").write_text((SPECS / f"models/{model}.toml").read_text())
    path = own(beside, 'base = "my.toml/pd"\nname = "mine"\n')
    monkeypatch.chdir(elsewhere)
    mine, built_in = load_deployment(path), load_deployment("llama-3.1-70b/pd")
    assert mine.model == built_in.model
    assert mine.spec.decode == built_in.spec.decode


def test_a_base_may_be_a_mode_alone(tmp_path: Path) -> None:
    path = own(
        tmp_path, spec_text({"base": "rubin"} | _without(spec_content("deployments/gemma4-31b/rubin")))
    )
    mine, whole = load_deployment(path), load_deployment("gemma4-31b/rubin")
    assert (mine.spec, mine.spec_sha256) == (whole.spec, whole.spec_sha256)


def _without(content: dict[str, Any]) -> dict[str, Any]:
    """A deployment's content but for what its mode gives."""
    return {key: value for key, value in content.items() if key not in ("mode", "router", "kv_bytes", "link")}


def test_a_base_may_have_a_base(tmp_path: Path) -> None:
    mine = load_deployment(own(tmp_path, 'base = "gemma4-31b/pd-spill"\nname = "mine"\nspill = false\n'))
    assert mine.spec.spill is None
    assert mine.spec.router == load_deployment("gemma4-31b/pd").spec.router


def test_short_names_of_sources_are_each_files_own(tmp_path: Path) -> None:
    """A file that calls something else `pr` does not change where the numbers of its base come from."""
    number = '{ value = 3, unit = "count", kind = "estimate", source = "pr" }'
    text = f'base = "gemma4-31b/pd"\nname = "mine"\n[sources]\npr = "mine"\n[prefill]\ninstances = {number}\n'
    mine, base = load_deployment(own(tmp_path, text)), load_deployment("gemma4-31b/pd")
    assert mine.spec.prefill is not None
    assert mine.spec.prefill.instances.source == "mine"
    assert mine.spec.speculation == base.spec.speculation


def test_false_leaves_a_part_of_the_base_out(tmp_path: Path) -> None:
    mine = load_deployment(own(tmp_path, 'base = "gemma4-31b/pd"\nname = "mine"\nspeculation = false\n'))
    assert (mine.draft_tokens, mine.acceptance_length, mine.drafter) == (0, 1.0, None)


def test_a_number_is_replaced_with_all_that_it_says(tmp_path: Path) -> None:
    number = '{ value = 0.9, unit = "fraction", kind = "estimate", source = "mine" }'
    mine = load_deployment(
        own(tmp_path, f'base = "gemma4-31b/pd"\nname = "mine"\n[decode]\nusable_memory = {number}\n')
    )
    usable = mine.spec.decode.usable_memory
    assert (usable.value, usable.kind, usable.note, usable.range) == (0.9, "estimate", None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('base = "gemma4-31b/nope"\nname = "mine"\n', "base: no deployment named 'gemma4-31b/nope'"),
        ('base = 3\nname = "mine"\n', "base: 3 is not the name of a deployment"),
        ('base = "other.toml"\nname = "mine"\n', "base: 'other.toml' is not the name of a deployment"),
        ('base = "gemma4-31b/pd"\n', "name: missing"),
        ('base = "gemma-5/pd"\nname = "mine"\n', "base: no deployment named 'gemma-5/pd'"),
        ('base = "nowhere.toml/pd"\nname = "mine"\n', "base: no such file: "),
        ('base = "pd"\nname = "mine"\n', "prefill.gpus_per_instance: missing, must be { value = ..., unit ="),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\n[decode]\nusable_memory = { value = 0.9 }\n',
            'decode.usable_memory.unit: missing, must be "fraction"',
        ),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\nspeculatoin = false\n',
            "speculatoin: unknown; did you mean spec",
        ),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\n[router]\nfoo = false\n',
            "router.foo: unknown; there are allowance",
        ),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\n[router]\nspeculation = false\n',
            "router.speculation: unknown; there are allowance",
        ),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\n[router.allowance]\nurgent = false\n',
            "router.allowance.urgent: is false, must be { value",
        ),
        (
            'base = "deepseek-r1/afd"\nname = "mine"\nmodel = "gpt-oss-120b"\n',
            'model: is "gpt-oss-120b", but the base is sized for "deepseek-r1"; '
            'write base = "gpt-oss-120b/afd" and leave model out',
        ),
        (
            'base = "deepseek-r1"\nname = "mine"\n',
            "base: deepseek-r1 is a model, not a deployment: write deep",
        ),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\nmodel = false\n',
            "own.toml: model: missing, must be a text",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = own(tmp_path, text)
    with pytest.raises(SpecError) as refused:
        load_deployment(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


OTHER_MODEL = """base = "gemma4-31b/pd"
name = "mine"
model = "llama-3.1-8b"
"""


def test_false_for_what_the_base_does_not_have_is_no_mistake(tmp_path: Path) -> None:
    path = own(
        tmp_path, 'base = "gemma4-31b/pd"\nname = "mine"\nspill = false\n[router]\nmost_waiting = false\n'
    )
    assert load_deployment(path).spec.router.most_waiting is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "",
            "summary: missing; with another model than the base's, gemma-4-31b, summary and speculation must",
        ),
        ("speculation = false\n", "summary: missing; "),
        ('summary = "Llama"\n', "speculation: missing; "),
        ('summary = "Llama"\n[speculation]\ncontent = "coding"\n', "speculation.drafter: missing"),
    ],
)
def test_another_model_inherits_neither_summary_nor_drafter(tmp_path: Path, more: str, said: str) -> None:
    path = own(tmp_path, OTHER_MODEL + more)
    with pytest.raises(SpecError) as refused:
        load_deployment(path)
    assert str(refused.value).startswith(f"{path}: {said}")


def test_another_model_on_the_racks_of_a_base(tmp_path: Path) -> None:
    path = own(tmp_path, OTHER_MODEL + 'summary = "Llama"\nspeculation = false\n')
    mine = load_deployment(path)
    assert (mine.summary, mine.drafter, mine.model.name) == ("Llama", None, "Llama 3.1 8B")


def test_the_model_of_the_base_may_be_said_again(tmp_path: Path) -> None:
    for base, model in (("gemma4-31b/pd", "gemma-4-31b"), ("deepseek-r1/afd", "deepseek-r1")):
        mine = load_deployment(own(tmp_path, f'base = "{base}"\nname = "mine"\nmodel = "{model}"\n'))
        assert mine.drafter == load_deployment(base).drafter
