"""The documentation shows only commands that work.

Each `$ agentload ...` or `$ python examples/...` of a console block is run, in the order of its page, in a
folder that holds a copy of the samples and examples.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# Options that add nothing to what is tested, and take most of its time away.
SHORTER = {"size": ("--max-concurrency", "8")}

# What tells of this machine may have to say that it is too busy.
ALSO_FINE = {"baseline": (1,)}


def shown_commands(page: Path) -> list[str]:
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def with_commands() -> list[Path]:
    return [page for page in PAGES if shown_commands(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", with_commands(), ids=lambda page: page.name)
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces/samples", tmp_path / "traces/samples")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    scripts = Path(sys.executable).parent
    for shown in shown_commands(page):
        words = shlex.split(shown, comments=True)
        if words[0] == "make":
            continue
        assert words[0] in {"agentload", "python"}, f"{page.name} shows {shown!r}, which nothing here runs"
        words[0] = sys.executable if words[0] == "python" else str(scripts / "agentload")
        done = subprocess.run(
            [*words, *SHORTER.get(words[1], ())],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        fine = (0, *ALSO_FINE.get(words[1], ()))
        assert done.returncode in fine, f"{page.name}: {shown}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_readme_shows_how_to_replay_against_a_server(tmp_path: Path) -> None:
    """The two commands of its `sh` block, on a free port and with a trace that the page made before."""
    (block,) = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S
    )
    serve, replay = (shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines())
    (made,) = (words for words in map(shlex.split, shown_commands(ROOT / "README.md")) if "generate" in words)
    scripts = str(Path(sys.executable).parent / "agentload")
    subprocess.run([scripts, *made[1:]], cwd=tmp_path, check=True, capture_output=True)
    serve[serve.index("--port") + 1] = "0"
    with subprocess.Popen([scripts, *serve[1:], "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            assert re.fullmatch(r"http://127\.0\.0\.1:8400", replay[replay.index("--target") + 1])
            replay[replay.index("--target") + 1] = url
            replay[replay.index("--speed") + 1] = "5000"  # in place of minutes of tools and think time
            done = subprocess.run(
                [scripts, *replay[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
            )
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    assert "20 sessions, 100 turns" in done.stdout


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Up to the dots, and but for the name of the run directory."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- demo output: begin -->\n```text\n(.*?)\n\.\.\.\n", text, re.DOTALL)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "agentload"), "run"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    shown = block.splitlines()
    assert shown == [line.rstrip() for line in done.stdout.splitlines()][: len(shown)]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://", "mailto:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
