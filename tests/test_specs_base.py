"""Deployments that say only in what they differ from a built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest

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
        ('base = 3\nname = "mine"\n', "base: 3 is not the name of a built-in deployment"),
        ('base = "other.toml"\nname = "mine"\n', "is not the name of a built-in deployment"),
        ('base = "gemma4-31b/pd"\n', "name: missing"),
        (
            'base = "gemma4-31b/pd"\nname = "mine"\n[decode]\nusable_memory = { value = 0.9 }\n',
            "decode.usable_memory: Object missing required field `unit`",
        ),
        ('base = "gemma4-31b/pd"\nname = "mine"\nmodel = false\n', "missing required field `model`"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = own(tmp_path, text)
    with pytest.raises(SpecError) as refused:
        load_deployment(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
