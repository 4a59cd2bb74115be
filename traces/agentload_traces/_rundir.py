"""Write a run directory as the run goes; resume one that was cut short."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Literal

from agentload_traces._errors import RunDirectoryError
from agentload_traces._journal import Journal
from agentload_traces._replacing import kind_of_file
from agentload_traces._results import (
    ClientRow,
    Manifest,
    RequestRow,
    ToolCallRow,
    too_large_field,
)
from agentload_traces._run_lock import LOCK_NAME, RunLock, is_locked
from agentload_traces._rundir_files import (
    MANIFEST_NAME,
    ROW_TYPES,
    filtered_journal,
    is_readable,
    journal_path,
    journal_to_parquet,
    parquet_path,
    read_manifest,
    restore_journal,
    unfinished_files,
    write_manifest,
)

_BUFFER_BYTES = 1 << 18  # about 400 request rows without arrivals
_FLUSH_NS = 1_000_000_000


class RunWriter:
    """Writes one run directory: rows go to journals as they come, `finish` turns them into Parquet.

    Creates `path` and its `manifest.json` (status "running"). Killed at any moment, the directory stays
    readable and says that it is incomplete. A directory that holds a run is never overwritten, and one that
    another writer is at work in is not resumed: `RunDirectoryError`. As a context manager it closes the
    journals; what `finish` did not see stays a journal, to be read or resumed.

    manifest: may be changed by the caller; `finish` writes it.
    torn_lines: lines of the journals that `resume` cut off, from the first that was no whole row.
    """

    path: Path
    manifest: Manifest
    torn_lines: int
    _ticked_ns: int

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest) -> None:
        self.path = Path(path)
        self.manifest = manifest
        self.torn_lines = 0
        _refuse_to_overwrite(self.path)
        manifest.status = "running"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = RunLock(self.path)
            try:
                if is_readable(self.path / MANIFEST_NAME):
                    raise RunDirectoryError(
                        f"{self.path}: another run has just begun here; give another directory"
                    )
                self._remove_unfinished()
                write_manifest(self.path, manifest)
                self._open_journals()
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> RunWriter:
        """Reopen a run that was interrupted or killed; its rows are kept, up to a torn or damaged line.

        Raises `RunDirectoryError` if `path` is no run directory, its run is complete or still going, or one
        of its tables is missing.
        """
        writer = cls.__new__(cls)
        writer.path = Path(path)
        _resumable_manifest(writer.path)
        try:
            writer._lock = RunLock(writer.path)
            try:
                writer._reopen()
            except BaseException:
                writer._lock.release()
                raise
        except OSError as error:
            raise _cannot_write(writer.path, error) from None
        return writer

    def _reopen(self) -> None:
        self.manifest = manifest = _resumable_manifest(self.path)
        if manifest.status == "interrupted":
            _refuse_missing_tables(self.path)
        self.torn_lines = sum(restore_journal(self.path, table) for table in ROW_TYPES)
        manifest.status = "running"
        manifest.ended_at = None
        write_manifest(self.path, manifest)
        for table in ROW_TYPES:
            parquet_path(self.path, table).unlink(missing_ok=True)
        self._remove_unfinished()
        self._open_journals()

    def _remove_unfinished(self) -> None:
        for left in unfinished_files(self.path):
            left.unlink(missing_ok=True)

    def add_request(self, row: RequestRow) -> None:
        """Append the row of a turn; `RunDirectoryError` for one with an integer that no column can hold."""
        self._refuse_too_large(row)
        if self._requests.add(row) >= _BUFFER_BYTES:
            self.flush()

    def add_tool_call(self, row: ToolCallRow) -> None:
        """Append the row of a tool call, before the row of the turn that waited for it; as `add_request`."""
        self._refuse_too_large(row)
        if self._tool_calls.add(row) >= _BUFFER_BYTES:
            self.flush()

    def add_client(self, row: ClientRow) -> None:
        """Append a row of what the replayer saw of itself."""
        if self._client.add(row) >= _BUFFER_BYTES:
            self.flush()

    def _refuse_too_large(self, row: RequestRow | ToolCallRow) -> None:
        """Keep out what would make the whole table unreadable."""
        if field := too_large_field(row):
            raise RunDirectoryError(
                f"{self.path}: {field} of turn {row.turn_id!r} of session {row.session_id!r} does not fit in"
                " 64 bits, so its row cannot be recorded; look for huge times or counts in the trace"
            )

    def tick(self, now_ns: int) -> None:
        """Flush if a second of the caller's clock has passed since the last flush that a tick made."""
        if now_ns - self._ticked_ns >= _FLUSH_NS:
            self._ticked_ns = now_ns
            self.flush()

    def flush(self) -> None:
        """Hand all rows to the operating system; a kill loses none of them.

        Where the disk is full or fails: `RunDirectoryError`. The rows are kept and written by the next flush.
        """
        try:
            # Tool calls first: a request row on disk then implies the tool calls that it waited for.
            self._tool_calls.flush()
            self._requests.flush()
            self._client.flush()
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def finish(self, status: Literal["complete", "interrupted"]) -> None:
        """Turn the journals into Parquet (streaming: memory stays bounded), then write the manifest.

        Set `manifest.ended_at` and the like before. An "interrupted" run can be resumed.
        """
        try:
            self._close_journals()
            for table in self._tables():
                journal_to_parquet(self.path, table)
            for table in ROW_TYPES:
                journal_path(self.path, table).unlink()
            self.manifest.status = status
            write_manifest(self.path, self.manifest)
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        finally:
            self._lock.release()

    def _tables(self) -> list[str]:
        """Those that a finished run has: what the replayer saw of itself only if it looked."""
        looked = journal_path(self.path, "client").stat().st_size > 0
        return [table for table in ROW_TYPES if table != "client" or looked]

    def close(self) -> None:
        """Flush and close the journals and leave the run incomplete; harmless when done before."""
        try:
            self._close_journals()
        finally:
            self._lock.release()

    def keep_sessions(self, session_ids: Collection[str]) -> int:
        """Take the rows of all other sessions out of the journals; returns the number of request rows taken.

        After a kill between the two tables the next call mends the other: a session that is not kept goes
        from both, whichever of them names it. Where the disk is full both are left as they are.
        """
        self._close_journals()
        try:
            with (
                filtered_journal(self.path, "tool_calls", session_ids),
                # Ends first: a request row implies the tool calls that it waited for.
                filtered_journal(self.path, "requests", session_ids) as taken,
            ):
                pass
            self._open_journals()
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        return taken

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_journals(self) -> None:
        self._ticked_ns = 0
        self._tool_calls = Journal(journal_path(self.path, "tool_calls"))
        self._requests = Journal(journal_path(self.path, "requests"))
        self._client = Journal(journal_path(self.path, "client"))
        self._closed = False

    def _close_journals(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            for journal in (self._tool_calls, self._requests, self._client):
                journal.close()


def _refuse_to_overwrite(directory: Path) -> None:
    try:
        kind = kind_of_file(directory)
        if kind != "directory":
            raise RunDirectoryError(f"{directory}: is a {kind or 'file'}; give a new directory for the run")
        left = [directory / LOCK_NAME, *unfinished_files(directory)]
        if all(path in left for path in directory.iterdir()):
            return
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_write(directory, error) from None
    if not is_readable(directory / MANIFEST_NAME):
        raise RunDirectoryError(f"{directory}: holds other files; give a new directory for the run")
    if read_manifest(directory).status == "complete":
        raise RunDirectoryError(
            f"{directory}: holds a complete run, which is never overwritten; give another directory"
        )
    if is_locked(directory):
        raise RunDirectoryError(f"{directory}: holds a run that is still going; give another directory")
    raise RunDirectoryError(f"{directory}: holds an incomplete run; resume it or give another directory")


def _resumable_manifest(directory: Path) -> Manifest:
    manifest = read_manifest(directory)
    if manifest.status == "complete":
        raise RunDirectoryError(f"{directory}: this run is complete, there is nothing to resume")
    return manifest


def _refuse_missing_tables(directory: Path) -> None:
    for table in ("requests", "tool_calls"):
        if not is_readable(journal_path(directory, table)) and not is_readable(
            parquet_path(directory, table)
        ):
            raise RunDirectoryError(
                f"{parquet_path(directory, table)}: is missing; without it the run cannot be resumed"
            )


def _cannot_write(path: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"{path}: cannot be written: {error.strerror or error}")
