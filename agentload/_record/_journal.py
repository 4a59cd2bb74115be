"""What is recorded, on disk as it comes: a directory beside the trace, with one native trace a session.

Its files joined are a trace (`cat FILE.partial/* > FILE`), for the turns of one session stand together in it.
The last turns of a session are written again when a later request tells more of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentload_traces import AgentloadError, Turn, write_trace

ENDINGS = (".jsonl", ".jsonl.zst", ".parquet")

_encode_lines = msgspec.json.Encoder().encode_lines
_decode_turn = msgspec.json.Decoder(Turn).decode


class SessionFile:
    """One session's turns. turns: those that may still change, and all after the first of them."""

    def __init__(self, path: Path, start_ms: float) -> None:
        self.path, self.start_ms = path, start_ms
        self.turns: list[Turn] = []
        self._settled_bytes = 0
        path.touch(exist_ok=False)

    def write(self, settled: int) -> None:
        """Write what may have changed; the first `settled` of `turns` never will again, and are let go."""
        lines = [_encode_lines((turn,)) for turn in self.turns]
        with self.path.open("r+b", buffering=0) as file:
            file.seek(self._settled_bytes)
            data, written = b"".join(lines), 0
            while written < len(data):
                written += file.write(data[written:])
            file.truncate()
        self._settled_bytes += sum(len(line) for line in lines[:settled])
        del self.turns[:settled]


class Journal:
    """The directory of a trace, made by `make_partial`."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self._path = partial_path(trace)
        self._files: list[SessionFile] = []

    def session(self, start_ms: float) -> SessionFile:
        """A file for a new session."""
        made = SessionFile(self._path / f"{len(self._files):06}.jsonl", start_ms)
        self._files.append(made)
        return made

    def finish(self) -> int:
        """Write the trace and remove the directory; return how many turns there were, with 0 no trace.

        The first request is at 0 ms then. Raises `TraceError` if the trace cannot be written; the directory
        stays.
        """
        turns = write_trace(self._trace, self._turns()) if self._files else 0
        shutil.rmtree(self._path)
        return turns

    def _turns(self) -> Iterator[Turn]:
        first_ms = min(file.start_ms for file in self._files)
        for file in sorted(self._files, key=lambda each: (each.start_ms, each.path)):
            with file.path.open("rb") as lines:
                for line in lines:
                    turn = _decode_turn(line)
                    start_ms = round((turn.start_ms or 0.0) - first_ms, 3)
                    yield msgspec.structs.replace(turn, start_ms=max(0.0, start_ms))


def partial_path(trace: Path) -> Path:
    """Where a recording is kept until its trace is whole."""
    return trace.with_name(f"{trace.name}.partial")


def make_partial(trace: Path) -> Path:
    """Make the directory of a trace that can be written; raises `AgentloadError` if it is there already."""
    path = partial_path(trace)
    if not trace.name.endswith(ENDINGS):
        raise AgentloadError(f"{trace}: the name of a trace must end in {' or '.join(ENDINGS)}")
    try:
        if trace.exists() and not trace.is_file():
            raise AgentloadError(f"{trace}: is no regular file")
        path.mkdir()
    except FileExistsError:
        raise AgentloadError(
            f"{path}: left by a recording that was killed, or one that still runs; `cat` joins its files to a"
            " trace. Move it away first"
        ) from None
    except OSError as error:
        raise AgentloadError(f"{path}: cannot be made ({error.strerror or error})") from None
    return path
