"""What `agentload fidelity` pins: a number of a spec that drifts ends it with exit code 1 and a name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentload._cli import cli
from agentload_simbackend import FidelityRow, _spec_files, fidelity
from agentload_simbackend import _fidelity_gpu as measured
from agentload_simbackend import _gpu_rows as gpu_rows

CACHES: tuple[Any, ...] = (
    gpu_rows.gpu_chip,
    gpu_rows._decoder,
    gpu_rows._checkpoints,
    gpu_rows._model_of,
    measured._built_in,
)
"""Of what rests on spec files. Fits without a model are kept: they are no part of what is pinned."""


@pytest.fixture(scope="module")
def rows() -> list[FidelityRow]:
    return fidelity().rows


@pytest.fixture
def drift(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Multiply a number of a built-in spec by a factor."""
    read = _spec_files._parse_built_in
    fits = measured._without_each_model()
    monkeypatch.setattr(measured, "_without_each_model", lambda: fits)

    def changed(name: str, key: str, factor: float) -> None:
        def parsed(path: Path) -> dict[str, Any]:
            content = read(path)
            if not path.as_posix().endswith(f"specs/{name}.toml"):
                return content
            content = copy.deepcopy(content)
            table: Any = content
            for part in key.split("."):
                table = table[int(part) if isinstance(table, list) else part]
            table["value"] = type(table["value"])(table["value"] * factor)
            return content

        monkeypatch.setattr(_spec_files, "_parse_built_in", parsed)
        forget()

    yield changed
    monkeypatch.undo()
    forget()


def forget() -> None:
    for each in CACHES:
        each.cache_clear()


@pytest.mark.parametrize(
    ("spec", "key", "factor", "names"),
    [
        # The mode rubin, whatever o the rows of the paper state.
        ("chips/rubin", "decode.layer_overhead", 12 / 65, ["one stream of 100K in mode rubin"]),
        ("chips/rubin", "decode.layer_overhead", 1.5, ["one stream of 100K in mode drafter"]),
        ("chips/rubin", "decode.hbm_efficiency", 0.9, ["Rubin alone, TP1, 10K, no speculation, o = 65 us"]),
        ("chips/rubin", "decode.stream_overhead", 5, ["Rubin alone, TP1, 10K, no speculation, o = 12 us"]),
        ("chips/rubin", "prefill.flops_efficiency", 0.1 / 0.35, ["prefill of 10K on 8 Rubin"]),
        ("chips/rubin", "fp8_flops", 0.95, ["prefill of 100K on 1 Rubin"]),
        ("links/rubin-lpx", "bandwidth_per_chip", 0.1, ["hand-off of 100K tokens"]),
        ("links/rubin-lpx", "efficiency", 0.75, ["hand-off of 100K tokens"]),
        ("links/rubin-lpx", "latency", 10, ["one stream of 100K in mode afd"]),
        (
            "deployments/gemma4-31b/afd",
            "attention.crossing_overhead",
            3,
            ["one stream of 100K in mode afd"],
        ),
        (
            "deployments/gemma4-31b/pd-1replica",
            "decode.operation_time",
            1.1,
            ["speed of each of 1 streams of 100K (TP256)", "speed without speculation (TP256)"],
        ),
        (
            "deployments/gemma4-31b/pd",
            "decode.operation_time",
            1.1,
            ["one stream of 100K in mode pd", "SPEED-Bench coding output speed, median (TP128)"],
        ),
        (
            "deployments/gemma4-31b/pd",
            "decode.usable_memory",
            0.9,
            ["streams of 100K that fit (gemma4-31b/pd)"],
        ),
        ("chips/lp30", "sram", 0.9, ["LPX racks for the weights of kimi-k2"]),
        ("models/gpt-oss-120b", "layers.1.mixer.kv_heads", 2, ["KV of 100K tokens, gpt-oss-120b"]),
        ("chips/h100-sxm", "decode.hbm_efficiency", 0.8, ["GPU rows fitted on, h100_sxm"]),
        ("chips/h200-sxm", "prefill.flops_efficiency", 0.5, ["GPU rows fitted on, h200_sxm"]),
        ("chips/b200-sxm", "decode.layer_overhead", 1.5, ["GPU rows fitted on, b200_sxm"]),
        ("chips/b200-sxm", "prefill.layer_overhead", 1.5, ["GPU rows fitted on, b200_sxm"]),
        (
            "chips/h100-sxm",
            "decode.layer_overhead",
            2.5,
            ["GPU rows not fitted on", "GPU rows fitted on, h100_sxm"],
        ),
    ],
)
def test_a_number_that_drifts_is_named_and_ends_with_1(
    drift: Any, spec: str, key: str, factor: float, names: list[str]
) -> None:
    drift(spec, key, factor)
    answer = CliRunner().invoke(cli, ["fidelity", "--json", "--prompts", "200"])
    assert answer.exit_code == 1, answer.output
    drifted = answer.stderr.removeprefix("drifted: ").strip().split("; ")
    assert set(names) <= set(drifted)


def test_every_figure_worked_out_on_paper_is_pinned_with_a_margin(rows: list[FidelityRow]) -> None:
    paper = [row for row in rows if row.kind == "paper"]
    assert len(paper) >= 55
    for row in paper:
        assert row.tolerance is not None, row
        assert abs(row.error) <= 0.88 * row.tolerance, row


def test_no_pinned_median_of_gpu_rows_is_at_its_limit() -> None:
    pinned = fidelity(200).gpu.pinned
    assert [pin.name for pin in pinned] == [
        "GPU rows not fitted on",
        *(f"GPU rows fitted on, {system}_sxm" for system in ("h100", "h200", "b200")),
    ]
    assert (pinned[0].tpot_limit, pinned[0].ttft_limit) == (0.15, 0.25)
    for pin in pinned:
        assert not pin.drifted
        assert pin.tpot_median <= pin.tpot_limit - 0.008
        assert pin.ttft_median <= pin.ttft_limit - 0.01
        assert pin.tpot_limit <= 0.15
        assert pin.ttft_limit <= 0.25
