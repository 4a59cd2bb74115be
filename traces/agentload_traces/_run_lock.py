"""Only one process writes a run directory at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from agentload_traces._errors import RunDirectoryError

LOCK_NAME = "run.lock"


class RunLock:
    """The right to write a run directory; it ends with `release`, or with the process however that ends.

    Raises `RunDirectoryError` if another writer has it, `OSError` if the lock file cannot be written. A lock
    file that a killed process left behind locks nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        while True:
            self._file = self._path.open("ab")
            try:
                if not _lock(self._file):
                    raise RunDirectoryError(
                        f"{directory}: this run is still going; wait until it ends, or give another directory"
                    )
                if _is_at(self._file, self._path):
                    return
            except BaseException:
                self._file.close()
                raise
            self._file.close()  # its holder has just ended and taken the file away

    def release(self) -> None:
        """Give it up and take the lock file away; harmless when done before."""
        if not self._file.closed:
            self._path.unlink(missing_ok=True)
            self._file.close()


def is_locked(directory: Path) -> bool:
    """Tell whether a writer is at work in a run directory."""
    try:
        with (directory / LOCK_NAME).open("rb") as file:
            return not _lock(file)
    except OSError:
        return False


def _lock(file: BinaryIO) -> bool:
    """Lock a file for as long as it is open; `False` if it is locked already."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
