"""Racks and chips that cannot be: each is refused in one line that names its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_driving import variant, write_variant

from agentload_traces import SpecError


def test_group_beyond_the_reach_table(tmp_path: Path) -> None:
    write_variant(tmp_path, "racks/lpx", chips=5_120)
    with pytest.raises(SpecError, match="no reach latency for a group of 2,400; its table ends at 2,304"):
        variant(tmp_path, "gemma4-31b/pd", decode__rack="lpx.toml", decode__chips_per_replica=2_400)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reach__128": 2e-6}, "reach.256: value is 1.15e-06 s, must be at least the 2e-06 s of 128 chips"),
        ({"chips": 20_000}, "chips: value is 20,000, must be at most 10,000"),
        ({"reach": 3}, "reach.value: as a key it must be a whole number"),
    ],
)
def test_racks_that_cannot_be(tmp_path: Path, changes: dict[str, float], message: str) -> None:
    path = write_variant(tmp_path, "racks/lpx", **changes)
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, "gemma4-31b/pd", decode__rack="lpx.toml")
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"c2c_links": 0},
            "c2c_links: value is 0 count, must be more than 0 and at most 1e+15, a whole number",
        ),
        ({"c2c_links": 20_000}, "c2c_links: value is 20,000, must be at most 10,000"),
        ({"vector_bytes": 0.5}, "vector_bytes: value is 0.5 B, must be a whole number of at most 1,000,000"),
        (
            {"sram_efficiency": 1.5},
            "sram_efficiency: value is 1.5 fraction, must be more than 0 and at most 1",
        ),
    ],
)
def test_chips_that_cannot_be(tmp_path: Path, changes: dict[str, float], message: str) -> None:
    path = write_variant(tmp_path, "chips/lp30", **changes)
    write_variant(tmp_path, "racks/lpx", chip="lp30.toml")
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, "gemma4-31b/pd", decode__rack="lpx.toml")
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("missing", "there"),
    [("nvlink_efficiency", "nvlink_bandwidth"), ("host_memory", "host_bandwidth")],
)
def test_half_of_a_pair_is_refused(tmp_path: Path, missing: str, there: str) -> None:
    """A link without its efficiency would be taken for none."""
    path = write_variant(tmp_path, "chips/rubin", **{missing: None}).rename(tmp_path / "chip.toml")
    write_variant(tmp_path, "racks/vera-rubin-nvl72", chip=path.name)
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, "gemma4-31b/rubin", prefill__rack="vera-rubin-nvl72.toml")
    assert str(caught.value) == f"{path}: {missing}: missing, needed with {there}"
