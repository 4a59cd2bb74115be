"""The commands of docs/recording.md work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent


@pytest.mark.slow
def test_the_page_shows_how_to_record_and_replay(tmp_path: Path) -> None:
    """The four commands of its `sh` block, on a free port."""
    text = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    serve, *others = (shlex.split(line) for line in block.splitlines())
    serve[serve.index("--port") + 1] = "0"
    with subprocess.Popen(
        [SCRIPTS / "agentload", *serve[1:], "--json"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            said = []
            for words in others:
                real = [url if word == "http://127.0.0.1:8400" else word for word in words]
                assert real.pop(0) == "agentload"
                real = [sys.executable if word == "python" else word for word in real]
                done = subprocess.run(
                    [SCRIPTS / "agentload", *real], cwd=tmp_path, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, done.stderr
                said.append(done.stdout + done.stderr)
        finally:
            server.terminate()
    assert "5 turns" in said[0]
    assert "added latency" in said[0]
    assert "5 turns" in said[2]


def test_the_page_names_every_header_that_is_looked_at() -> None:
    from agentload._record._sessions import SessionFinder

    text = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    named = SessionFinder().fields() - {"x-agentload-turn-id", "x-claude-code-parent-agent-id"}
    assert [field for field in sorted(named) if f"`{field}`" not in text] == []
