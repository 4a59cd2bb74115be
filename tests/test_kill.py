"""A replay that is killed at any moment leaves a readable run, and resuming it plays no turn twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "kills.py"


@pytest.mark.slow
def test_killed_runs_are_readable_and_resumed_to_the_same_end() -> None:
    # The program does it 200 times; the laws that it checks stand in its own words.
    command = [sys.executable, str(PROGRAM), "--kills", "10", "--seed", "7", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = json.loads(done.stdout)
    assert summary["broken"] == []
    assert summary["kills"] == 10
    assert summary["rows_seen_again"] > 0
    assert summary["turns_a_run"] == 150
    assert done.returncode == 0
