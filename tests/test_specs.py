"""Spec files: loading, errors, what a deployment says about itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from engine_driving import SPECS, replica_kv_bytes, spec_content, spec_text, variant, write_variant

from agentload_simbackend import (
    MODES,
    derived_figures,
    list_deployments,
    list_models,
    load_deployment,
)
from agentload_simbackend._plan import build_plan
from agentload_simbackend._quantity import KINDS
from agentload_traces import SpecError

PD = "deployments/gemma4-31b/pd"


WRITTEN = [
    "gemma4-31b/afd",
    "gemma4-31b/drafter",
    "gemma4-31b/lpx",
    "gemma4-31b/pd",
    "gemma4-31b/pd-1replica",
    "gemma4-31b/pd-spill",
    "gemma4-31b/rubin",
    "gemma4-31b/rubin-aggregated",
]


def test_built_in_deployments_load_under_their_names() -> None:
    assert list_deployments() == WRITTEN
    for name in WRITTEN:
        deployment = load_deployment(name)
        assert deployment.name == name
        assert deployment.mode == name.partition("/")[2].partition("-")[0]


def test_every_spec_file_is_used() -> None:
    """By a deployment, a template or a rack; models and speculation by MODEL/MODE, and chips by fits too."""
    used = "".join(path.read_text() for path in SPECS.rglob("*.toml"))
    for folder in ("racks", "links"):
        assert [path.stem for path in (SPECS / folder).glob("*") if f'= "{path.stem}"' not in used] == []
    drafters = [path for path in SPECS.glob("models/*") if 'type = "drafter"' in path.read_text()]
    assert [path.stem for path in drafters if f'drafter = "{path.stem}"' not in used] == []
    assert {path.stem for path in SPECS.glob("speculation/*")} <= {*list_models(), "external"}


def test_every_number_names_its_source() -> None:
    sized = [f"{model}/{mode}" for model in list_models() for mode in MODES]
    for name in [*WRITTEN, *sized]:
        for path, quantity in load_deployment(name).numbers():
            named = quantity.source.startswith(
                ("https://", "simbackend/README.md", "a choice of this preset")
            )
            assert named, f"{name}: {path}: {quantity.source}"


def test_what_is_taken_over_is_what_was_fitted() -> None:
    """Where a number stands twice: a refit must reach the other deployments of the model, and external."""
    expected = {name: dict(load_deployment(f"gemma4-31b/{name}").numbers()) for name in ("pd", "pd-1replica")}
    general = "speculation.acceptance_length.general"
    pairs = [("pd-1replica", f"gemma4-31b/{name}", general) for name in ("rubin", "drafter")]
    pairs.append(("pd-1replica", "kimi-k2/drafter", general))
    spread = ("gemma4-31b/rubin", "gemma4-31b/drafter", "kimi-k2/drafter", "deepseek-r1/pd", "kimi-k2.5/pd")
    pairs += [("pd", name, "speculation.prompt_cv") for name in (*spread, "gemma-4-26b-a4b/pd")]
    for fitted, name, path in pairs:
        assert dict(load_deployment(name).numbers())[path].value == expected[fitted][path].value, name
    own, template = (
        spec_content(name)["attention"] for name in ("deployments/gemma4-31b/afd", "templates/afd")
    )
    assert {key: own[key] for key in template} == template


def test_rubin_has_the_fixed_times_that_were_fitted_on_blackwell() -> None:
    rubin, b200 = (spec_content(f"chips/{name}") for name in ("rubin", "b200-sxm"))
    for of, key in (
        (lambda chip: chip["decode"], "stream_overhead"),
        (lambda chip: chip, "nvlink_efficiency"),
    ):
        assert of(rubin)[key]["value"] == of(b200)[key]["value"]
        assert of(rubin)[key]["kind"] == "estimate"
    assert rubin["nvlink_bandwidth"]["value"] == spec_content("links/nvlink6")["bandwidth_per_chip"]["value"]


def test_own_files_refer_to_own_and_built_in_files(tmp_path: Path) -> None:
    write_variant(tmp_path, "chips/lp30", sram=600e6)
    write_variant(tmp_path, "racks/lpx", chip="lp30.toml")
    deployment = variant(tmp_path, "gemma4-31b/pd", decode__rack="lpx.toml")
    added = 100e6 * 128 * 0.915
    assert replica_kv_bytes(deployment) == replica_kv_bytes(load_deployment("gemma4-31b/pd")) + added


def test_hash_is_over_contents_of_all_files(tmp_path: Path) -> None:
    built_in = load_deployment("gemma4-31b/pd").spec_sha256
    text = spec_text(spec_content(PD))
    path = tmp_path / "own.toml"
    path.write_text(f"# a comment\n{text}\n\n")
    assert load_deployment(path).spec_sha256 == built_in
    path.write_text((SPECS / f"{PD}.toml").read_text())
    assert load_deployment(path).spec_sha256 == built_in
    path.write_text(text)
    path.write_text(text.replace("value = 128\n", "value = 127\n"))
    assert load_deployment(path).spec_sha256 != built_in
    path.write_text(text.replace('"rubin-lpx"', '"link.toml"'))
    (tmp_path / "link.toml").write_text((SPECS / "links/rubin-lpx.toml").read_text())
    with_own_link = load_deployment(path).spec_sha256
    write_variant(tmp_path, "links/rubin-lpx", latency=4e-6).rename(tmp_path / "link.toml")
    assert load_deployment(path).spec_sha256 != with_own_link


OPERATION_TIME = "[decode.operation_time]\nvalue = 1e-07\n"
ALLOWANCE = "[router.allowance]"
INTERACTIVE = "[router.allowance.interactive]"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'value = 1e-07\nunit = "s"',
            'value = 1e-07\nunit = "us"',
            'decode.operation_time: unit is "us", must be "s"',
        ),
        ("value = 1e-07", "value = -1.0", "value is -1 s, must be at least 0 and at most 1e+07"),
        ("value = 1e-07", "value = nan", "value is nan s, must be at least 0"),
        ("value = 1e-07", "value = inf", "value is inf s, must be at least 0"),
        ("value = 1e-07", "value = 1e300", "value is 1e+300 s, must be at least 0 and at most 1e+07"),
        ("value = 1e-07", f"value = 1{'0' * 400}", "decode.operation_time"),
        ("value = 1e-07", f"value = 1{'0' * 5_000}", "not TOML"),
        ("value = 1e-07", 'value = "7"', 'decode.operation_time.value: is "7", must be a number'),
        (
            "value = 128\n",
            "value = 0\n",
            "chips_per_replica: value is 0 count, must be more than 0",
        ),
        ("value = 128\n", "value = 100.5\n", "chips_per_replica: value is 100.5 count, must be more than 0"),
        (
            "value = 128\n",
            "value = 129\n",
            "decode takes 258 chips (2 x chips_per_replica of 129), but 1 x Groq 3 LPX has 256: decode.racks",
        ),
        (
            "value = 128\n",
            "value = 40\n",
            "decode.chips_per_replica is 40, but weights and drafter (30.70 + 0.47 GB) and one token of KV "
            "need 70 LPUs of 0.4575 GB usable (0.915 x 0.5 GB)",
        ),
        (
            "value = 0.915",
            "value = 1.2",
            "usable_memory: value is 1.2 fraction, must be more than 0 and at most 1",
        ),
        ("value = 0.915", "value = 1e-9", "usable_memory: value is 1e-09 fraction, must be at least 1e-06"),
        (
            'kind = "fitted"',
            'kind = "guess"',
            'kind: is "guess", must be one of "fact", "vendor_claim", "estimate", "fitted"',
        ),
        ('unit = "B/element"\n', "", 'kv_bytes.unit: missing, must be "B/element"'),
        ('link = "rubin-lpx"\n', "", 'link: missing, mode "pd" needs it'),
        (
            "[decode]",
            "[decode]\nspeed = 3",
            "decode.speed: unknown; there are type, rack, racks, chips_per_replica,",
        ),
        ("[decode]", "[extra]\n[decode]", "extra: unknown; there are name, mode, summary,"),
        ("[decode]", '["a\\nb"]\n[decode]', "own.toml: a\\nb: unknown; there are"),
        (
            "range = [0.85, 1.0]",
            "range = [1.0, 0.85]",
            "usable_memory: range is [1.0, 0.85], must be [low, high]",
        ),
        ("range = [0.85, 1.0]", "range = [0.85, inf]", "usable_memory: range is [0.85, inf], must be"),
        ('source = "a choice of this preset"', 'source = " "', "kv_bytes: source is empty"),
        ('mode = "pd"', 'mode = "rubin"', 'decode.type is "lpu", must be "gpu" in mode "rubin"'),
        ('mode = "pd"', 'mode = "warp"', 'mode: is "warp", must be one of "rubin", "lpx",'),
        ('mode = "pd"', 'mode = "lpx"', 'prefill: mode "lpx" has none, leave it out'),
        ('mode = "pd"', 'mode = "afd"', 'split_link: missing, mode "afd" needs it'),
        ('content = "general"', 'content = "poetry"', 'content is "poetry", must be one of general, coding'),
        ('drafter = "gemma-4-31b-mtp"\n', "", "speculation.drafter: missing, must be a text"),
        (
            "value = 5.37",
            "value = 8.5",
            "value is 8.5, but a step yields at most draft_tokens + 1 = 8",
        ),
        ("value = 5.37", "value = 0.9", "coding: value is 0.9 tokens/step, must be at least 1"),
        (
            'model = "gemma-4-31b"',
            'model = "gemma-5"',
            "model: no model named 'gemma-5'; there are deepseek-r1,",
        ),
        ('model = "gemma-4-31b"', 'model = "gemma-4-31b-mtp"', 'type: is "drafter", must be "decoder"'),
        (
            'model = "gemma-4-31b"',
            'model = "../models/gemma-4-31b"',
            "no model named '../models/gemma-4-31b'",
        ),
        ('link = "rubin-lpx"', 'link = "my.toml"', "link: no such file:"),
        ('link = "rubin-lpx"', f'link = "{"x" * 5_000}.toml"', "link: no such file:"),
        ('link = "rubin-lpx"', 'link = "a\\u0000b.toml"', "link: no such file:"),
        ('link = "rubin-lpx"', "link = rubin", "not TOML: Invalid value"),
        ('link = "rubin-lpx"', "link = " + "[" * 3_000, "nested too deeply"),
        ("[decode]", "[sources]\nbad = 3\n[decode]", "sources: must be a table of texts"),
        (
            ALLOWANCE,
            f"{ALLOWANCE}\nurgent = 3",
            'router.allowance.urgent: is 3, must be { value = ..., unit = "s", ',
        ),
        (ALLOWANCE, "[router.patience]", "router.patience: unknown; there are allowance,"),
        (
            f'{INTERACTIVE}\nvalue = 0\nunit = "s"',
            f"{INTERACTIVE}\nvalue = 0",
            "allowance.interactive.unit: missing, must be",
        ),
        (
            INTERACTIVE,
            INTERACTIVE.replace("interactive", "urgent"),
            "router.allowance.urgent: unknown latency class, must be one of",
        ),
    ],
)
def test_a_wrong_file_gives_one_clear_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = with_operation_time(spec_text(spec_content(PD)))
    assert old in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_deployment(path)
    said = str(caught.value)
    assert message in said
    assert "\n" not in said
    assert "own.toml" in said or said.startswith("models/")


def with_operation_time(text: str) -> str:
    """The text of gemma4-31b/pd with an operation time that no refit changes."""
    return re.sub(r"\[decode\.operation_time\]\nvalue = \S+\n", OPERATION_TIME, text)


def test_a_wrong_file_that_is_referred_to_is_the_one_named(tmp_path: Path) -> None:
    link = write_variant(tmp_path, "links/rubin-lpx", bandwidth_per_chip=-5.0)
    with pytest.raises(SpecError) as caught:
        variant(tmp_path, "gemma4-31b/pd", link=link.name)
    expected = f"{link}: bandwidth_per_chip: value is -5 B/s, must be more than 0 and at most 1e+18"
    assert str(caught.value) == expected


def test_names_do_not_lead_out_of_the_specs() -> None:
    with pytest.raises(SpecError, match="no deployment named"):
        load_deployment("../chips/lp30")


def test_conditions_name_what_is_fitted_and_estimated() -> None:
    first, *rest = load_deployment("gemma4-31b/pd").conditions()
    assert "calibration, no validation" in first
    said = "\n".join(rest)
    for words in (
        "cceptance length general = ",
        "Decode operation time = ",
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
    folders = ("chips", "links", "models", "racks")
    for path in [*(path for each in folders for path in SPECS.glob(f"{each}/*")), SPECS / f"{PD}.toml"]:
        text = path.read_text() if path.stem != "pd" else spec_text(spec_content(PD))
        for kind in weaker:
            text = text.replace(f'kind = "{kind}"', f'kind = "{weakest}"')
        for stem in ("vera-rubin-nvl72", "rubin-lpx", "gemma-4-31b", "gemma-4-31b-mtp", "lp30", "rubin"):
            text = text.replace(f' = "{stem}"', f' = "{stem}.toml"')
        text = text.replace('rack = "lpx"', 'rack = "lpx.toml"')
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
        ("model.weight_bytes", "estimate", "https://newsletter.semianalysis.com"),
        ("link.bandwidth_per_chip", "estimate", "https://newsletter.semianalysis.com"),
        ("link.efficiency", "estimate", "simbackend/README.md"),
        ("link.latency", "estimate", "https://github.com/ai-dynamo/aiconfigurator"),
        ("decode.chip.c2c_bandwidth", "estimate", "https://newsletter.semianalysis.com"),
        ("decode.chip.sram", "vendor_claim", "https://developer.nvidia.com"),
        ("decode.operation_time", "fitted", "simbackend/README.md"),
        ("speculation.acceptance_length.general", "fitted", "simbackend/README.md"),
    ],
)
def test_who_says_a_number(path: str, kind: str, source: str) -> None:
    for name in ("gemma4-31b/pd", "gemma4-31b/pd-1replica"):
        quantity = dict(load_deployment(name).numbers())[path]
        assert quantity.kind == kind
        assert quantity.source.startswith(source)


@pytest.mark.parametrize(("name", "streams"), [("gemma4-31b/pd", 12), ("gemma4-31b/pd-1replica", 18)])
def test_derived_figures(name: str, streams: int) -> None:
    """Speeds are of the plan's step times; `agentload fidelity` holds them to what is published."""
    deployment = load_deployment(name)
    figures = {figure.name: figure for figure in derived_figures(deployment)}
    steps = build_plan(deployment).replicas[0].steps
    for context, label in ((1_000, "1K"), (10_000, "10K"), (100_000, "100K")):
        speed = figures[f"output speed, concurrency 1, context {label}, mean acceptance length"]
        assert speed.value == pytest.approx(deployment.acceptance_length / steps.step(1, context)[0] * 1e9)
        assert speed.kind == "fitted"
    kv = figures["KV of a 100K stream"]
    assert (kv.value, kv.kind) == (100_000 * 40_960 + 419_430_400, "estimate")
    assert figures["concurrent streams of 100K in, 1K out that fit"].value == streams
    assert figures["racks, Groq 3 LPX"].value == 1


def test_building_an_engine_imports_nothing_heavy() -> None:
    script = (
        "import sys; from agentload_simbackend import build_engine, load_deployment\n"
        "build_engine(load_deployment('gemma4-31b/pd'), 1)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"aiohttp", "polars", "rich", "splintr", "altair", "asyncio"}
