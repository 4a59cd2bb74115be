"""Spec files: loading, errors, what a deployment says about itself, `agentload backends`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from engine_driving import SPECS, variant, write_variant

from agentload._cli import cli, main
from agentload_simbackend import build_engine, derived_figures, list_deployments, load_deployment
from agentload_simbackend._quantity import KINDS
from agentload_traces import SpecError

PD = "deployments/gemma4-31b/pd"


def test_built_in_deployments_load_under_their_names() -> None:
    names = list_deployments()
    assert names == ["gemma4-31b/pd", "gemma4-31b/pd-1replica", "gemma4-31b/rubin"]
    for name in names:
        deployment = load_deployment(name)
        assert deployment.name == name
        assert deployment.mode == name.partition("/")[2].partition("-")[0]
        build_engine(deployment, 0)


def test_every_spec_file_is_used_by_a_deployment() -> None:
    used = "".join(path.read_text() for path in SPECS.rglob("*.toml"))
    assert [path.stem for path in SPECS.glob("*/*.toml") if f'= "{path.stem}"' not in used] == []


def test_every_number_names_its_source() -> None:
    for name in list_deployments():
        for path, quantity in load_deployment(name).numbers():
            named = quantity.source.startswith(
                ("https://", "simbackend/README.md", "a choice of this preset")
            )
            assert named, f"{name}: {path}: {quantity.source}"


def test_own_files_refer_to_own_and_built_in_files(tmp_path: Path) -> None:
    write_variant(tmp_path, "chips/lp30", sram=600e6)
    write_variant(tmp_path, "racks/lpx", chip="lp30.toml")
    deployment = variant(tmp_path, "gemma4-31b/pd", decode__rack="lpx.toml")
    added = 100e6 * 128 * 0.915
    assert deployment.replica_kv_bytes == load_deployment("gemma4-31b/pd").replica_kv_bytes + added


def test_hash_is_over_contents_of_all_files(tmp_path: Path) -> None:
    built_in = load_deployment("gemma4-31b/pd").spec_sha256
    text = (SPECS / f"{PD}.toml").read_text()
    path = tmp_path / "own.toml"
    path.write_text(f"# a comment\n{text}\n\n")
    assert load_deployment(path).spec_sha256 == built_in
    path.write_text(text.replace("value = 7.09e-06", "value = 7.10e-06"))
    assert load_deployment(path).spec_sha256 != built_in
    path.write_text(text.replace('"rubin-lpx"', '"link.toml"'))
    (tmp_path / "link.toml").write_text((SPECS / "links/rubin-lpx.toml").read_text())
    with_own_link = load_deployment(path).spec_sha256
    write_variant(tmp_path, "links/rubin-lpx", latency=4e-6).rename(tmp_path / "link.toml")
    assert load_deployment(path).spec_sha256 != with_own_link


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('unit = "s"', 'unit = "us"', 'decode.chip_time_per_layer: unit is "us", must be "s"'),
        ("value = 7.09e-06", "value = -1.0", "value is -1 s, must be at least 0"),
        ("value = 7.09e-06", "value = nan", "value is nan s, must be at least 0"),
        ("value = 7.09e-06", 'value = "7"', "decode.chip_time_per_layer.value: Expected `float`, got `str`"),
        ("value = 128\n", "value = 0\n", "chips_per_replica: value is 0 count, must be more than 0, a whole"),
        ("value = 128\n", "value = 100.5\n", "chips_per_replica: value is 100.5 count, must be more than 0"),
        ("value = 128\n", "value = 129\n", "decode takes 258 chips, but Groq 3 LPX has 256"),
        (
            "value = 128\n",
            "value = 40\n",
            "decode: weights and drafter (31.17 GB) do not fit: 12.87 GB too few",
        ),
        (
            "value = 0.915",
            "value = 1.2",
            "usable_memory: value is 1.2 fraction, must be more than 0 and at most 1",
        ),
        ('kind = "fitted"', 'kind = "guess"', "kind: Invalid enum value 'guess'"),
        ('unit = "B/element"\n', "", "kv_bytes: Object missing required field `unit`"),
        ('link = "rubin-lpx"\n', "", "Object missing required field `link`"),
        ("[decode]", "[decode]\nspeed = 3", "decode: Object contains unknown field `speed`"),
        ("[decode]", "[extra]\n[decode]", "Object contains unknown field `extra`"),
        (
            "range = [0.85, 1.0]",
            "range = [1.0, 0.85]",
            "usable_memory: range is [1.0, 0.85], must be [low, high]",
        ),
        ('source = "preset"', 'source = " "', "prefill.gpus_per_instance: source is empty"),
        ('mode = "pd"', 'mode = "rubin"', 'decode.type is "lpu", must be "gpu" in mode "rubin"'),
        ('mode = "pd"', 'mode = "warp"', "mode: Invalid enum value 'warp'"),
        ('content = "general"', 'content = "poetry"', 'content is "poetry", must be one of general, coding'),
        (
            "value = 3.890",
            "value = 8.5",
            "general: value is 8.5, but a step yields at most draft_tokens + 1 = 8",
        ),
        ("value = 3.890", "value = 0.9", "general: value is 0.9 tokens/step, must be at least 1"),
        (
            'model = "gemma-4-31b"',
            'model = "gemma-5"',
            "model: no model named 'gemma-5'; there are gemma-4-31b,",
        ),
        ('model = "gemma-4-31b"', 'model = "gemma-4-31b-mtp"', "type: Invalid value 'drafter'"),
        ('link = "rubin-lpx"', 'link = "my.toml"', "link: no such file:"),
        ('link = "rubin-lpx"', "link = rubin", "not TOML: Invalid value"),
        ("[sources]", "[sources]\nbad = 3", "sources: must be a table of texts"),
    ],
)
def test_a_wrong_file_gives_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (SPECS / f"{PD}.toml").read_text()
    assert old in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_deployment(path)
    said = str(caught.value)
    assert message in said
    assert "\n" not in said
    assert "own.toml" in said or said.startswith("models/")


def test_a_wrong_file_that_is_referred_to_is_the_one_named(tmp_path: Path) -> None:
    link = write_variant(tmp_path, "links/rubin-lpx", bandwidth_per_chip=-5.0)
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, "gemma4-31b/pd", link=link.name)
    expected = f"{link}: bandwidth_per_chip: value is -5 B/s, must be more than 0"
    assert str(caught.value) == expected


def test_group_beyond_the_reach_table(tmp_path: Path) -> None:
    write_variant(tmp_path, "racks/lpx", chips=2_560)
    with pytest.raises(SpecError, match="no reach latency for a group of 1000; its table ends at 768"):
        variant(tmp_path, "gemma4-31b/pd", decode__rack="lpx.toml", decode__chips_per_replica=1_000)


def test_names_do_not_lead_out_of_the_specs() -> None:
    with pytest.raises(SpecError, match="no deployment named"):
        load_deployment("../chips/lp30")


def test_conditions_name_what_is_fitted_and_estimated() -> None:
    first, *rest = load_deployment("gemma4-31b/pd").conditions()
    assert "calibration, no validation" in first
    said = "\n".join(rest)
    for words in (
        "acceptance length general = 3.89 tokens/step is fitted",
        "chip time per layer = 7.09 us is fitted",
        "usable memory = 0.915 is fitted",
        "draft tokens = 7 is an estimate",
        "replicas = 2 is an estimate",
        "Link bandwidth per chip = 12.5 GB/s is an estimate",
        "prefill latency 30 ms",
    ):
        assert words in said
    # What a deployment does not use is no condition of it.
    assert "coding" not in said.replace("SPEED-Bench coding", "")
    assert "layer overhead" not in said
    assert "layer overhead = 65 us is fitted" in "\n".join(load_deployment("gemma4-31b/rubin").conditions())


@pytest.mark.parametrize(
    ("weakest", "counted", "verdict"),
    [
        ("fitted", ["are fitted to published figures", "are estimates", "are the maker's"], "a calibration"),
        ("estimate", ["are estimates", "are the maker's claims", "are facts"], "no run of it was validated"),
        ("vendor_claim", ["are the maker's claims", "are facts"], "no run of it was validated"),
        ("fact", ["are facts"], "no run of it was validated"),
    ],
)
def test_first_condition_follows_from_the_kinds(
    tmp_path: Path, weakest: str, counted: list[str], verdict: str
) -> None:
    """Kinds that are weaker than `weakest` are made into it, in all the files of a deployment."""
    weaker = KINDS[KINDS.index(weakest) + 1 :]
    for path in [*SPECS.glob("*/*.toml"), SPECS / f"{PD}.toml"]:
        text = path.read_text()
        for kind in weaker:
            text = text.replace(f'kind = "{kind}"', f'kind = "{weakest}"')
        for stem in (
            "vera-rubin-nvl72",
            "lpx",
            "rubin-lpx",
            "gemma-4-31b",
            "gemma-4-31b-mtp",
            "lp30",
            "rubin",
        ):
            text = text.replace(f' = "{stem}"', f' = "{stem}.toml"')
        (tmp_path / path.name).write_text(text)
    deployment = load_deployment(tmp_path / "pd.toml")
    first, *rest = deployment.conditions()
    assert first.startswith("Simulated on gemma4-31b/pd: of its ")
    assert first.endswith(f"{verdict}.") == (weakest != "fitted")
    assert verdict in first
    numbers = deployment.numbers()
    assert f"of its {len(numbers)} numbers" in first
    assert f"{sum(n.quantity.kind == weakest for n in numbers)} {counted[0]}" in first
    assert all(words in first for words in counted)
    assert any(" is fitted" in sentence for sentence in rest) == (weakest == "fitted")


@pytest.mark.parametrize(
    ("path", "kind", "source"),
    [
        ("weight_bytes", "estimate", "https://newsletter.semianalysis.com"),
        ("link.bandwidth_per_chip", "estimate", "https://newsletter.semianalysis.com"),
        ("link.efficiency", "estimate", "simbackend/README.md"),
        ("link.latency", "estimate", "https://github.com/ai-dynamo/aiconfigurator"),
        ("decode.chip.c2c_bandwidth", "estimate", "https://newsletter.semianalysis.com"),
        ("decode.chip.sram", "vendor_claim", "https://developer.nvidia.com"),
        ("decode.chip_time_per_layer", "fitted", "simbackend/README.md"),
        ("speculation.acceptance_length.general", "fitted", "simbackend/README.md"),
    ],
)
def test_who_says_a_number(path: str, kind: str, source: str) -> None:
    for name in ("gemma4-31b/pd", "gemma4-31b/pd-1replica"):
        quantity = dict(load_deployment(name).numbers())[path]
        assert quantity.kind == kind
        assert quantity.source.startswith(source)


@pytest.mark.parametrize(
    ("name", "speeds", "streams"),
    [
        ("gemma4-31b/pd", [3_451, 3_445, 3_393], 12),
        ("gemma4-31b/pd-1replica", [3_422, 3_420, 3_393], 18),
    ],
)
def test_derived_figures(name: str, speeds: list[int], streams: int) -> None:
    figures = {figure.name: figure for figure in derived_figures(load_deployment(name))}
    found = [figure for name, figure in figures.items() if name.startswith("output speed")]
    assert [figure.value for figure in found] == pytest.approx(speeds, abs=0.5)
    assert {figure.kind for figure in found} == {"fitted"}
    kv = figures["KV of a 100K stream"]
    assert (kv.value, kv.kind) == (100_000 * 40_960 + 419_430_400, "estimate")
    assert figures["concurrent streams of 100K in, 1K out that fit"].value == streams


def test_backends_lists_and_shows() -> None:
    listed = CliRunner().invoke(cli, ["backends"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in list_deployments())
    shown = CliRunner().invoke(cli, ["backends", "gemma4-31b/pd"])
    assert shown.exit_code == 0
    row = next(line for line in shown.output.splitlines() if line.startswith("speculation.acceptance_length"))
    assert "3.89 tokens/step" in row
    assert "fitted" in row
    assert "calibration, no validation" in shown.output


def test_backends_json() -> None:
    listed = json.loads(CliRunner().invoke(cli, ["backends", "--json"]).output)
    assert [entry["name"] for entry in listed] == list_deployments()
    one = json.loads(CliRunner().invoke(cli, ["backends", "--json", "gemma4-31b/rubin"]).output)
    assert one["spec_sha256"] == load_deployment("gemma4-31b/rubin").spec_sha256
    assert one["derived"][0].keys() == {"name", "value", "unit", "kind"}
    paths = {number["path"]: number for number in one["numbers"]}
    assert paths["decode.chip.decode.layer_overhead"]["value"] == 65e-6
    assert all(number.keys() >= {"value", "unit", "kind", "source"} for number in one["numbers"])


def test_unknown_backend_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["backends", "gemma4-31b/pdd"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: no deployment named 'gemma4-31b/pdd'; there are gemma4-31b/pd, gemma4-31b/pd-1replica, "
        "gemma4-31b/rubin, or the path of a .toml file\n"
    )


def test_building_an_engine_imports_nothing_heavy() -> None:
    script = (
        "import sys; from agentload_simbackend import build_engine, load_deployment\n"
        "build_engine(load_deployment('gemma4-31b/pd'), 1)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"aiohttp", "polars", "rich", "splintr", "altair", "asyncio"}
