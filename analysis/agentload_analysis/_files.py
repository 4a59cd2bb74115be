"""Write a file whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from agentload_analysis._printable import printable
from agentload_traces import AgentloadError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a name of its own beside `path` and rename it, with the bits of any new file.

    A symlink stays, and what it points to is written. Raises `AgentloadError` where that cannot be done, and
    for a device, a FIFO, a socket or a directory, which a rename would replace. Nothing is left behind then.
    """
    try:
        if not _may_be_replaced(path):
            raise AgentloadError(f"{printable(path)}: is no regular file; give the name of a file to write")
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        _replace(target, content)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> AgentloadError:
    """The one line for a file or directory that cannot be written."""
    return AgentloadError(f"{printable(path)}: cannot be written: {error.strerror or error}")


def _may_be_replaced(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _replace(target: Path, content: bytes) -> None:
    # A short name: the target's own may be as long as names can be. No tempfile: its files are private.
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  # a descriptor, not a path
            file.write(content)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
