"""`agentload trace`: what it prints, what it writes, how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentload._cli import main
from agentload_traces import open_trace, sample_path, trace_info

WEKA = str(sample_path("weka_trace_0291.json"))
GOOD = '{"session_id":"s","turn_id":"0","input_tokens":1}\n'
BAD = '{"session_id":"s","turn_id":"1","input_tokens":-1}\n'


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["trace", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture
def bad_trace(tmp_path: Path) -> str:
    path = tmp_path / "bad.jsonl"
    path.write_text(GOOD + BAD + "{}\n")
    return str(path)


def test_info_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", WEKA, "--json") == 0
    out, err = capsys.readouterr()
    totals = json.loads(out)
    assert err == ""
    assert {
        key: totals[key]
        for key in (
            "sessions",
            "turns",
            "input_tokens",
            "output_tokens",
            "subagent_turns",
            "subagent_input_tokens",
            "subagent_output_tokens",
            "tool_calls",
            "lines_read",
            "lines_skipped",
        )
    } == {
        "sessions": 1,
        "turns": 20,
        "input_tokens": 1_576_322,
        "output_tokens": 12_771,
        "subagent_turns": 12,
        "subagent_input_tokens": 677_797,
        "subagent_output_tokens": 6_733,
        "tool_calls": 27,
        "lines_read": 34,
        "lines_skipped": 0,
    }


def test_info_says_what_is_inferred_and_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", WEKA) == 0
    out, _ = capsys.readouterr()
    assert "27 (inferred)" in out
    assert "one call of the turn before it" in out


def test_info_of_a_bad_trace_counts_and_shows_the_first_problem(
    bad_trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("info", bad_trace) == 0
    out, err = capsys.readouterr()
    assert "lines skipped" in out
    assert err == (
        f"problem: {bad_trace}:2: input_tokens: must be 0 or more, is -1 (the first of 2 problems)\n"
    )


def test_validate_passes_a_good_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", WEKA) == 0
    assert capsys.readouterr().out == f"{WEKA}: weka, 34 lines read, 0 skipped, no problem\n"


def test_validate_lists_problems_and_exits_with_1(bad_trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", bad_trace) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{bad_trace}:2: input_tokens: must be 0 or more, is -1",
        f"{bad_trace}:3: session_id: missing",
        f"{bad_trace}: agentload-jsonl, 3 lines read, 2 skipped, 2 problems",
    ]


def test_validate_strict_stops_at_the_first(bad_trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--strict", bad_trace) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{bad_trace}:2: input_tokens: must be 0 or more, is -1",
        f"{bad_trace}: agentload-jsonl, 2 lines read, 1 skipped, 1 problem",
    ]


def test_validate_json(bad_trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--json", bad_trace) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["lines_read"], result["turns"], result["lines_skipped"]) == (3, 1, 2)
    assert result["problems"][0] == {
        "path": bad_trace,
        "line": 2,
        "field": "input_tokens",
        "message": "must be 0 or more, is -1",
        "kept": False,
    }


def test_validate_says_how_many_problems_it_does_not_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(GOOD + "{}\n" * 120)
    assert run("validate", str(path)) == 1
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 102
    assert out[100] == "... and 20 more problems"


@pytest.mark.parametrize("command", ["info", "validate"])
def test_what_cannot_be_read_exits_with_2_and_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "missing.jsonl", Path(__file__)):
        assert run(command, str(path)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: {path}: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst", ".parquet"])
def test_convert_writes_what_the_ending_says(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out_file = tmp_path / f"out{ending}"
    assert run("convert", WEKA, str(out_file)) == 0
    out, err = capsys.readouterr()
    assert out == f"{out_file}: 32 turns; {WEKA}: weka, 34 lines read, 0 skipped, no problem\n"
    assert err.startswith("assumed: weka files tell neither names nor numbers of tool calls")
    assert list(open_trace(out_file).turns()) == list(open_trace(WEKA).turns())


def test_convert_leaves_bad_lines_out_and_says_so(
    tmp_path: Path, bad_trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out_file = tmp_path / "out.parquet"
    assert run("convert", bad_trace, str(out_file)) == 1
    assert f"{bad_trace}:3: session_id: missing\n" in capsys.readouterr().err
    assert trace_info(out_file).turns == 1


def test_convert_strict_writes_nothing(
    tmp_path: Path, bad_trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for ending in (".jsonl", ".parquet"):
        out_file = tmp_path / f"out{ending}"
        assert run("convert", "--strict", bad_trace, str(out_file)) == 2
        assert capsys.readouterr().err == f"error: {bad_trace}:2: input_tokens: must be 0 or more, is -1\n"
        assert not out_file.exists()


def test_convert_of_nothing_usable_tells_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(BAD)
    assert run("convert", str(path), str(tmp_path / "out.jsonl")) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{path}:1: input_tokens: must be 0 or more, is -1",
        f"error: {tmp_path}/out.jsonl: there is no turn to write",
    ]
    assert not (tmp_path / "out.jsonl").exists()


def test_convert_names_fields_that_it_does_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "priority": 3}\n')
    assert run("convert", str(path), str(tmp_path / "out.jsonl")) == 0
    assert capsys.readouterr().err == "fields not read: priority 1\n"


def test_convert_does_not_write_over_its_input(bad_trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", bad_trace, bad_trace) == 2
    assert "is the file that is read" in capsys.readouterr().err
    assert Path(bad_trace).read_text().startswith(GOOD)


def test_a_format_can_be_named(bad_trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "--format", "mooncake", "--json", bad_trace) == 0
    assert json.loads(capsys.readouterr().out)["lines_skipped"] == 3
    assert run("info", "--format", "csv", bad_trace) == 2
    assert "unknown trace format 'csv'" in capsys.readouterr().err
