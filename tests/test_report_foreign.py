"""What traces and endpoints may call things, and the outputs that must bear it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from file_limits import file_size_limit
from report_output import data_of, report, specs, without_scripts, words
from run_rows import agent_session, failed_row, write_run

from agentload_analysis import summarise, write_html
from agentload_traces import RequestRow

CLOSED_STDOUT = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"

HOSTILE = "a\x1b[2J\n\x9b1m\u202eb\x7f"
HARMLESS = r"a\x1b[2J\n\x9b1m\u202eb\x7f"


def named(session_id: str, agent_id: str | None = None) -> list[RequestRow]:
    rows = agent_session(1, 3)
    for row in rows:
        row.session_id = session_id
    if agent_id:
        rows[1].agent_id = agent_id
    return rows


def raw_controls(text: str) -> set[str]:
    return {char for char in text if char != "\n" and not char.isprintable()}


def run_report(*arguments: str | Path, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "agentload", "report", *map(str, arguments)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )


def test_control_characters_are_spelt_out_on_the_terminal_and_in_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = named(HOSTILE[:6], "sub\x1bagent\n")
    rows.append(failed_row(HOSTILE[:6], "t9", 9, rows[-1], f"HTTP 500: {HOSTILE}"))
    run = write_run(
        tmp_path / "run",
        rows,
        target=f"model {HOSTILE}",
        trace=f"trace {HOSTILE}",
        conditions=(f"first {HOSTILE}", f"then {HOSTILE}"),
        options={"model": HOSTILE},
    )
    page = tmp_path / "page.html"
    out = report(capsys, run, "--html", page)
    html = page.read_text(encoding="utf-8")
    assert raw_controls(out) == set()
    assert raw_controls(without_scripts(html)) == set()
    for text in (words(out), html):
        for place in ("HTTP 500: ", "model ", "trace ", "first ", "then "):
            assert place + HARMLESS in text
        assert HARMLESS[:9] in text
    lanes = {str(bar["lane"]) for bar in data_of(specs(page)["timeline"])}
    assert lanes == {r"a\x1b[2J\n", r"a\x1b[2J\n › sub\x1bagent\n"}


def test_a_name_is_cut_to_its_column_after_its_control_characters_are_spelt_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = report(capsys, write_run(tmp_path / "run", named("\x1b" * 22)))
    assert re.search(r"^\\x1b\\x1b\\x1b\\…\\x1b\\x1b ", out, re.M)


def test_json_holds_foreign_text_whole_and_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", named(f"{HOSTILE} 会话 😀"))
    out = report(capsys, run, "--json")
    assert out.isascii()
    assert raw_controls(out) == set()
    assert json.loads(out) == summarise(run)
    assert json.loads(out)["per_session"][0]["session_id"] == f"{HOSTILE} 会话 😀"


@pytest.mark.parametrize(
    "name", ["[red]x[/red]", "[/]", "[/nothing]", ":warning:", "back\\", "[bold]\\", "\\[x]"]
)
def test_markup_in_names_is_printed_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rows = named(name)
    rows.append(failed_row(name, "t9", 9, rows[-1], f"error {name}"))
    run = write_run(
        tmp_path / "run", rows, target=f"target {name}", conditions=(f"first {name}", f"then {name}")
    )
    out = report(capsys, run)
    text = words(out)
    assert any(line.startswith(f"{name}  ") for line in out.splitlines())
    for expected in (f"error {name} (1x)", f"target {name} (mode pd)", f"- first {name} ", f"- then {name}"):
        assert expected in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_narrow_encoding_shows_codes_for_what_it_lacks(tmp_path: Path, encoding: str) -> None:
    run = write_run(tmp_path / "run", named("会话 😀", "代理"))
    done = run_report(run, "--html", tmp_path / "页.html", encoding=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u4f1a\u8bdd \U0001f600" in done.stdout
    assert (tmp_path / "页.html").exists()
    done = run_report(run, "--json", encoding=encoding)
    assert json.loads(done.stdout)["per_session"][0]["session_id"] == "会话 😀"


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_a_closed_stdout_is_no_error(tmp_path: Path, json_option: tuple[str, ...]) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3))
    page = tmp_path / "page.html"
    arguments = ["-m", "agentload", "report", str(run), "--html", str(page), *json_option]
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_STDOUT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    write_html(run, tmp_path / "other.html")
    assert page.read_bytes() == (tmp_path / "other.html").read_bytes()


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path, json_option: tuple[str, ...]) -> None:
    run = write_run(tmp_path / "run", agent_session(1, 3))
    command = [sys.executable, "-m", "agentload", "report", str(run), *json_option]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # without its buffer Python does not notice a short write
    with (tmp_path / "out").open("wb") as out, file_size_limit(100):
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert done.returncode
    assert done.stderr.startswith("error: cannot write the output: File too large\n")
    assert "Traceback" not in done.stderr
