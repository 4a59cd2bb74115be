"""Compiles and runs `truth_server.c`, and reads what it tells."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("truth_server.c")
_MAGIC = 0x54525554
_RECORD = struct.Struct("<IIqq128s")


class Written(NamedTuple):
    """What the server did for one request. Times are `time.monotonic_ns`."""

    received_ns: int
    body_bytes: int
    at_ns: array[int]


class TruthServer:
    """A server. url: without `/v1`. answers: all of them by their id, once it has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        self.pid = process.pid
        self.answers: dict[str, Written] = {}


@contextmanager
def truth_server(step_ns: int, prefill_ns: int = 0) -> Iterator[TruthServer]:
    """Serve within the block."""
    with tempfile.TemporaryDirectory(prefix="truth-") as folder:
        program, truth = Path(folder, "truth_server"), Path(folder, "truth")
        compiler = shutil.which("cc") or sys.exit("a C compiler is needed (cc)")
        subprocess.run([compiler, "-O2", "-o", str(program), str(_SOURCE)], check=True)
        command = [str(program), str(truth), str(step_ns), str(prefill_ns)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            server = TruthServer(process)
            try:
                yield server
            finally:
                process.terminate()
                process.wait()
        server.answers = _read(truth.read_bytes())


def _read(data: bytes) -> dict[str, Written]:
    at, answers = 0, {}
    while at < len(data):
        magic, tokens, received_ns, body_bytes, name = _RECORD.unpack_from(data, at)
        assert magic == _MAGIC, at
        at += _RECORD.size
        answers[name.rstrip(b"\0").decode()] = Written(
            received_ns, body_bytes, array("q", data[at : at + 8 * tokens])
        )
        at += 8 * tokens
    return answers
