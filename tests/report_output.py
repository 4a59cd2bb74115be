"""What `agentload report` prints, and what a page of it holds, for the report tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentload._cli import main


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def without_scripts(html: str) -> str:
    """The page without its JavaScript; the data of the plots stay."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.S)


def specs(page: Path) -> dict[str, dict[str, object]]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page.read_text(), re.S)
    assert found
    loaded: dict[str, dict[str, object]] = json.loads(found[1])
    return loaded


def data_of(spec: dict[str, object]) -> list[dict[str, object]]:
    datasets = spec["datasets"]
    assert isinstance(datasets, dict)
    return [row for rows in datasets.values() for row in rows]
