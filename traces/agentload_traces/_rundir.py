"""Write a run directory as the run goes; resume one that was cut short."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

import msgspec

from agentload_traces._errors import RunDirectoryError
from agentload_traces._results import Manifest, RequestRow, RequestStatus, ToolCallRow
from agentload_traces._rundir_files import (
    MANIFEST_NAME,
    ROW_TYPES,
    journal_path,
    parquet_path,
    polars_schema,
    read_manifest,
    sink_parquet,
    temporary_path,
    whole_lines_bytes,
    write_manifest,
)

_BUFFER_BYTES = 1 << 18  # about 400 request rows without arrivals
_FLUSH_NS = 1_000_000_000


class _Key(msgspec.Struct):
    """The part of a journal line that tells whose it is."""

    session_id: str
    turn_id: str
    status: RequestStatus = "ok"


class RunWriter:
    """Writes one run directory: rows go to journals as they come, `finish` turns them into Parquet.

    Creates `path` and its `manifest.json` (status "running"). Killed at any moment, the directory stays
    readable and says that it is incomplete. A directory that holds a run is never overwritten:
    `RunDirectoryError`. As a context manager it closes the journals; what `finish` did not see stays a
    journal, to be read or resumed.

    manifest: may be changed by the caller; `save_manifest` and `finish` write it.
    """

    path: Path
    manifest: Manifest
    _ticked_ns: int

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest) -> None:
        self.path = Path(path)
        self.manifest = manifest
        _refuse_to_overwrite(self.path)
        manifest.status = "running"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_manifest(self.path, manifest)
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        self._open()

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> RunWriter:
        """Reopen a run that was interrupted or killed; its rows are kept, a torn last line is cut off.

        Raises `RunDirectoryError` if `path` is no run directory or its run is complete.
        """
        directory = Path(path)
        manifest = read_manifest(directory)
        if manifest.status == "complete":
            raise RunDirectoryError(f"{directory}: this run is complete, there is nothing to resume")
        try:
            for table in ROW_TYPES:
                _restore_journal(directory, table)
            manifest.status = "running"
            manifest.ended_at = None
            write_manifest(directory, manifest)
            for table in ROW_TYPES:
                parquet_path(directory, table).unlink(missing_ok=True)
        except OSError as error:
            raise _cannot_write(directory, error) from None
        writer = cls.__new__(cls)
        writer.path = directory
        writer.manifest = manifest
        writer._open()
        return writer

    def add_request(self, row: RequestRow) -> None:
        """Append the row of a turn."""
        buffer = self._requests
        self._encode_into(row, buffer, -1)
        buffer += b"\n"
        if len(buffer) >= _BUFFER_BYTES:
            self.flush()

    def add_tool_call(self, row: ToolCallRow) -> None:
        """Append the row of a tool call; before the row of the turn that waited for it."""
        buffer = self._tool_calls
        self._encode_into(row, buffer, -1)
        buffer += b"\n"
        if len(buffer) >= _BUFFER_BYTES:
            self.flush()

    def tick(self, now_ns: int) -> None:
        """Flush if a second of the caller's clock has passed since the last flush that a tick made."""
        if now_ns - self._ticked_ns >= _FLUSH_NS:
            self._ticked_ns = now_ns
            self.flush()

    def flush(self) -> None:
        """Hand all rows to the operating system; a kill loses none of them."""
        try:
            # Tool calls first: a request row on disk then implies the tool calls that it waited for.
            for file, buffer in zip(self._files, (self._tool_calls, self._requests), strict=True):
                if buffer:
                    file.write(buffer)
                    file.flush()
                    buffer.clear()
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def save_manifest(self) -> None:
        """Write the manifest as it is now, the run still going."""
        write_manifest(self.path, self.manifest)

    def finish(self, status: Literal["complete", "interrupted"]) -> None:
        """Turn the journals into Parquet (streaming: memory stays bounded), then write the manifest.

        Set `manifest.ended_at` and the like before. An "interrupted" run can be resumed.
        """
        self.close()
        try:
            for table in ROW_TYPES:
                _journal_to_parquet(self.path, table)
            for table in ROW_TYPES:
                journal_path(self.path, table).unlink()
            self.manifest.status = status
            write_manifest(self.path, self.manifest)
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def close(self) -> None:
        """Flush and close the journals and leave the run incomplete; harmless when done before."""
        if not self._files[0].closed:
            self.flush()
            for file in self._files:
                file.close()

    def completed_sessions(self, is_complete: Callable[[str, Mapping[str, RequestStatus]], bool]) -> set[str]:
        """Ids of the sessions for which `is_complete(session_id, {turn_id: status})` holds.

        The caller knows how many turns a session has and whether failed ones are to be tried again.
        """
        self.flush()
        statuses: dict[str, dict[str, RequestStatus]] = {}
        for key, _ in _journal_lines(journal_path(self.path, "requests")):
            statuses.setdefault(key.session_id, {})[key.turn_id] = key.status
        return {session_id for session_id, turns in statuses.items() if is_complete(session_id, turns)}

    def drop_sessions(self, session_ids: Collection[str]) -> int:
        """Take all rows of these sessions out of the journals; returns the number of request rows taken."""
        self.close()
        dropped = 0
        try:
            for table in ROW_TYPES:
                path = journal_path(self.path, table)
                temporary = temporary_path(path)
                with temporary.open("wb") as file:
                    for key, line in _journal_lines(path):
                        if key.session_id not in session_ids:
                            file.write(line)
                        elif table == "requests":
                            dropped += 1
                temporary.replace(path)
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        self._open()
        return dropped

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> None:
        self._encode_into = msgspec.json.Encoder().encode_into
        self._requests = bytearray()
        self._tool_calls = bytearray()
        self._ticked_ns = 0
        files: list[BinaryIO] = []
        for table in ("tool_calls", "requests"):
            try:
                files.append(journal_path(self.path, table).open("ab"))
            except OSError as error:
                raise _cannot_write(self.path, error) from None
        self._files = files


def _refuse_to_overwrite(directory: Path) -> None:
    if not directory.exists():
        return
    if not directory.is_dir():
        raise RunDirectoryError(f"{directory}: is a file; give a new directory for the run")
    if not any(directory.iterdir()):
        return
    if not (directory / MANIFEST_NAME).exists():
        raise RunDirectoryError(f"{directory}: holds other files; give a new directory for the run")
    if read_manifest(directory).status == "complete":
        raise RunDirectoryError(
            f"{directory}: holds a complete run, which is never overwritten; give another directory"
        )
    raise RunDirectoryError(f"{directory}: holds an incomplete run; resume it or give another directory")


def _cannot_write(path: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"{path}: cannot be written: {error.strerror or error}")


def _journal_to_parquet(directory: Path, table: str) -> None:
    import polars as pl

    journal = journal_path(directory, table)
    schema = polars_schema(table)
    empty = journal.stat().st_size == 0
    rows = pl.LazyFrame(schema=schema) if empty else pl.scan_ndjson(journal, schema=schema)
    sink_parquet(rows, parquet_path(directory, table))


def _restore_journal(directory: Path, table: str) -> None:
    """Make a journal without a torn line, from the Parquet file if the run had been finished."""
    journal = journal_path(directory, table)
    if journal.exists():
        os.truncate(journal, whole_lines_bytes(journal))
    elif parquet_path(directory, table).exists():
        import polars as pl

        temporary = temporary_path(journal)
        pl.scan_parquet(parquet_path(directory, table)).sink_ndjson(temporary, maintain_order=True)
        temporary.replace(journal)


def _journal_lines(path: Path) -> Iterator[tuple[_Key, bytes]]:
    decode = msgspec.json.Decoder(_Key).decode
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decode(line), line
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise RunDirectoryError(f"{path}, line {number}: not a row: {error}") from None
